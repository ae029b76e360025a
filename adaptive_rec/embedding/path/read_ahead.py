"""The path of a CPU run whose tables are larger than memory: hot rows in memory, cold rows on a disk.

The cold rows of a batch are read as soon as it is classified, some batches ahead of its step, by a thread of their own. Its step
reads and updates them in the batch's own memory, and appends those that have changed to the log. A row that changed after it was
read ahead has another stamp by then, and is read again: from memory, as the log keeps its last segments there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.cold.lazy_hot import LazyHotRows
from adaptive_rec.embedding.cold.log import CHUNK_ROWS, OnLog
from adaptive_rec.embedding.disk.cold_rows import ColdPool, ColdRows
from adaptive_rec.embedding.host import Arrays
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.missed_steps import MissedSteps
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.path.cpu import CpuPath
from adaptive_rec.embedding.records import RowUpdate
from adaptive_rec.kernels.row_update import TierArrays
from adaptive_rec.placement import COLD


class ReadAheadPath(CpuPath):
    """Cold rows are read into the memory of each batch, and written back from there."""

    stages_ahead = True
    _hot: LazyHotRows
    _cold: OnLog

    def __init__(self, index: RowIndex, rules: Sequence[RowRule], hot: LazyHotRows, cold: OnLog, seed: int) -> None:
        super().__init__(index, rules, hot, cold, seed)
        self._reader: ThreadPoolExecutor | None = None

    def stage(self, work: ClassifiedBatch) -> None:
        """Start to read a batch's rows that are not in memory."""
        self._cold.count_read(self._read_later(work), again=False)

    def look_ahead(self, work: ClassifiedBatch) -> None:
        self._read_later(work)

    def _read_later(self, work: ClassifiedBatch) -> int:
        """Have a batch's rows read that are not in memory. Returns how many they are."""
        read, count = self._prepare(work)
        rows: ColdRows = work.staged
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="read-rows")
        rows.read_by(self._reader.submit(read))
        return count

    def _prepare(self, work: ClassifiedBatch) -> tuple[Callable[[], None], int]:
        """Classify a batch where it is not, and make room for its rows. Returns what reads those that are not in memory, and how
        many they are."""
        self.classify(work)
        spans = [work.pool_range(pool) for pool in range(len(self._index.space.pools))]
        rows = ColdRows([self._cold.types.room_for(pool, span.stop - span.start) for pool, span in enumerate(spans)])
        for pool, (part, span) in enumerate(zip(rows.pools, spans, strict=True)):
            part.set_absent(np.flatnonzero(self._hot.absent(pool, work.source_U[span])))
        rows.end_looking(work.placement_version)
        row_U = work.distinct_U

        def read() -> None:
            for pool, (part, span) in enumerate(zip(rows.pools, spans, strict=True)):
                self._read(pool, row_U[span], part.absent_C, part)

        work.attach(rows)
        return read, sum(len(part.absent_C) for part in rows.pools)

    def look_up(self, work: ClassifiedBatch) -> None:
        self.take(work)

    def take(self, work: ClassifiedBatch) -> None:
        if work.staged is None:
            read, _ = self._prepare(work)
            read()
        rows: ColdRows = work.staged
        if rows.ready_at != self._moment:
            self._make_ready(work)

    def await_rows(self, work: ClassifiedBatch) -> None:
        self._make_ready(work)

    def _make_ready(self, work: ClassifiedBatch) -> None:
        """Wait for a batch's rows, read what has changed since it was read, or has left memory, and fill the empty slots of its
        rows."""
        rows: ColdRows = work.staged
        rows.wait()
        self.classify(work)
        for pool, part in enumerate(rows.pools):
            span = work.pool_range(pool)
            row_U, source_U = work.distinct_U[span], work.source_U[span]
            may_be = part.absent_C if rows.looked_at == self._index.placement.version else np.arange(len(source_U))
            absent = part.set_absent(may_be[self._hot.absent(pool, source_U[may_be])])
            stamp_C = self._cold.types.logs[pool].stamps(self._index.host_rows(pool, row_U[absent]))
            missing = absent[~part.read_U[absent] | (part.stamp_U[absent] != stamp_C)]
            self._read(pool, row_U, missing, part)
            self._cold.count_read(len(missing), again=True)
            is_hot = source_U[absent] >= 0
            slots, lines = source_U[absent[is_hot]], absent[is_hot]
            for hot, read in zip(self._hot.tier.arrays(pool), part.arrays, strict=True):
                hot[slots] = read[lines]
            self._hot.fill(pool, slots, row_U[lines])
            source_U[absent[~is_hot]] = ~absent[~is_hot]
        rows.end_looking(self._index.placement.version)
        work.spread_sources()
        work.forget_placement()  # its sources are places in its own memory now
        rows.end_reading(self._moment)

    @property
    def _moment(self) -> tuple[int, int]:
        """What changes when rows move or are written."""
        return self._index.placement.version, self._cold.types.appends

    def _read(self, pool: int, row_U: NDArray[np.int64], some: NDArray[np.int64], part: ColdPool) -> None:
        """Read some of a batch's rows in a pool."""
        if len(some):
            part.stamp_U[some] = self._cold.types.read(pool, self._index.host_rows(pool, row_U[some]), some, *part.arrays)
            part.read_U[some] = True

    def cold_arrays(self, work: ClassifiedBatch, pool: int) -> Arrays:
        rows: ColdRows = work.staged
        return rows.pools[pool].arrays

    def apply(self, work: ClassifiedBatch, update: RowUpdate) -> None:
        cold_U = work.source_U < 0
        if update.may_skip_rows:
            updated_U = self._apply_flagged(work, update, cold_U)
        else:
            super().apply(work, update)
            updated_U = cold_U
        for pool in range(len(self._index.space.pools)):
            span = work.pool_range(pool)
            lines = np.flatnonzero(updated_U[span])
            rows = self._index.host_rows(pool, work.distinct_U[span][lines])
            self._cold.types.append(pool, rows, lines, *self.cold_arrays(work, pool))
        work.attach(None)

    def _apply_flagged(self, work: ClassifiedBatch, update: RowUpdate, cold_U: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Update the rows of a batch. Returns which of the cold ones were updated, by the flags of changed rows."""
        row_C = work.distinct_U[cold_U]
        before_C = self._index.changed_R[row_C]
        self._index.changed_R[row_C] = False
        super().apply(work, update)
        updated_U, updated_C = cold_U.copy(), self._index.changed_R[row_C]
        self._index.changed_R[row_C] |= before_C
        updated_U[cold_U] = updated_C
        return updated_U

    def catch_up(self, pool: int, row_N: NDArray[np.int64], missed: MissedSteps, next_step: int = 0) -> None:
        spec, rows, log = self._index.space.pools[pool], np.unique(row_N), self._cold.types
        slot_R = self._index.slots_of_pool(pool)
        is_absent = self._hot.absent(pool, slot_R[rows])
        hot, absent = rows[~is_absent], rows[is_absent]
        missed.make(hot, slot_R, next_step, TierArrays(*self._hot.tier.arrays(pool), *self._cold.arrays(pool)))
        self._index.changed_R[spec.first_row + hot] = True
        for first in range(0, len(absent), CHUNK_ROWS):
            some = absent[first : first + CHUNK_ROWS]
            part, lines = log.room_for(pool, len(some)), np.arange(len(some))
            log.read(pool, some, lines, *part.arrays)
            before_C = part.state_UK[:, -1].copy()  # the number of the last step that a row has had
            missed.make(lines, np.full(len(some), COLD), next_step, TierArrays(*self._hot.tier.arrays(pool), *part.arrays))
            moved = np.flatnonzero(part.state_UK[:, -1] != before_C)
            log.append(pool, some[moved], moved, *part.arrays)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.shutdown(wait=True)
            self._reader = None  # an evaluation may follow
        super().close()
