"""When a scraper read the metrics of a run, so that a run can end after the scrape that shows its end.

Prometheus knows no other way to see that a run ended: its port closes, and the port of a run that crashed closes too.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from adaptive_rec.live.life import ENDS

USUAL_INTERVAL_SECONDS = 60.0
"""The interval that Prometheus has unless it is configured, assumed after a single scrape."""
LONGEST_SECONDS, LONGEST_HURRIED_SECONDS = 65.0, 20.0
"""Longest wait for the last scrape; the shorter one after a signal, as who sends it may kill the process before long."""
INTERVALS_KEPT = 4
POLL_SECONDS = 0.2
SENDING_SECONDS = 0.5
"""Time that the last answer gets to leave the sidecar, which reports a scrape before it answers."""


class Scrapes:
    """The last scrapes of a run. The sidecar's thread notes them, the training thread waits for the last one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._times: deque[float] = deque(maxlen=INTERVALS_KEPT + 1)
        self._phase = ""

    def note(self, phase: str) -> None:
        """Note that the metrics were read while the run was in this phase."""
        with self._changed:
            self._times.append(self._clock())
            self._phase = phase
            self._changed.notify_all()

    @property
    def end_was_read(self) -> bool:
        return self._phase in ENDS

    def seconds_to_wait(self, hurried: bool) -> float:
        """Return how long the next scrape may take to come; 0 if no scraper reads the run, or it has read the end already."""
        with self._changed:
            times = list(self._times)
        if not times or self.end_was_read:
            return 0.0
        intervals = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
        expected = times[-1] + 1.25 * max(intervals, default=USUAL_INTERVAL_SECONDS) + 1
        return min(max(0.0, expected - self._clock()), LONGEST_HURRIED_SECONDS if hurried else LONGEST_SECONDS)

    def wait_for_the_end(self, seconds: float, given_up: Callable[[], bool]) -> None:
        """Wait until a scraper has read the run's end, but no longer than `seconds` or until `given_up`."""
        deadline = self._clock() + seconds
        with self._changed:
            while not self.end_was_read and self._clock() < deadline and not given_up():
                self._changed.wait(POLL_SECONDS)
        if self.end_was_read:
            time.sleep(SENDING_SECONDS)


class Ending(Protocol):
    """A run that may have ended."""

    @property
    def phase(self) -> str: ...

    @property
    def hurried(self) -> bool: ...


def wait_for_the_last(
    scrapes: Scrapes, run: Ending, description: Path, released: Callable[[], bool], note: Callable[[str], None]
) -> None:
    """Where a run has ended and a scraper reads it, wait until that has read the end.

    The wait ends early when `released`, when the first signal comes meanwhile, and when another process resumes the run, which
    replaces its `description`.
    """
    hurried, mine = run.hurried, _identity(description)
    seconds = 0.0 if released() or run.phase not in ENDS else scrapes.seconds_to_wait(hurried)
    if seconds > 0:
        note(f"the run has {run.phase}; up to {seconds:.0f} s are left to the scraper of its metrics to see that")
        scrapes.wait_for_the_end(seconds, lambda: released() or run.hurried > hurried or _identity(description) != mine)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from one that replaces it."""
    with suppress(OSError):
        about = path.stat()
        return about.st_ino, about.st_mtime_ns
    return None
