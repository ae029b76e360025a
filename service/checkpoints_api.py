"""The route of a run's checkpoints, to any of which it can go back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from adaptive_rec.checkpoint.listing import newest_entries
from adaptive_rec.errors import CheckpointError
from adaptive_rec.service.documented import Answer, answers
from adaptive_rec.service.hello import Values
from adaptive_rec.service.problems import Json, ProblemError
from adaptive_rec.service.run_digest import iso
from adaptive_rec.service.run_schemas import RunEvaluation
from adaptive_rec.service.run_view import RunView

MOST = 200


class SavedCheckpoint(Answer):
    """A checkpoint in the run's directory. Null where its manifest cannot be read, or was not looked at."""

    name: str
    step: int
    written: Annotated[str | None, Field(description="When, in UTC")]
    kind: Annotated[
        Literal["full", "changes"] | None, Field(description="All rows, or those changed since `builds_on`")
    ]
    builds_on: Annotated[
        str | None, Field(description="The checkpoint that it needs besides; null where it has all rows")
    ]
    size_bytes: Annotated[int | None, Field(description="Its own files, without rows on a disk")]
    error: Annotated[
        str | None,
        Field(
            description="What is wrong with a manifest or with the presence and size of a file, of those that it builds on too; "
            "null where nothing is, or where it was not looked at. The content is checked by a rollback, and by "
            "`adaptive-rec checkpoint verify`"
        ),
    ]
    not_looked_at: Annotated[
        str | None,
        Field(
            description="Why nobody has looked for an error: the newest ones took all the time of a list. This is no damage; "
            "a rollback looks at the whole of it. Null where it was looked at"
        ),
    ]
    evaluation: Annotated[RunEvaluation | None, Field(description="The newest one at or before its step")]


class CheckpointList(Answer):
    """Checkpoints, newest first. Those before one in the list go with a rollback to it."""

    checkpoints: list[SavedCheckpoint]
    total: int


def router(view: RunView) -> APIRouter:
    routes = APIRouter(prefix="/api/v1", tags=["run"])
    folder = Path(view.hello.run) / "checkpoints"

    @routes.get("/checkpoints", **answers(CheckpointList, 404), operation_id="get_checkpoints")
    async def get_checkpoints(
        limit: Annotated[int, Query(ge=1, le=MOST, description="The newest ones, at most so many.")] = 50,
    ) -> Json:
        """The checkpoints of the run: step, time, size, the evaluation before them, and which are damaged."""
        view.refresh()
        evaluations = list(view.history.evaluations.points)
        try:
            found, total = await run_in_threadpool(newest_entries, folder, limit)
        except CheckpointError as error:
            raise ProblemError(404, f"the checkpoints cannot be listed: {error}") from None
        return Json({"checkpoints": [described(each, evaluations) for each in found], "total": total})

    return routes


def described(entry: Values, evaluations: Sequence[Values]) -> Values:
    """Return a checkpoint as the route has it."""
    before = [each for each in evaluations if each["step"] <= entry["step"]]
    scored: dict[str, Any] | None = None
    if before:
        scored = {name: before[-1].get(name) for name in RunEvaluation.model_fields}
    written = iso(entry["written"]) if "written" in entry else None
    kept = {name: entry.get(name) for name in ("name", "step", "kind", "builds_on", "size_bytes", "error", "not_looked_at")}
    return {**kept, "written": written, "evaluation": scored}
