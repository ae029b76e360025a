"""Whether a sidecar still answers: the trainer asks it over the link, and counts the time in which it could have answered.

A sidecar that is merely slow is left alone. The time in which it waits for a processor is not counted, and neither is the time in
which the trainer itself stood still: stopped, in a debugger, or without its interpreter's lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from adaptive_rec.live.runtime_file import stat_fields

BEAT_SECONDS = 0.5
"""From one look at the sidecar to the next."""
HUNG_SECONDS = 10.0
"""A sidecar that has not answered for so long is hung."""
START_SECONDS = 30.0
"""Longest time until the first answer: a sidecar imports its modules before."""
DOUBTFUL_RATIO = 0.2
"""Share of these times, 2 s and 6 s, after which the end of a run no longer waits for anything that the sidecar should do."""
STOOD_STILL_SECONDS = 3.0
"""A trainer that is so late for a beat stood still; the sidecar may have been stopped with it and gets its time again."""


class ThreadStanding(NamedTuple):
    """A thread as the system sees it."""

    state: str
    """R where it runs or waits for a processor, t where a debugger holds it, T where it is stopped (`proc_pid_stat(5)`)."""
    processor_seconds: float


def main_thread(pid: int) -> ThreadStanding:
    """Return how the main thread of a process stands; state "?" where the system does not tell."""
    try:
        state, *numbers = stat_fields(f"{pid}/task/{pid}")
        return ThreadStanding(state, (int(numbers[10]) + int(numbers[11])) / os.sysconf("SC_CLK_TCK"))
    except (ValueError, IndexError):
        return ThreadStanding("?", 0.0)


class Heartbeat:
    """The silence of one sidecar. One thread hears and beats; any thread may ask whether the sidecar is doubtful."""

    def __init__(
        self,
        pid: int,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[int], ThreadStanding] = main_thread,
    ) -> None:
        self._pid, self._clock, self._look = pid, clock, look
        self._limit_seconds = START_SECONDS
        self._awaited = True
        """Whether an answer is due: to the first line at the beginning, then to a question."""
        self._silent_seconds = 0.0
        self._beat_at = clock()
        self._processor_seconds = look(pid).processor_seconds

    @property
    def limit_seconds(self) -> float:
        """Time in which the sidecar has to answer."""
        return self._limit_seconds

    @property
    def hung(self) -> bool:
        return self._silent_seconds >= self._limit_seconds

    @property
    def doubtful(self) -> bool:
        """Whether the sidecar has been silent for so long that nothing more should wait for it."""
        return self._silent_seconds >= DOUBTFUL_RATIO * self._limit_seconds

    def hear(self) -> None:
        """Note that a message came from the sidecar; any message shows that it lives."""
        self._awaited, self._silent_seconds, self._limit_seconds = False, 0.0, HUNG_SECONDS

    def beat(self, ask: Callable[[], None]) -> None:
        """Count the time since the last beat, or call `ask` where no answer is due."""
        now = self._clock()
        passed, self._beat_at = now - self._beat_at, now
        state, processor_seconds = self._look(self._pid)
        worked, self._processor_seconds = processor_seconds - self._processor_seconds, processor_seconds
        if not self._awaited:
            self._awaited = True
            ask()
        elif passed > STOOD_STILL_SECONDS:
            self._silent_seconds = 0.0
        elif state != "t":
            self._silent_seconds += min(passed, worked) if state == "R" else passed
