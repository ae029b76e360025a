"""Reports of a run: counters, stage times, immutable snapshots, events. The training thread is the only writer."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from time import monotonic
from typing import Any

from adaptive_rec.config.metrics import BY_SAMPLE, ranked_texts
from adaptive_rec.live.rank_report import RankReport, Straggler
from adaptive_rec.saved import Saved

BY_SAMPLE_NAMES = frozenset(metric.name for metric in BY_SAMPLE)

COMPILING = "compiling kernels (later runs load them)"
"""Printed while kernels are compiled; tools that read a run's log look for it."""


class StageTimes:
    """Seconds by stage. Stages timed on a worker overlap with the others; the times of several workers are added.

    Every thread adds to its own sums, so no thread waits for a lock. A reader may miss a time that is added at that moment.
    """

    def __init__(self) -> None:
        self._training_thread = threading.get_ident()
        self._own = threading.local()
        self._all_sums: list[dict[str, float]] = []

    def __call__(self, stage: str) -> _Timed:
        """Time the body of a `with`. On other threads than the training thread, "(ahead)" is added to the stage's name."""
        if threading.get_ident() != self._training_thread:
            stage = f"{stage} (ahead)"
        return _Timed(self._sums(), stage, time.perf_counter)

    def in_background(self, stage: str) -> _Timed:
        """Time work in the background, in processor time: such a thread mostly waits for a processor."""
        return _Timed(self._sums(), f"{stage} (beside)", time.thread_time)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each stage so far, on all threads."""
        total: dict[str, float] = defaultdict(float)
        for sums in list(self._all_sums):
            for stage, seconds in sums.copy().items():
                total[stage] += seconds
        return total

    def state(self) -> dict[str, Any]:
        return {"seconds": dict(self.seconds)}

    def set_state(self, found: Saved) -> None:
        self._sums().update(found.numbers("seconds"))

    def _sums(self) -> dict[str, float]:
        sums: dict[str, float] | None = getattr(self._own, "sums", None)
        if sums is None:
            sums = self._own.sums = {}
            self._all_sums.append(sums)
        return sums


class _Timed:
    """Times one use of a stage. It is a class with slots because a generator as context manager takes twice as long."""

    __slots__ = ("_clock", "_stage", "_start", "_sums")

    def __init__(self, sums: dict[str, float], stage: str, clock: Callable[[], float]) -> None:
        self._sums = sums
        self._stage = stage
        self._clock = clock

    def __enter__(self) -> None:
        self._start = self._clock()

    def __exit__(self, *_: object) -> None:
        self._sums[self._stage] = self._sums.get(self._stage, 0.0) + self._clock() - self._start


@dataclass(frozen=True)
class Snapshot:
    """The run at one step boundary. Ratios are over the steps since the last snapshot."""

    step: int
    steps_total: int | None
    """Steps at the run's end; None where no end is known, in a user's loop that announces none."""
    seconds: float
    samples_per_second: float
    loss: float
    hot_lookup_ratio: float
    popular_sample_ratio: float
    skipped_sample_ratio: float
    skipped_row_update_ratio: float
    hot_rows: int
    stale_rows: int
    placement_version: int
    stale_threshold: float
    dense_lr: float = math.nan
    """Learning rate of the dense part at the next step, with schedule and knobs; so is the next one. Not a number in a user's
    loop, which sets its own."""
    embedding_lr: float = math.nan
    stale_agreement: float = math.nan
    """Share of the rows stale at one of the last two judgements that was stale at both; not a number before there were two."""
    totals: Mapping[str, int | float] = field(default_factory=dict)
    """Counters since the run began."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage since the run began. Stages on a worker end in "(ahead)" or "(beside)" and overlap with the others; those
    that end in "(beside)" ran in the background and are in processor seconds."""
    tables: Mapping[str, list[int]] = field(default_factory=dict)
    """For each table: `lookups` and `lookups_hot` since the run began, `hot_rows` and `stale_rows` now."""
    ranks: Sequence[RankReport] = ()
    """Each of several processes; empty for a run of one."""
    straggler: Straggler | None = None
    """The rank that the others wait for, if there is one."""
    disk: Mapping[str, float] | None = None
    """Figures of rows on a disk (`config/figures.py`); None where all are in memory."""
    keys: Mapping[str, float] | None = None
    """Figures of raw keys; None where ids are rows."""
    skipping: Mapping[str, float] | None = None
    """The price of skipping, by trials; None before there is one."""
    interim: bool = False
    """Whether the run stands still or ends here, between two reports that are due. The next one has these steps, too."""

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, without those about ranks, a disk, raw keys or skipping for a run that has none; `interim` only
        where it is true."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        if not self.interim:
            del values["interim"]
        if self.ranks:
            values |= {"ranks": [asdict(rank) for rank in self.ranks], "straggler": self.straggler and asdict(self.straggler)}
        else:
            del values["ranks"], values["straggler"]
        for name in ("disk", "keys", "skipping"):
            if values[name] is None:
                del values[name]
        return values


@dataclass(frozen=True)
class Ranking:
    """How well a model ranks the samples of each group, such as those of one user."""

    groups: int
    groups_with_positive: int
    """Groups that recall@k, NDCG@k and MRR are the mean of."""
    groups_with_both: int
    """Groups with a positive and a negative sample, which grouped AUC is the mean of."""
    metrics: Mapping[str, float]
    """By the names of `eval.metrics`; NaN where no group counts."""


@dataclass(frozen=True)
class Quality:
    """How well a model predicts held-out samples."""

    samples: int
    auc: float
    """Area under the ROC curve; NaN if only one class occurs."""
    logloss: float
    """Mean negative log likelihood, nats."""
    accuracy: float
    normalized_entropy: float
    """Logloss over that of always predicting the base rate (He et al., ADKDD 2014)."""
    calibration: float
    """Mean prediction over the share of positives."""
    ranking: Ranking | None = None
    """Metrics of `eval.metrics`; None where the run has none."""

    def __str__(self) -> str:
        ranked = {} if self.ranking is None else self.ranking.metrics
        return ", ".join([f"AUC {self.auc:.4f}", f"logloss {self.logloss:.4f}", *ranked_texts(ranked)])

    def value(self, metric: str) -> float:
        """Return a metric by its name (`config/metrics.py` says which of two values is better); NaN where it is not known."""
        if metric in BY_SAMPLE_NAMES:
            return float(getattr(self, metric))
        return math.nan if self.ranking is None else float(self.ranking.metrics.get(metric, math.nan))

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, without `ranking` where there is none."""
        values = asdict(self)
        if self.ranking is None:
            del values["ranking"]
        return values


