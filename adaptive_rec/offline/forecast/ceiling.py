"""The ceiling of hot lookups: the share of each window's lookups that its best rows catch, if they were known in advance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.placement import RowSpace
from adaptive_rec.tracking.popularity import sort_distinct


class Ceiling:
    """Exact counts of a window, and the lookups that the rows with the most lookups per byte catch at each budget.

    All pools share a budget, in the proportion that is best by the counts. No placement that changes only at the ends of windows
    catches more; one that changes more often may, and so may a policy that arranges the stream.
    """

    def __init__(self, space: RowSpace, row_bytes: list[int], budgets: list[int], window_steps: int) -> None:
        self._counts_R = np.zeros(space.rows, dtype=np.int32)
        self._bytes_P = np.array(row_bytes, dtype=np.int64)
        self._pool_end = np.array([pool.end_row for pool in space.pools], dtype=np.int64)
        self._budgets = np.array(budgets, dtype=np.int64)
        self._window_steps = window_steps
        self._steps = 0
        self._touched: list[NDArray[np.int64]] = []
        self.lookups = 0
        self.caught = np.zeros(len(budgets), dtype=np.int64)
        """Lookups caught at each budget in the windows that ended."""

    def step(self, work: ClassifiedBatch) -> None:
        """Count one batch."""
        self._counts_R[work.distinct_U] += np.diff(work.segments_U1).astype(np.int32)
        self._touched.append(work.distinct_U)
        self.lookups += work.batch.lookups
        self._steps += 1
        if self._steps % self._window_steps == 0:
            self.end_window()

    def end_window(self) -> None:
        """Score the steps since the last window ended; called once more at the end of the stream."""
        if not self._touched:
            return
        rows = sort_distinct(np.concatenate(self._touched))
        self._touched.clear()
        counts = self._counts_R[rows]
        self._counts_R[rows] = 0
        bytes_of = self._bytes_P[np.searchsorted(self._pool_end, rows, side="right")]
        best = np.argsort(-counts / bytes_of, kind="stable")
        filled = np.cumsum(bytes_of[best])
        caught = np.concatenate([[0], np.cumsum(counts[best], dtype=np.int64)])
        self.caught += caught[np.searchsorted(filled, self._budgets, side="right")]
