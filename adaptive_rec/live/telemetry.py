"""What a run tells: counters, stage times, immutable snapshots, events. The training thread is the only writer."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from adaptive_rec.saved import Saved

COMPILING = "compiling kernels (first run only)"
"""Printed while kernels are compiled; tools that read a run's log look for it."""


class StageTimes:
    """Seconds by stage. Stages timed on a worker overlap with the others; those of several workers are added up.

    Every thread adds to sums of its own, so nobody waits for a lock. Readers may miss what is being added just then.
    """

    def __init__(self) -> None:
        self._training_thread = threading.get_ident()
        self._own = threading.local()
        self._all_sums: list[dict[str, float]] = []

    def __call__(self, stage: str) -> _Timed:
        """Time the body of a `with`. The stage is another one, "(ahead)", where this is not the training thread."""
        if threading.get_ident() != self._training_thread:
            stage = f"{stage} (ahead)"
        return _Timed(self._sums(), stage, time.perf_counter)

    def beside(self, stage: str) -> _Timed:
        """Time the work of a thread that gives way to others: the processor's time, as most of the clock's it waits for one."""
        return _Timed(self._sums(), f"{stage} (beside)", time.thread_time)

    @property
    def seconds(self) -> dict[str, float]:
        """What each stage took so far, on all threads."""
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
    """One use of a stage. A class with slots, as a generator made into a context manager takes twice as long."""

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
    steps_total: int
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
    totals: Mapping[str, int | float] = field(default_factory=dict)
    """Counters since the run began."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Where the time since the run began went; stages on a worker end in "(ahead)" or "(beside)" and overlap with the others;
    those beside are in seconds of the processor."""
    tables: Mapping[str, list[int]] = field(default_factory=dict)
    """For each table: `lookups` and `lookups_hot` since the run began, `hot_rows` and `stale_rows` now."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Quality:
    """How well a model predicts held-out samples."""

    samples: int
    auc: float
    """Area under the ROC curve; not a number where only one class occurs."""
    logloss: float
    """Mean negative log likelihood, nats."""
    accuracy: float
    normalized_entropy: float
    """Logloss over that of always predicting the base rate (He et al., ADKDD 2014)."""
    calibration: float
    """Mean prediction over the share of positives."""


@dataclass(frozen=True)
class Evaluation:
    """The model's quality after so many steps."""

    step: int
    quality: Quality


@dataclass(frozen=True)
class Event:
    """Something that happened at a step boundary and is worth a line in the journal."""

    step: int
    kind: str
    text: str
    """One line for people."""
    details: Mapping[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)
    """Seconds since the epoch."""

    def as_dict(self) -> dict[str, Any]:
        return {"time": self.time, "step": self.step, "kind": self.kind, "text": self.text, "details": self.details}


class Recorder:
    """Makes snapshots: what the counters gained since the one before, and the run's clock, evaluations left out."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._paused_seconds = 0.0
        self._paused_since: float | None = None
        self._before = 0.0
        """Seconds of the loop in the processes that the run went on from."""
        self._last: dict[str, float] = defaultdict(float)

    def start(self, totals: Mapping[str, float]) -> None:
        """The loop begins. What a run that goes on counted last was restored."""
        self._started = time.perf_counter()
        self._last = self._last or _known(totals)

    def state(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "last": dict(self._last)}

    def set_state(self, found: Saved) -> None:
        self._before = found.number("seconds")
        self._last = found.numbers("last")

    @property
    def seconds(self) -> float:
        """Wall clock of the loop so far, loading included, evaluations not."""
        now = time.perf_counter() if self._paused_since is None else self._paused_since
        return self._before + now - self._started - self._paused_seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the run's clock. May be nested; the outermost one counts."""
        if self._paused_since is not None:
            yield
            return
        self._paused_since = time.perf_counter()
        try:
            yield
        finally:
            self._paused_seconds += time.perf_counter() - self._paused_since
            self._paused_since = None

    @property
    def steps_told(self) -> float:
        """Steps made up to the last snapshot."""
        return self._last.get("steps", 0)

    def snapshot(self, totals: Mapping[str, float], **state: Any) -> Snapshot:
        """Ratios over what happened since the last snapshot; `totals` hold the seconds too, `state` is the rest of its fields."""
        now = _known(totals)
        gain = {key: value - self._last.get(key, 0) for key, value in now.items()}
        self._last = now
        return Snapshot(
            seconds=now["seconds"],
            samples_per_second=ratio(gain["samples_seen"], gain["seconds"]),
            loss=ratio(gain["loss_sum"], gain["samples_trained"]) if "loss_sum" in gain else math.nan,
            hot_lookup_ratio=ratio(gain["lookups_hot"], gain["lookups"]),
            popular_sample_ratio=ratio(gain["samples_popular"], gain["samples_seen"]),
            skipped_sample_ratio=1 - ratio(gain["samples_trained"], gain["samples_seen"])
            if gain["samples_seen"]
            else 0.0,
            skipped_row_update_ratio=ratio(
                gain["row_updates_skipped"], gain["row_updates"] + gain["row_updates_skipped"]
            ),
            totals=dict(now),
            **state,
        )


def _known(totals: Mapping[str, float]) -> dict[str, float]:
    """Without what is no number: sums that nobody tells."""
    return {key: value for key, value in totals.items() if not math.isnan(value)}


def ratio(part: float, whole: float) -> float:
    """Part over whole; 0 where there is nothing."""
    return float(part / whole) if whole else 0.0


def finite(value: Any) -> Any:
    """Null for what is no number, at any depth: JSON has no infinity."""
    if isinstance(value, Mapping):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(values: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON with null for what is no number, such as the AUC where one class occurs."""
    return json.dumps(finite(values), indent=indent, allow_nan=False)
