"""Routes that send commands to the run, and health checks."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from fastapi import APIRouter, Path

from adaptive_rec.service import control_schemas, schemas
from adaptive_rec.service.documented import answers
from adaptive_rec.service.problems import Json, ProblemError
from adaptive_rec.service.run_view import RunView
from adaptive_rec.service.waiting import check_open, checkpoint_reason, outcome_soon, reason

Command = Literal["pause", "resume", "stop", "reclassify", "checkpoint"]
STALL_AFTER_SECONDS = 300.0
"""A run that trains but makes no step for so long is not alive."""


def control_router(view: RunView) -> APIRouter:
    """Return the routes for commands to the run."""
    routes = APIRouter(prefix="/api/v1/control", tags=["control"])
    documented = answers(control_schemas.Done, 403, 409, 500, 507)
    documented["responses"][202] = {"model": control_schemas.Done, "description": "Accepted; not carried out yet"}

    @routes.post("/{command}", **documented, operation_id="control")
    async def control(command: Annotated[Command, Path()]) -> Json:
        """Carried out at the next step boundary; the answer names the step, or says why that is not soon."""
        link = view.commands()
        check_open(view)
        reply = await outcome_soon(view, link.send(command))
        if reply is None:
            why = checkpoint_reason(view) if command == "checkpoint" else reason(view, f"{command} is carried out")
            return Json({"command": command, "step": None, "pending": True, "reason": why}, 202)
        if "error" in reply:
            raise ProblemError(reply["status"], reply["error"])
        done = {"pending": False, "reason": None}
        return Json({"command": command, **done, **{key: value for key, value in reply.items() if key != "id"}})

    return routes


def public_router(view: RunView) -> APIRouter:
    """Return the routes that need no token: alive, ready, version."""
    routes = APIRouter(tags=["health"])

    @routes.get("/livez", **answers(schemas.Health, 503), operation_id="livez")
    async def livez() -> Json:
        """200 while the sidecar answers and, where the run trains, a step was done in the last 300 seconds."""
        pulse = view.pulse()
        if view.board().get("phase") == "training" and pulse and time.monotonic() - pulse[1] > STALL_AFTER_SECONDS:
            raise ProblemError(
                503, f"the run trains, but no step was done in the last {STALL_AFTER_SECONDS:.0f} seconds"
            )
        return Json({"status": "ok"})

    @routes.get("/readyz", **answers(schemas.Health, 503), operation_id="readyz")
    async def readyz() -> Json:
        """200 once the run has started: tables are allocated and the first step is under way."""
        if view.board().get("phase", "starting") == "starting":
            raise ProblemError(503, "the run is starting", {"Retry-After": "1"})
        return Json({"status": "ok"})

    @routes.get("/version", **answers(schemas.Version), operation_id="version")
    async def version() -> Json:
        return Json({"name": "adaptive-rec", "version": view.hello.version})

    return routes
