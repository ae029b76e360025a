"""The cold tier of a run whose rows lie on a disk: a log for each pool, and one thread that writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from adaptive_rec.embedding.disk.cold_rows import PoolRows
from adaptive_rec.embedding.disk.row_log import NOWHERE, RowLog
from adaptive_rec.embedding.disk.segment import SegmentEntry
from adaptive_rec.embedding.host import Arrays, first_bound
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.kernels.fill import fill_rows
from adaptive_rec.kernels.rows16 import PATTERNS
from adaptive_rec.placement import RowSpace

_MOST_WAITING = 8
"""Limit of segments that wait to be written; training then waits for the disk."""


class DiskTier:
    """Rows on a disk. A row that was never written has its first value, which is drawn when it is read."""

    def __init__(self, space: RowSpace, rule: RowRule, seed: int, dtype: DTypeLike, folder: Path) -> None:
        """`dtype` is as in `HostTier`; `folder` must exist and be empty."""
        self.dtype = np.dtype(dtype)
        kept = PATTERNS.get(rule.row_precision, self.dtype)
        self.weights = [np.empty((0, pool.dim), kept) for pool in space.pools]
        self.state = [np.empty((0, rule.state_width(pool.dim)), self.dtype) for pool in space.pools]
        """No rows: these show the types of all."""
        self._space, self._seed = space, seed
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write-rows")
        self._waiting: deque[Future[None]] = deque()
        self.logs: list[RowLog] = []
        for pool, (weights, state) in enumerate(zip(self.weights, self.state, strict=True)):
            of_pool = folder / f"pool-{pool}"
            of_pool.mkdir()
            sizes = (each.shape[1] * each.itemsize for each in (weights, state))
            self.logs.append(RowLog(of_pool, space.pools[pool].rows, *sizes, self._write_later))
        self._tables = [self._tables_of(pool) for pool in range(len(space.pools))]

    def arrays(self, pool: int) -> Arrays:
        """Return arrays of a pool's types, without rows."""
        return self.weights[pool], self.state[pool]

    def room_for(self, pool: int, rows: int) -> PoolRows:
        """Return memory for some rows of a pool, none of them read yet."""
        weights, state = (np.empty((rows, like.shape[1]), like.dtype) for like in self.arrays(pool))
        return PoolRows(weights, state, np.zeros(rows, np.uint32), np.zeros(rows, np.bool_))

    def read(
        self, pool: int, row_C: NDArray[np.int64], line_C: NDArray[np.int64], weights_LD: NDArray[Any], state_LK: NDArray[Any]
    ) -> NDArray[np.uint32]:
        """Read rows, by their numbers within the pool, into lines of two arrays. Returns their addresses."""
        address_C = self.logs[pool].read(row_C, line_C, weights_LD, state_LK)
        fresh = address_C == NOWHERE
        if fresh.any():
            self._draw(pool, row_C[fresh], line_C[fresh], weights_LD, state_LK)
        return address_C

    def append(
        self, pool: int, row_C: NDArray[np.int64], line_C: NDArray[np.int64], weights_LD: NDArray[Any], state_LK: NDArray[Any]
    ) -> None:
        """Write lines of two arrays as the newest values of some rows."""
        if len(row_C):
            self.logs[pool].append(row_C, line_C, weights_LD, state_LK)

    def flush(self) -> None:
        """Wait until all that was handed to the writing thread is written. Raises DiskError where some was not."""
        while self._waiting:
            self._waiting.popleft().result()

    def sync(self) -> list[list[SegmentEntry]]:
        """Have all that was appended so far on the disk, by any thread. Returns for each pool the segments that have the newest
        values, which are kept until they are released. Raises DiskError."""
        return [log.sync() for log in self.logs]

    def release(self, segments: list[list[SegmentEntry]]) -> None:
        """Let go of segments that a checkpoint no longer needs."""
        for log, entries in zip(self.logs, segments, strict=True):
            log.release(entries)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(log.size_bytes for log in self.logs)

    def close(self) -> None:
        """Stop writing and close the files."""
        self._writer.shutdown(wait=True)
        for log in self.logs:
            log.close()

    def _write_later(self, work: Callable[[], None]) -> None:
        while self._waiting and (len(self._waiting) > _MOST_WAITING or self._waiting[0].done()):
            self._waiting.popleft().result()
        self._waiting.append(self._writer.submit(work))

    def _tables_of(self, pool: int) -> tuple[NDArray[np.int64], list[int]]:
        """Return the first row of each table of a pool within it, in order, and the tables."""
        spec = self._space.pools[pool]
        tables = [table for table, row in enumerate(self._space.table_first_row) if spec.first_row <= row < spec.end_row]
        tables.sort(key=lambda table: int(self._space.table_first_row[table]))
        return self._space.table_first_row[tables] - spec.first_row, tables

    def _draw(
        self, pool: int, row_C: NDArray[np.int64], line_C: NDArray[np.int64], weights_LD: NDArray[Any], state_LK: NDArray[Any]
    ) -> None:
        """Draw the first values of some rows."""
        firsts, tables = self._tables[pool]
        state_LK[line_C] = 0
        place_C = np.searchsorted(firsts, row_C, side="right") - 1
        for place in np.unique(place_C).tolist():
            some, table = place_C == place, tables[place]
            drawn = np.empty((int(np.count_nonzero(some)), weights_LD.shape[1]), dtype=weights_LD.dtype)
            bound = first_bound(self._space.tables[table].rows)
            fill_rows(np.uint64(self._seed % 2**64), table, bound, row_C[some] - firsts[place], drawn)
            weights_LD[line_C[some]] = drawn
