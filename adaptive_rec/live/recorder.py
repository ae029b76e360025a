"""The clocks of a run's loop, and snapshots computed from the differences of its counters."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from adaptive_rec.live.telemetry import Snapshot, ratio, weight_of_losses
from adaptive_rec.saved import Saved


class LoopTime(NamedTuple):
    """The time that a run's loop has taken, without evaluations and checkpoints."""

    seconds: float
    """By the wall clock."""
    processor_seconds: float
    """Of all threads of the process."""


NO_TIME = LoopTime(0.0, 0.0)


class _Clock:
    """Seconds of a clock since `start`, without those inside of `paused`."""

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self._started = read()
        self._paused_seconds = 0.0
        self._paused_since: float | None = None

    def start(self) -> None:
        self._started = self._read()

    @property
    def seconds(self) -> float:
        now = self._read() if self._paused_since is None else self._paused_since
        return now - self._started - self._paused_seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        if self._paused_since is not None:
            yield
            return
        self._paused_since = self._read()
        try:
            yield
        finally:
            self._paused_seconds += self._read() - self._paused_since
            self._paused_since = None


class Recorder:
    """Makes snapshots from what the counters gained since the last one, and keeps the run's clock, without evaluations."""

    def __init__(self, waited: Callable[[], float] = lambda: 0.0) -> None:
        """`waited`: returns for how many seconds the training thread has waited for other processes."""
        self._clock, self._waited, self._processor = (
            _Clock(time.perf_counter),
            _Clock(waited),
            _Clock(time.process_time),
        )
        self._before = self._processor_before = 0.0
        """Seconds of the loop in earlier processes of a resumed run."""
        self._last: dict[str, float] = defaultdict(float)
        """Counts at the last report that was due, from which the next one counts."""
        self._interim_steps = 0
        """Number of steps at an interim report since."""

    def start(self, totals: Mapping[str, float]) -> None:
        """Start the clock. A resumed run keeps the counts that were restored."""
        self._clock.start()
        self._waited.start()
        self._processor.start()
        self._last = self._last or _known(totals)

    def state(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "processor_seconds": self.processor_seconds,
            "last": dict(self._last),
            "interim_steps": self._interim_steps,
        }

    def set_state(self, found: Saved) -> None:
        self._before = found.number("seconds")
        if found.has("processor_seconds"):  # checkpoints of 0.1.0 have none
            self._processor_before = found.number("processor_seconds")
        self._last = found.numbers("last")
        if found.has("interim_steps"):  # older versions had no interim reports
            self._interim_steps = found.integer("interim_steps")

    @property
    def time(self) -> LoopTime:
        return LoopTime(self.seconds, self.processor_seconds)

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the loop so far, with loading and without evaluations."""
        return self._before + self._clock.seconds

    @property
    def processor_seconds(self) -> float:
        """Processor time of the loop so far, of all threads of this process, without evaluations. Other work on the machine
        changes it far less than the wall clock."""
        return self._processor_before + self._processor.seconds

    @property
    def waited_seconds(self) -> float:
        """Seconds of this process's loop in which the training thread waited for other processes."""
        return self._waited.seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the run's clock inside a `with`. Uses may be nested; the outermost one counts."""
        with self._clock.paused(), self._waited.paused(), self._processor.paused():
            yield

    def is_reported(self, steps: float, interim: bool = True) -> bool:
        """Whether there is a snapshot of so many steps, `interim` ones included."""
        return steps <= max(self._last.get("steps", 0), self._interim_steps if interim else 0)

    @property
    def losses_reported(self) -> tuple[float, float]:
        """Sum of the losses, and of the weights of the samples trained, at the last snapshot that was due."""
        return self._last.get("loss_sum", 0.0), weight_of_losses(self._last)

    def snapshot(self, totals: Mapping[str, float], interim: bool = False, **state: Any) -> Snapshot:
        """Make a snapshot with ratios since the last one that was due. `totals` include the seconds; `interim`: this one is not
        due; `state` holds the other fields."""
        now = _known(totals)
        gain = {key: value - self._last.get(key, 0) for key, value in now.items()}
        if interim:
            self._interim_steps = int(now["steps"])
        else:
            self._last, self._interim_steps = now, 0
        return Snapshot(
            seconds=now["seconds"],
            samples_per_second=ratio(gain["samples_seen"], gain["seconds"]),
            loss=ratio(gain["loss_sum"], weight_of_losses(gain)) if "loss_sum" in gain else math.nan,
            hot_lookup_ratio=ratio(gain["lookups_hot"], gain["lookups"]),
            popular_sample_ratio=ratio(gain["samples_popular"], gain["samples_seen"]),
            skipped_sample_ratio=1 - ratio(gain["samples_trained"], gain["samples_seen"])
            if gain["samples_seen"]
            else 0.0,
            skipped_row_update_ratio=ratio(
                gain["row_updates_skipped"], gain["row_updates"] + gain["row_updates_skipped"]
            ),
            totals=dict(now),
            interim=interim,
            **state,
        )


def _known(totals: Mapping[str, float]) -> dict[str, float]:
    """Return the totals without NaN, which stands for a sum that is not measured."""
    return {key: value for key, value in totals.items() if not math.isnan(value)}
