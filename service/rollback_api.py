"""The route by which a run goes back to a checkpoint of its own."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from adaptive_rec.config.knobs import LONGEST_WHY
from adaptive_rec.service import control_schemas
from adaptive_rec.service.documented import answers
from adaptive_rec.service.knobs_api import check_shape
from adaptive_rec.service.lines import MAX_STEP
from adaptive_rec.service.problems import Json, ProblemError
from adaptive_rec.service.run_view import RunView
from adaptive_rec.service.waiting import check_open, outcome_soon, reason

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


def router(view: RunView) -> APIRouter:
    """Return the route, which must come before that of the other commands."""
    routes = APIRouter(prefix="/api/v1/control", tags=["control"])
    documented = answers(control_schemas.Done, 403, 409, 500)
    documented["responses"][202] = {"model": control_schemas.Done, "description": "Accepted; not carried out yet"}

    @routes.post("/rollback", **documented, operation_id="rollback")
    async def rollback(wanted: RollbackRequest | None = None) -> Json:
        """Go on from an earlier checkpoint of this run, in the same process; the answer names the step of the checkpoint."""
        link = view.commands()
        check_open(view)
        given = (wanted or RollbackRequest()).model_dump()
        check_shape(given["knobs"])
        reply = await outcome_soon(view, link.send("rollback", **given))
        if reply is None:
            why = reason(view, "the run goes back")
            return Json({"command": "rollback", "step": None, "pending": True, "reason": why}, 202)
        if "error" in reply:
            errors = {"errors": reply["errors"]} if "errors" in reply else {}
            raise ProblemError(reply["status"], reply["error"], **errors)
        done = {"pending": False, "reason": None}
        return Json({"command": "rollback", **done, **{key: value for key, value in reply.items() if key != "id"}})

    return routes
