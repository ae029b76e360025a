"""Models of the answers about runs and their curves, for the API's description."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from adaptive_rec.service.documented import Answer
from adaptive_rec.service.schemas import Quality


class BranchedFrom(Answer):
    """The checkpoint of another run that a run was branched from."""

    run: Annotated[str, Field(description="Name of its directory")]
    checkpoint: str
    step: int


class RunEvaluation(Answer):
    step: int
    auc: float | None
    logloss: float | None
    metrics: Annotated[
        dict[str, float | None], Field(description="Metrics that rank, by the names of `eval.metrics`; empty where it has none")
    ] = {}


class ListedRun(Answer):
    """A run beside the one that is served, as its files show it."""

    name: Annotated[str, Field(description="Name of its directory")]
    own: Annotated[bool, Field(description="Whether it is the run that is served")]
    policy: str
    state: Annotated[
        str,
        Field(
            description="What it does: starting, training, paused; or how it ended: finished, failed, suspended, "
            "killed (its journal has no end and no process trains in it); branched: a branch that nobody has started. Of the run "
            "that is served, its phase"
        ),
    ]
    step: int
    steps_total: int | None
    steps_per_epoch: int | None
    seconds: Annotated[float, Field(description="Training clock: pauses and evaluations left out")]
    loss: float | None
    best: Annotated[RunEvaluation | None, Field(description="The evaluation of the greatest AUC so far")]
    last: RunEvaluation | None
    started: Annotated[str | None, Field(description="ISO 8601, UTC; null where its description cannot be read")]
    parent: Annotated[BranchedFrom | None, Field(description="Null where it was not branched from another run")]
    tables: list[str]
    complete: Annotated[
        bool,
        Field(description="Whether its files were read to their ends; else the next request reads on"),
    ]


class RunList(Answer):
    """Runs, those started last first."""

    runs: list[ListedRun]
    total: Annotated[int, Field(description="Runs that were found; `offset` pages through them")]
    cut: Annotated[bool, Field(description="Whether the folder has more entries than were looked at (20,000)")]


class RunEvaluations(Answer):
    evaluations: list[Quality]


class TableCurves(Answer):
    """Curves of one table: lists of equal length. Lookups are sums since the run began, ratios over the steps since the point
    before."""

    table: str
    columns: dict[str, list[float | None]]
    spacing_steps: int
