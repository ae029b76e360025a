"""Work beside the steps: in order, on a thread of its own that lets the others go first.

Whoever needs what it comes to waits for it, so results do not depend on how fast it is.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

BEHIND_LIMIT = 4
"""Pieces of work that may wait. What they need stays in memory as long."""

LOWEST = 19
"""Niceness of a thread that runs when no other wants to."""


class Beside:
    """Work for one thread. The training thread alone gives it any, and waits for it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._behind: deque[Future[None]] = deque()

    def do(self, work: Callable[[], None]) -> None:
        """Have a piece of work done. Waits where too much is behind; raises what an earlier piece raised."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(
                1, thread_name_prefix=self._name, initializer=give_way, initargs=(LOWEST,)
            )
        self._behind.append(self._thread.submit(work))
        while self._behind and (len(self._behind) > BEHIND_LIMIT or self._behind[0].done()):
            self._behind.popleft().result()

    def settle(self) -> None:
        """Return when all of it is done. Raises what it raised."""
        while self._behind:
            self._behind.popleft().result()

    def close(self) -> None:
        """Stop the thread, whatever became of its work."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


def give_way(niceness: int) -> None:
    """Let other threads go before the one that calls, which is never made less nice than it is: on Linux each has a priority of
    its own."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))
