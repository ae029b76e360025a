"""Models of the answers on the run that is served: its status, figures and events, for the API's description.

Large answers are written without these models; tests compare them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field

from adaptive_rec.service.damage import DamagedFile
from adaptive_rec.service.documented import Answer, example, figures_model


class BestEvaluation(Answer):
    step: int
    auc: float | None
    logloss: float | None
    value: Annotated[float | None, Field(description="By best_metric")] = None
    epoch: Annotated[int | None, Field(description="The pass over the data under way, from 1; 0: not known")] = None


class OverfitFigures(Answer):
    """The evaluations that show that training and evaluation loss have parted."""

    step: Annotated[int, Field(description="Of the evaluation that showed it")]
    logloss: Annotated[float, Field(description="Logloss then")]
    least_step: Annotated[int, Field(description="Of the evaluation of the least logloss")]
    least_logloss: float
    least_training_loss: Annotated[float, Field(description="Mean training loss before that evaluation")]
    training_loss: Annotated[float, Field(description="Mean training loss over the evaluations that were worse")]
    worse: Annotated[int, Field(description="How many in a row were worse")]


class Health(Answer):
    model_config = example(status="ok")
    status: Literal["ok"]


class Version(Answer):
    model_config = example(name="adaptive-rec", version="0.2.0")
    name: str
    version: str


class RunParent(Answer):
    """The run that a branch comes from."""

    run: Annotated[str, Field(description="Its directory, which may be gone")]
    checkpoint: Annotated[str, Field(description="Name of the checkpoint that the branch began with")]
    step: int


class RunInfo(Answer):
    name: str
    path: str
    started: Annotated[str, Field(description="ISO 8601, UTC")]
    seed: int
    device: str
    precision: str
    version: str
    parent: Annotated[RunParent | None, Field(description="Where a branch comes from; null for other runs")] = None
    steps_per_epoch: Annotated[
        int | None, Field(description="Steps of one pass over the training data; null where there are no passes of equal length")
    ]


class RankingFigures(Answer):
    """Metrics that rank the samples of each group."""

    groups: int
    groups_with_positive: Annotated[int, Field(description="Groups that recall@k, NDCG@k and MRR are the mean of")]
    groups_with_both: Annotated[int, Field(description="Groups with both classes, which grouped AUC is the mean of")]
    metrics: Annotated[
        dict[str, float | None], Field(description="By the names of `eval.metrics`; null where no group counts")
    ]


class Quality(Answer):
    """Quality of the model at a step, on held-out samples or on those that are trained on next (`eval.mode`)."""

    model_config = ConfigDict(extra="allow")
    step: int
    auc: float | None = None
    logloss: float | None = None
    accuracy: float | None = None
    normalized_entropy: float | None = None
    calibration: float | None = None
    samples: int | None = None
    first_sample: Annotated[
        int | None, Field(description="Next windows: number of the first sample in the stream; null where samples are held out")
    ] = None
    end_sample: Annotated[int | None, Field(description="Next windows: the number after the last sample's")] = None
    first_time: Annotated[
        float | None, Field(description="Next windows: seconds since 1970 of the earliest sample; null where data has no clock")
    ] = None
    last_time: Annotated[float | None, Field(description="Next windows: of the latest sample")] = None
    ranking: Annotated[RankingFigures | None, Field(description="Null where the run has no `eval.metrics`")] = None


class Checkpoint(Answer):
    """The newest checkpoint that the run has written since its start."""

    name: str
    step: Annotated[int, Field(description="The step of the checkpoint")]
    kind: Annotated[
        Literal["full", "changes"], Field(description="All rows, or the rows changed since the last checkpoint")
    ]
    rows: int
    size_bytes: int
    seconds: Annotated[float, Field(description="Time to write it, in the background of training")]
    stall_seconds: Annotated[float, Field(description="Time that training stopped for it")]


class RankStatus(Answer):
    """One of several processes that train together. Its own work is the time in which it does not wait for others."""

    rank: int
    work_seconds_per_step: Annotated[float, Field(description="Median over the last reports; so is the next one")]
    wait_seconds_per_step: float
    sent_bytes_per_sample: Annotated[
        dict[str, float], Field(description="Bytes sent to other ranks for each sample of its part, lately, by kind")
    ]
    hot_lookup_ratio: Annotated[float, Field(description="Share of its lookups whose rows are hot at their owners, lately")]
    work_seconds: Annotated[float, Field(description="Since the process started; so are the next two")]
    wait_seconds: float
    sent_bytes: dict[str, int]


class Straggler(Answer):
    """The rank that the others wait for: a step would be at least a fifth shorter if its own work took as long as theirs."""

    rank: int
    text: Annotated[str, Field(description="A sentence that names it and says why")]


class Status(Answer):
    """Phase, step, pace and quality of the run."""

    run: RunInfo
    live: bool
    scope: Literal["control", "read"]
    session: Annotated[
        bool, Field(description="Whether the request came with a session's cookie; DELETE /api/v1/session ends it")
    ]
    policy: str
    phase: Annotated[
        str,
        Field(
            description="What the run is doing: starting, training, paused, evaluating, checkpointing, "
            "rolling_back, finishing; "
            "or how it ended: finished, failed, suspended (by a rule that would pause it), killed (its journal has no end); "
            "branched: a branch that nobody has started"
        ),
    ]
    error: Annotated[str | None, Field(description="Why the run failed or was suspended; null if it was not")]
    damaged: Annotated[list[DamagedFile], Field(description="Files of the run that are damaged, and lines that are left out")]
    step: int
    steps_total: Annotated[
        int | None,
        Field(description="Steps at the run's end; null where no end is known, in a user's loop that announces none"),
    ]
    samples_seen: int
    samples_per_second: float | None
    steps_per_second: float | None
    seconds: Annotated[float, Field(description="Training clock: pauses and evaluations left out")]
    eta_seconds: float | None
    loss: Annotated[float | None, Field(description="Mean over the samples since the last snapshot")]
    evaluation: Quality | None
    best_evaluation: Annotated[BestEvaluation | None, Field(description="The best one by best_metric, the first of equal ones")]
    best_metric: Annotated[
        str | None, Field(description="eval.metric where the run validates or has patience, otherwise auc; null: not known")
    ]
    stopped_early: Annotated[str | None, Field(description="Why the run stops before its last pass, as it gets no better")]
    held_out: Annotated[
        Quality | None,
        Field(description="Where the run validates: the held-out samples at its end, by the best model, that of step `step`"),
    ]
    overfit: Annotated[
        OverfitFigures | None, Field(description="Training and evaluation loss have parted since the least logloss")
    ]
    epoch: Annotated[int | None, Field(description="The pass over the training data under way, from 1; null: not known")]
    epochs: Annotated[int | None, Field(description="Passes at the most")]
    checkpoint: Checkpoint | None
    staging_bytes: Annotated[
        int, Field(description="Device memory for rows and gradients on their way, without the hot tier; 0 on a CPU")
    ]
    peak_bytes: Annotated[
        int, Field(description="The most device memory the run's process has held at one time; 0 on a CPU")
    ]
    last_step_age_seconds: Annotated[
        float | None, Field(description="Seconds since the last sign of life of training, or of waiting while paused")
    ]
    ranks: Annotated[list[RankStatus], Field(description="Each of several processes; empty for a run of one")]
    straggler: Straggler | None


class Ratios(Answer):
    """Over the steps since the last snapshot."""

    hot_lookup: float | None
    popular_sample: float | None
    skipped_sample: float | None
    skipped_row_update: float | None


class TableStats(Answer):
    """Counters of one table over the whole run."""

    index: int
    table: str
    lookups: int
    lookups_hot: int
    hot_lookup_ratio: float
    hot_rows: int
    stale_rows: int


if TYPE_CHECKING:

    class DiskStats(Answer): ...

    class KeyStats(Answer): ...

    class SkippingStats(Answer): ...
else:
    DiskStats = figures_model(
        "DiskStats", "disk",
        "Rows on a disk. Rows and seconds are means of a step since the snapshot before; `totals` has them since the run began.",
    )
    KeyStats = figures_model("KeyStats", "keys", "Raw ids. Ratios and means are over the steps since the snapshot before.")
    SkippingStats = figures_model("SkippingStats", "skipping", "What skipping costs, in nats, by paired trials.")


class Stats(Answer):
    """Counters of the run at its newest snapshot; rows as of the last time they moved."""

    step: int
    seconds: float
    ratios: Ratios
    hot_rows: int
    stale_rows: int
    placement_version: int
    dense_lr: Annotated[
        float | None,
        Field(description="Learning rate of the dense part at the next step, with schedule and knobs; null in a user's own loop"),
    ]
    embedding_lr: Annotated[float | None, Field(description="That of embedding rows")]
    stale_threshold: Annotated[
        float | None,
        Field(description="Movement under which a row is stale; null: no such number, any row of known movement may be stale"),
    ]
    stale_agreement: Annotated[
        float | None,
        Field(description="Share of the rows stale at one of the last two judgements that was stale at both; null before two"),
    ]
    totals: dict[str, float]
    stage_seconds: dict[str, float]
    disk: Annotated[DiskStats | None, Field(description="Null where all rows are in memory")]
    keys: Annotated[KeyStats | None, Field(description="Null where ids are rows")]
    skipping: Annotated[SkippingStats | None, Field(description="Null before a trial has found what skipping costs")]
    tables: list[TableStats]


class StatsHistory(Answer):
    """Curves of the run: lists of equal length, one per column. Bytes are sums since the run began."""

    columns: dict[str, list[float | None]]
    evaluations: list[Quality]
    spacing_steps: int


class Event(Answer):
    model_config = example(
        id=3,
        time="2026-01-31T12:00:00.000+00:00",
        step=437,
        kind="knobs",
        text="alpha 0.9 -> 0.8",
        details={"changed": {"alpha": {"old": 0.9, "new": 0.8}}},
    )
    id: int
    time: str
    step: int
    kind: str
    text: str
    details: dict[str, Any]


class Events(Answer):
    """What happened, oldest first; `last_id` is the `since` of the next request."""

    events: list[Event]
    last_id: int
