"""A clock for upper bounds in tests, which stands still while other processes keep those of a test waiting for a processor.

Upper bounds of seconds on the wall fail on a machine that is busy elsewhere, however generous they are. Linux counts, for each
thread, how long it was ready to run and did not (`schedstat`). Where nothing is counted, the clock is that of the wall.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from typing import Any


class Stopwatch:
    """Seconds since it was made, without those for which threads of this process and of some others waited for a processor."""

    def __init__(self, *others: int) -> None:
        self._processes = (os.getpid(), *others)
        self._before: dict[tuple[int, int], int] = {}
        self._waited: dict[tuple[int, int], int] = {}
        self._began = time.monotonic()  # before the look, and below after it: a wait beside a look is not left out
        self._look(self._before)

    @property
    def seconds(self) -> float:
        """Look again, as what a thread has waited is not known any more when it has ended."""
        self._look(self._waited)
        waited = sum(max(waited - self._before.get(who, 0), 0) for who, waited in self._waited.items()) / 1e9
        return time.monotonic() - self._began - waited

    def include(self, process: int) -> None:
        """Leave out, too, what the threads of a process that has just begun wait for a processor."""
        self._processes = (*self._processes, process)

    def wait(self, process: Any, timeout: float = 60) -> int:
        """Return the exit code of one of the processes, looked at until it ends."""
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(0.02)
            if self.seconds > timeout:
                raise subprocess.TimeoutExpired(process.pid, timeout)

    def _look(self, found: dict[tuple[int, int], int]) -> None:
        for process in self._processes:
            with suppress(OSError):
                for thread in os.listdir(f"/proc/{process}/task"):
                    with suppress(OSError), open(f"/proc/{process}/task/{thread}/schedstat") as line:
                        found[process, int(thread)] = int(line.read().split()[1])
