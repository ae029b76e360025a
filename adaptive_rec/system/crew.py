"""Threads that share work over rows; beside OpenMP's, which only the training thread may use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TypeVar

import numpy as np

from adaptive_rec.system.background import give_way

T = TypeVar("T")


class Crew:
    """Threads that share work over rows where this is worth it. Any thread may give them work, which may not give them more."""

    def __init__(self, threads: int, niceness: int = 0) -> None:
        self._threads = threads
        self._niceness = niceness
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def _workers(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(
                    self._threads, thread_name_prefix="rows", initializer=give_way, initargs=(self._niceness,)
                )
            return self._pool

    def share(self, work: Callable[[int, int], object], rows: int, least: int) -> None:
        """Call ``work(first, end)`` for parts of at least `least` rows that together are all of them, and wait."""
        parts = min(self._threads, rows // max(1, least))
        if parts < 2:
            work(0, rows)
            return
        bounds = np.linspace(0, rows, parts + 1).astype(np.int64).tolist()
        jobs = [self._workers().submit(work, first, end) for first, end in pairwise(bounds)]
        for job in jobs:
            job.result()

    def start(self, work: Callable[[], T], rows: int, least: int) -> Callable[[], T]:
        """Begin work on rows beside the caller's, if there are threads for it and at least `least` rows. Returns a function that
        waits for its result, or does the work when it is first called."""
        return cache(work) if self._threads < 2 or rows < least else self._workers().submit(work).result

    def close(self) -> None:
        """End the threads. Later work starts others."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
