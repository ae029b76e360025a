"""Cold rows of a device run, as they leave the host for the device and come back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.host import Arrays, HostTier
from adaptive_rec.kernels import staging

_CHUNK_BYTES = 1 << 20
"""Least size of a thread's share of a copy."""

T = TypeVar("T")


class HostRows(Protocol):
    """Where cold rows are read and written. `packed` are weights and optimizer state that lie side by side (C). The staging
    worker reads while the homing thread writes; a row that an earlier flight still holds is forwarded, whatever is read here."""

    def read(self, pool: int, rows_C: NDArray[np.int64], packed: Arrays) -> int:
        """Copy rows, by their numbers within the pool, into `packed`. Returns how many were not in host memory."""

    def write(self, pool: int, rows_C: NDArray[np.int64], packed: Arrays, changed_C: NDArray[np.bool_] | None) -> None:
        """Copy `packed` to rows, by their numbers within the pool; `changed_C`: which have changed since they were read (None:
        all)."""


class Crew:
    """Threads that share work over rows where this is worth it. Any thread may give them work, which may not give them more."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def _workers(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="rows")
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


class RowCopier:
    """Copies rows and their optimizer state out of and into a pool's arrays."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def gather(self, arrays: Arrays, rows_C: NDArray[np.int64], packed: Arrays) -> None:
        self._share(staging.gather_rows, arrays, rows_C, packed)

    def scatter(self, arrays: Arrays, rows_C: NDArray[np.int64], packed: Arrays) -> None:
        self._share(staging.scatter_rows, arrays, rows_C, packed)

    def _share(self, kernel: Any, arrays: Arrays, rows_C: NDArray[np.int64], packed: Arrays) -> None:
        weights_CD, state_CK = packed

        def copy(first: int, end: int) -> None:
            kernel(*arrays, rows_C[first:end], weights_CD[first:end], state_CK[first:end])

        self._crew.share(copy, len(rows_C), _CHUNK_BYTES * len(rows_C) // max(1, weights_CD.nbytes + state_CK.nbytes))


class RowsInMemory:
    """Cold rows that are all in host memory."""

    def __init__(self, host: HostTier, copier: RowCopier) -> None:
        self._host, self._copier = host, copier

    def read(self, pool: int, rows_C: NDArray[np.int64], packed: Arrays) -> int:
        self._copier.gather(self._host.arrays(pool), rows_C, packed)
        return 0

    def write(self, pool: int, rows_C: NDArray[np.int64], packed: Arrays, changed_C: NDArray[np.bool_] | None) -> None:
        self._host.keep(pool, rows_C)
        self._copier.scatter(self._host.arrays(pool), rows_C, packed)
