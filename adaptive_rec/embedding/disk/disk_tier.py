"""The cold tier of a run whose rows lie on a disk: a log for each pool, and one thread that writes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from adaptive_rec.embedding.disk.cold_rows import ColdPool
from adaptive_rec.embedding.disk.compaction import compact
from adaptive_rec.embedding.disk.row_log import MOST_WAITING, RowLog
from adaptive_rec.embedding.disk.saved_segments import NOWHERE, SavedLog, SavedPool, SegmentEntry, pool_folder
from adaptive_rec.embedding.disk.segment import Segment, disk_errors
from adaptive_rec.embedding.first_values import FreshRows
from adaptive_rec.embedding.host import Arrays, ColdTier
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.background import LOWEST, give_way
from adaptive_rec.system.durable import sync_folder


class DiskTier(ColdTier):
    """Rows on a disk. A row that was never written has its first value, which is drawn when it is read."""

    def __init__(
        self, space: RowSpace, rule: RowRule | Sequence[RowRule], dtype: DTypeLike, folder: Path, first: FreshRows
    ) -> None:
        """`dtype` is as in `ColdTier`; `folder` must exist."""
        super().__init__(space, rule, dtype, [0] * len(space.pools))  # without rows they show the types of all
        self.folder = folder
        self._space, self._first = space, first
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write-rows")
        self._is_closed = False
        self.appends = 0
        """How often rows were appended."""
        self._compactor = ThreadPoolExecutor(
            1, thread_name_prefix="compact-rows", initializer=give_way, initargs=(LOWEST,)
        )
        self._compacting: Future[None] | None = None
        self._moved: deque[NDArray[np.int64]] = deque()
        self._waiting: deque[Future[None]] = deque()
        self._counting = threading.Lock()
        """Held while the work under way is looked at: any thread may append."""
        self.logs: list[RowLog] = []
        for pool, (weights, state) in enumerate(zip(self.weights, self.state, strict=True)):
            of_pool = pool_folder(folder, pool)
            with disk_errors("creation", of_pool):
                of_pool.mkdir(exist_ok=True)
            row_bytes, state_bytes = (each.shape[1] * each.itemsize for each in (weights, state))
            rows = space.pools[pool].rows
            self.logs.append(RowLog(of_pool, rows, row_bytes, state_bytes, self._write_later, self._compact_later))

    def room_for(self, pool: int, rows: int) -> ColdPool:
        """Return memory for some rows of a pool, none of them read yet."""
        weights, state = (np.empty((rows, like.shape[1]), like.dtype) for like in self.arrays(pool))
        return ColdPool(weights, state, np.zeros(rows, np.int64), np.zeros(rows, np.bool_))

    def read(
        self,
        pool: int,
        row_C: NDArray[np.int64],
        line_C: NDArray[np.int64],
        weights_LD: NDArray[Any],
        state_LK: NDArray[Any],
    ) -> NDArray[np.int64]:
        """Read rows, by their numbers within the pool, into lines of two arrays. Returns their stamps."""
        stamp_C = self.logs[pool].read(row_C, line_C, weights_LD, state_LK)
        fresh = stamp_C == NOWHERE
        if fresh.any():
            self._draw(pool, row_C[fresh], line_C[fresh], weights_LD, state_LK)
        return stamp_C

    def read_in_memory(
        self, pool: int, row_C: NDArray[np.int64], line_C: NDArray[np.int64], arrays: Arrays
    ) -> NDArray[np.bool_]:
        """Read those rows that need no disk, as `read` does. Returns which they are."""
        return self.logs[pool].read_in_memory(row_C, line_C, *arrays)

    def append(
        self,
        pool: int,
        row_C: NDArray[np.int64],
        line_C: NDArray[np.int64],
        weights_LD: NDArray[Any],
        state_LK: NDArray[Any],
    ) -> None:
        """Write lines of two arrays as the newest values of some rows. Raises DiskError."""
        if not len(row_C):
            return
        log, compacting = self.logs[pool], self._compacting
        if compacting is not None and not log.has_room(len(row_C)) and log.segments.are_bloated:
            compacting.result()
        log.append(row_C, line_C, weights_LD, state_LK)
        self.appends += 1

    def flush(self) -> None:
        """Wait until all that was handed to the writing thread is written. Raises DiskError where some was not."""
        while (writing := self._oldest_writing(0)) is not None:
            writing.result()
        self._check_compaction()

    def hold_live(self) -> list[list[Segment]]:
        """Keep, for each pool, the segments that have newest values, until they are released."""
        return [log.segments.hold_live() for log in self.logs]

    def sync(self, held: list[list[Segment]]) -> list[list[Segment]]:
        """Have all that was appended so far on the disk, by any thread. Returns for each pool the segments that have newest
        values and those `held`; all of them are kept until they are released. Raises DiskError."""
        synced = [log.sync(segments) for log, segments in zip(self.logs, held, strict=True)]
        for folder in (self.folder, self.folder.parent):
            with disk_errors("sync", folder):
                sync_folder(folder)
        return synced

    def release(self, segments: list[list[SegmentEntry]]) -> None:
        """Let go of segments that a checkpoint no longer needs."""
        for log, entries in zip(self.logs, segments, strict=True):
            log.segments.release(entries)

    def take_moved(self) -> NDArray[np.int64]:
        """Return rows that compaction has moved since the last call, and maybe others, by their joint numbers."""
        moved = []
        while self._moved:
            moved.append(self._moved.popleft())
        return np.concatenate(moved) if moved else np.empty(0, dtype=np.int64)

    def saved(self, segments: list[list[SegmentEntry]] | None = None) -> SavedLog:
        """Return what a checkpoint says of the rows, which are in these segments of each pool."""
        pools = tuple(
            SavedPool(
                spec.first_row, spec.rows, *self.arrays(pool), log.layout.page_bytes, log.layout.rows, log.segment_pages,
                tuple(segments[pool] if segments else ()),
            )
            for pool, (spec, log) in enumerate(zip(self._space.pools, self.logs, strict=True))
        )  # fmt: skip
        return SavedLog(self.folder, pools)

    def fits(self, saved: SavedLog) -> bool:
        """Return whether the rows of a checkpoint can be taken over: they are in this folder, and in the same pools."""
        mine, theirs = (list(map(_shape, pools)) for pools in (self.saved().pools, saved.pools))
        return saved.folder.resolve() == self.folder.resolve() and mine == theirs

    def adopt(self, saved: SavedLog, index: Iterable[tuple[NDArray[np.int64], NDArray[np.uint32]]]) -> None:
        """Take over the rows of a checkpoint that `fits`. `index` yields rows, by their joint numbers, and their addresses; later
        ones replace earlier ones. Raises DiskError."""
        for log, pool in zip(self.logs, saved.pools, strict=True):
            log.adopt(pool)
        for rows, address_C in index:
            for log, spec in zip(self.logs, self._space.pools, strict=True):
                some = spec.contains(rows)
                log.set_addresses(rows[some] - spec.first_row, address_C[some])
        for log in self.logs:
            log.count_rows()

    def sizes(self) -> tuple[int, int]:
        """Return the number of segments of all pools, each a file, and the bytes of all files."""
        counts, sizes = zip(*(log.segments.sizes for log in self.logs), strict=True)
        return sum(counts), sum(sizes)

    def close(self) -> None:
        """Stop the writing thread: from now on the calling thread writes."""
        self._is_closed = True
        self._compactor.shutdown(wait=True)
        self._writer.shutdown(wait=True)

    def _write_later(self, work: Callable[[], None]) -> None:
        if self._is_closed:
            work()
            return
        while (writing := self._oldest_writing(MOST_WAITING)) is not None:
            writing.result()
        with self._counting:
            self._waiting.append(self._writer.submit(work))

    def _oldest_writing(self, most: int) -> Future[None] | None:
        """Take out the oldest work of the writing thread, if that is done or there are more than `most`."""
        with self._counting:
            if self._waiting and (len(self._waiting) > most or self._waiting[0].done()):
                return self._waiting.popleft()
        return None

    def _compact_later(self) -> None:
        """Have sparse segments compacted, unless that goes on already."""
        self._check_compaction()
        with self._counting:
            if self._compacting is None and not self._is_closed:
                self._compacting = self._compactor.submit(self._compact)

    def _compact(self) -> None:
        for pool, log in enumerate(self.logs):
            compact(log, lambda: not self._is_closed, partial(self._note_moved, pool))

    def _note_moved(self, pool: int, rows: NDArray[np.int64]) -> None:
        self._moved.append(rows + self._space.pools[pool].first_row)

    def _check_compaction(self) -> None:
        """Raise what compaction has raised."""
        with self._counting:
            ended = self._compacting
            if ended is None or not ended.done():
                return
            self._compacting = None
        ended.result()

    def _draw(
        self,
        pool: int,
        row_C: NDArray[np.int64],
        line_C: NDArray[np.int64],
        weights_LD: NDArray[Any],
        state_LK: NDArray[Any],
    ) -> None:
        """Draw the first values of some rows."""
        rows = row_C + self._space.pools[pool].first_row
        table_C = self._space.table_of(rows)
        for table in np.unique(table_C).tolist():
            some = table_C == table
            where = rows[some] - self._space.table_first_row[table], line_C[some]
            self._first.draw(table, *where, weights_LD, state_LK)


def _shape(pool: SavedPool) -> tuple[Any, ...]:
    """Return what must be the same in a run that takes over the segments of a pool."""
    return pool.first_row, pool.rows, pool.weights.shape, pool.weights.dtype, pool.state.shape, pool.state.dtype
