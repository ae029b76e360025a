"""What a run tells: counters, stage times, immutable snapshots out, commands in.

The training thread is the only writer. It replaces the newest Snapshot and never waits for a reader; others leave commands
in the Mailbox, which is emptied at every step boundary.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from adaptive_rec.knobs import Knobs


class StageTimes:
    """Seconds by stage. Stages timed on a worker overlap with the others; a stage is timed by one thread at a time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._training_thread = threading.current_thread()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            key = stage if threading.current_thread() is self._training_thread else f"{stage} (ahead)"
            self.seconds[key] += time.perf_counter() - start


@dataclass
class Counters:
    """What training has done since the run began; they only grow."""

    steps: int = 0
    samples_seen: int = 0
    samples_trained: int = 0
    samples_popular: int = 0
    lookups: int = 0
    lookups_hot: int = 0
    malformed_rows: int = 0


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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Recorder:
    """Makes snapshots: what the counters gained since the one before, and the run's clock, evaluations left out."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._paused_seconds = 0.0
        self._last: dict[str, float] = defaultdict(float)

    def start(self, totals: Mapping[str, float]) -> None:
        self._started = time.perf_counter()
        self._last = dict(totals)

    @property
    def seconds(self) -> float:
        """Wall clock of the loop so far, loading included, evaluations not."""
        return time.perf_counter() - self._started - self._paused_seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._paused_seconds += time.perf_counter() - start

    def snapshot(self, totals: Mapping[str, float], **state: Any) -> Snapshot:
        """Ratios over what happened since the last snapshot; `state` is the rest of the snapshot's fields."""
        now = {**totals, "seconds": self.seconds}
        gain = {key: value - self._last.get(key, 0) for key, value in now.items()}
        self._last = now
        return Snapshot(
            seconds=now["seconds"],
            samples_per_second=ratio(gain["samples_seen"], gain["seconds"]),
            loss=ratio(gain["loss_sum"], gain["samples_trained"]),
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


def ratio(part: float, whole: float) -> float:
    """Part over whole; 0 where there is nothing."""
    return float(part / whole) if whole else 0.0


class Mailbox:
    """The one place where other threads meet the training thread: the newest snapshot out, knob changes in."""

    def __init__(self) -> None:
        self.newest: Snapshot | None = None
        self._commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def publish(self, snapshot: Snapshot) -> None:
        self.newest = snapshot

    def change_knobs(self, **changes: Any) -> None:
        """Ask for new knob values. They take effect together at the next step boundary.

        Raises ConfigError here, in the asking thread, where a name or value is wrong; then nothing changes.
        """
        Knobs().changed(changes)
        self._commands.put(changes)

    def drain(self) -> list[dict[str, Any]]:
        commands = []
        while not self._commands.empty():
            commands.append(self._commands.get())
        return commands
