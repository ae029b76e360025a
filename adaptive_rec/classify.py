"""A batch made ready for the step: its distinct rows, where each of them is, and which samples are popular."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, check_ids, check_shapes
from adaptive_rec.kernels import cpu
from adaptive_rec.placement import Placement, RowSpace


def expand_ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """All numbers of the ranges ``[start, start + length)``, one range after the other."""
    return np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())


class ClassifiedBatch:
    """Distinct rows, inverse and segments are found once and serve gather, update and tracking.

    They do not depend on the placement; `source_U` and `popular_B` do, and are found again when it has changed.
    """

    def __init__(self, batch: Batch, space: RowSpace) -> None:
        self.batch = batch
        self.space = space
        check_shapes(batch, len(space.features))
        lookups = batch.lookups
        size = 1 << max(4, (2 * lookups - 1).bit_length())
        distinct_N = np.empty(lookups, dtype=np.int64)
        segments_N1 = np.zeros(lookups + 1, dtype=np.int64)
        self.inverse_N = np.empty(lookups, dtype=np.int32)
        self.segment_bag_N = np.empty(lookups, dtype=np.int32)
        self.pool_ends = np.zeros(len(space.pools), dtype=np.int64)
        self.hash_keys: NDArray[np.int64] = np.full(size, -1, dtype=np.int64)
        self.hash_values: NDArray[np.int32] = np.empty(size, dtype=np.int32)
        """Table from row to number of the distinct row, as `cpu.find_distinct` leaves it."""
        distinct = cpu.find_distinct(
            batch.ids_N,
            batch.offsets,
            space.feature_order,
            space.pool_of_feature,
            space.feature_first_row,
            space.rows_F,
            self.hash_keys,
            self.hash_values,
            distinct_N,
            self.inverse_N,
            segments_N1,
            self.segment_bag_N,
            self.pool_ends,
        )
        if distinct < 0:
            check_ids(batch, space.tables, space.features)
        np.maximum.accumulate(self.pool_ends, out=self.pool_ends)  # a pool that no feature reads ends where it begins
        self.distinct_U: NDArray[np.int64] = distinct_N[:distinct]
        self.segments_U1: NDArray[np.int64] = segments_N1[: distinct + 1]
        self.source_U: NDArray[np.int64] = np.empty(distinct, dtype=np.int64)
        """Slot of a hot row, ``~row`` of a cold one (row within its pool)."""
        self.popular_B: NDArray[np.bool_] = np.empty(batch.size, dtype=np.bool_)
        self.lookups_F: NDArray[np.int64] = np.zeros(len(space.features), dtype=np.int64)
        """Lookups of each feature."""
        self.hot_lookups_F: NDArray[np.int64] = np.zeros(len(space.features), dtype=np.int64)
        self.placement_version = -1
        self.staged: Any = None
        """What a store keeps with a batch whose cold rows it has sent ahead."""

    def classify(self, placement: Placement) -> None:
        """Find the source of every distinct row under a placement. Safe on any thread: the version is read first."""
        version, slot_of_row = placement.version, placement.slot_of_row
        cpu.classify(
            self.distinct_U,
            self.pool_ends,
            self.space.pool_first_row,
            slot_of_row,
            self.inverse_N,
            self.batch.offsets,
            len(self.space.features),
            self.source_U,
            self.popular_B,
        )
        cpu.count_by_feature(
            self.source_U,
            self.inverse_N,
            self.batch.offsets,
            len(self.space.features),
            self.lookups_F,
            self.hot_lookups_F,
        )
        self.placement_version = version

    @property
    def hot_U(self) -> NDArray[np.bool_]:
        return self.source_U >= 0

    @property
    def counts_U(self) -> NDArray[np.int64]:
        """Lookups of each distinct row."""
        return np.diff(self.segments_U1)

    def pool_range(self, pool: int) -> slice:
        """The distinct rows of one pool."""
        return slice(int(self.pool_ends[pool - 1]) if pool else 0, int(self.pool_ends[pool]))

    def count_flagged(self, flag_U: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Lookups of each sample whose distinct row is flagged."""
        count_B = np.empty(self.batch.size, dtype=np.int64)
        features = len(self.space.features)
        cpu.count_flagged(flag_U, self.inverse_N, self.batch.offsets, features, count_B)
        return count_B

    @property
    def lookups_B(self) -> NDArray[np.int64]:
        """Lookups of each sample."""
        return np.diff(self.batch.offsets[:: len(self.space.features)])
