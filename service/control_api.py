"""Routes that send commands to the run, a return to one of its checkpoints among them, and health checks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from adaptive_rec.config.knobs import LONGEST_WHY
from adaptive_rec.service import control_schemas, schemas
from adaptive_rec.service.documented import answers
from adaptive_rec.service.knobs_api import check_shape
from adaptive_rec.service.lines import MAX_STEP
from adaptive_rec.service.problems import Json, ProblemError
from adaptive_rec.service.run_view import RunView
from adaptive_rec.service.waiting import check_open, checkpoint_reason, outcome_soon, reason

Command = Literal["pause", "resume", "stop", "reclassify", "checkpoint"]
STALL_AFTER_SECONDS = 300.0
"""A run that trains but makes no step for so long is not alive."""


EXAMPLE: dict[str, JsonValue] = {
    "to_step": 4000,
    "skip_data": True,
    "knobs": {"lr_factor": 0.5},
    "why": "the loss spikes",
}


class RollbackRequest(BaseModel):
    """Where a run goes back to: a checkpoint by its name, the newest one at or before a step, or the newest of all."""

    model_config = ConfigDict(strict=True, extra="forbid", json_schema_extra={"examples": [EXAMPLE]})

    checkpoint: Annotated[str | None, Field(max_length=100, description="Its name")] = None
    to_step: Annotated[int | None, Field(ge=0, le=MAX_STEP, description="Instead of a name")] = None
    skip_data: Annotated[bool, Field(description="Do not train again on what was trained since that checkpoint")] = (
        False
    )
    knobs: Annotated[
        dict[str, Any], Field(description="New values, in effect before the next step; null: the configured")
    ] = {}
    why: Annotated[str | None, Field(max_length=LONGEST_WHY, description="The reason, for the journal")] = None


def control_router(view: RunView) -> APIRouter:
    """Return the routes for commands to the run."""
    routes = APIRouter(prefix="/api/v1/control", tags=["control"])

    @routes.post("/rollback", **documented(403, 409, 500), operation_id="rollback")  # before the others, which its path fits
    async def rollback(wanted: RollbackRequest | None = None) -> Json:
        """Go on from an earlier checkpoint of this run, in the same process; the answer names the step of the checkpoint."""
        given = (wanted or RollbackRequest()).model_dump()
        return await carried_out(view, "rollback", lambda: reason(view, "the run goes back"), **given)

    @routes.post("/{command}", **documented(403, 409, 500, 507), operation_id="control")
    async def control(command: Annotated[Command, Path()]) -> Json:
        """Carried out at the next step boundary; the answer names the step, or says why that is not soon."""

        def why() -> str:
            return checkpoint_reason(view) if command == "checkpoint" else reason(view, f"{command} is carried out")

        return await carried_out(view, command, why)

    return routes


def documented(*errors: int) -> dict[str, Any]:
    """Describe the answers of a command, which may have to wait."""
    found = answers(control_schemas.Done, *errors)
    found["responses"][202] = {"model": control_schemas.Done, "description": "Accepted; not carried out yet"}
    return found


async def carried_out(view: RunView, command: str, why: Callable[[], str], /, **details: Any) -> Json:
    """Have the trainer carry out a command, and return the answer to the client. `why`: returns why it is not carried out yet."""
    link = view.commands()
    check_open(view)
    check_shape(details.get("knobs", {}))
    reply = await outcome_soon(view, link.send(command, **details))
    if reply is None:
        return Json({"command": command, "step": None, "pending": True, "reason": why()}, 202)
    if "error" in reply:
        errors = {"errors": reply["errors"]} if "errors" in reply else {}
        raise ProblemError(reply["status"], reply["error"], **errors)
    done = {"pending": False, "reason": None}
    return Json({"command": command, **done, **{key: value for key, value in reply.items() if key != "id"}})


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
