"""Work in the background of the steps: in order, on one thread that lets the other threads run first.

Code that needs a result waits for it, so results do not depend on how fast the thread is.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

BEHIND_LIMIT = 4
"""Pieces of work that may wait. The data they need stays in memory as long."""

LOWEST = 19
"""Niceness of a thread that runs only when no other thread wants to."""


class BackgroundThread:
    """One thread and its queue of work. Only the training thread adds work, and waits for it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._behind: deque[Future[None]] = deque()

    def do(self, work: Callable[[], None]) -> None:
        """Queue a piece of work. Waits where too much is queued; raises the error of an earlier piece."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(
                1, thread_name_prefix=self._name, initializer=give_way, initargs=(LOWEST,)
            )
        self._behind.append(self._thread.submit(work))
        while self._behind and (len(self._behind) > BEHIND_LIMIT or self._behind[0].done()):
            self._behind.popleft().result()

    def settle(self) -> None:
        """Return when all of the work is done. Raises its errors."""
        while self._behind:
            self._behind.popleft().result()

    def close(self) -> None:
        """Stop the thread; errors of its work are ignored."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


def give_way(niceness: int) -> None:
    """Raise the niceness of the calling thread, never lower it. On Linux each thread has its own priority."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))