@dataclass(frozen=True)
class ScoredWindow:
    """The samples of the stream that an evaluation scored before they were trained on."""

    first_sample: int
    """Their numbers in the stream, from 0."""
    end_sample: int
    """The number after the last one's."""
    first_time: float | None
    """The time of the earliest one, in seconds since 1970, UTC; None where the data has no clock."""
    last_time: float | None


@dataclass(frozen=True)
class Evaluation:
    """The model's quality at a step."""

    step: int
    quality: Quality
    window: ScoredWindow | None = None
    """The samples, where they are the next ones of the stream; None where they are held out."""
    samples_seen: int = 0
    """Samples of the stream that the run has read before, of all processes together; a checkpoint does not keep it."""

    def figures(self) -> dict[str, Any]:
        """Return step and quality, and which samples were scored where they are the next ones, as a flat mapping."""
        window = {} if self.window is None else asdict(self.window)
        return {"step": self.step, **self.quality.as_dict(), **window}


@dataclass(frozen=True)
class Event:
    """An occurrence at a step boundary that gets a line in the journal."""

    step: int
    kind: str
    text: str
    """One line for people."""
    details: Mapping[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)
    """Seconds since the epoch, as people read it: it jumps where the wall clock is set."""
    seconds: float = field(default_factory=monotonic)
    """The monotonic clock, by which events of one start of a run are apart."""

    def as_dict(self) -> dict[str, Any]:
        at = {"time": self.time, "seconds": round(self.seconds, 3)}
        return {**at, "step": self.step, "kind": self.kind, "text": self.text, "details": self.details}


def ratio(part: float, whole: float) -> float:
    """Return part / whole, or 0 if the whole is 0."""
    return float(part / whole) if whole else 0.0


def weight_of_losses(totals: Mapping[str, float]) -> float:
    """Return by what the sum of losses is divided: the sum of the weights of the samples trained, their number where they have
    none."""
    return totals.get("weight_trained", totals.get("samples_trained", 0.0))


def finite(value: Any) -> Any:
    """Replace NaN and infinities, at any depth, by None: JSON has neither."""
    if isinstance(value, Mapping):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(values: Mapping[str, Any], indent: int | None = None) -> str:
    """Return JSON with null for NaN and infinities, such as the AUC of samples of one class."""
    return json.dumps(finite(values), indent=indent, allow_nan=False)
