"""Classified batches: a batch's distinct rows, the tier of each of them, and the popular samples."""

from __future__ import annotations

import math
import threading
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, check_ids, check_shapes, is_one_each
from adaptive_rec.kernels import classify as kernels
from adaptive_rec.kernels.jit import worth_waking
from adaptive_rec.placement import Placement, RowSpace


def expand_ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return all numbers of the ranges ``[start, start + length)``, one range after the other."""
    return np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())


class _Scratch(threading.local):
    """Memory of a thread, reused for each of its batches."""

    def __init__(self) -> None:
        self._kept: dict[str, NDArray[Any]] = {}

    def take(self, name: str, dtype: type, *shape: int) -> NDArray[Any]:
        """Return an array with arbitrary contents."""
        size = math.prod(shape)
        kept = self._kept.get(name)
        if kept is None or len(kept) < size:
            kept = self._kept[name] = np.empty(size, dtype=dtype)
        return kept[:size].reshape(shape)


_scratch = _Scratch()


class ClassifiedBatch:
    """A batch with its distinct rows, inverse and segments, found once for gather, update and tracking.

    These do not depend on the placement. `source_U` and `popular_B` do; they are found again when it has changed.
    """

    def __init__(self, batch: Batch, space: RowSpace, threads: int = 1) -> None:
        """Only the training thread may use more than one thread (OpenMP)."""
        self.batch = batch
        self.space = space
        reads = batch.reads or space.reads(batch.size)
        lookups, tables = batch.lookups, len(reads.tables_T5)
        self._threads = threads
        threads = max(1, min(worth_waking(threads, lookups), tables))
        self.one_hot: bool = is_one_each(batch.offsets) or kernels.is_one_hot(batch.offsets, lookups)
        """Whether every bag holds exactly one id."""
        rising = self.one_hot or kernels.rises(batch.offsets, lookups)
        check_shapes(batch, len(space.features), rising)
        self.inverse_N = np.empty(lookups, dtype=np.int32)
        self.segment_bag_N = np.empty(lookups, dtype=np.int32)
        first_lookup_T1, first_distinct_T1 = np.empty(tables + 1, np.int64), np.zeros(tables + 1, np.int64)
        part_T, distinct_T = np.empty(tables, dtype=np.int64), first_distinct_T1[1:]
        by_table = (batch.offsets, self.one_hot, reads.tables_T5, reads.runs_V3, first_lookup_T1)
        places = kernels.share_tables(*by_table, part_T, threads)
        places_PH = _scratch.take("places", np.int32, threads, places)
        row_N, count_N = _scratch.take("rows", np.int64, lookups), _scratch.take("counts", np.int64, lookups)
        numbered = kernels.TableLookups(part_T, batch.ids_N, *by_table)
        found = kernels.FoundRows(row_N, count_N, self.inverse_N, distinct_T)
        if threads == 1:
            kernels.find_rows(0, places_PH[0], numbered, found)
        else:
            numba.set_num_threads(threads)
            kernels.find_rows_in_parts(places_PH, numbered, found)
        if (distinct_T < 0).any():
            check_ids(batch, space.tables, space.features)
        np.cumsum(distinct_T, out=distinct_T)
        distinct = int(first_distinct_T1[-1])
        self.distinct_U: NDArray[np.int64] = np.empty(distinct, dtype=np.int64)
        self.segments_U1: NDArray[np.int64] = np.zeros(distinct + 1, dtype=np.int64)
        listed = (self.distinct_U, self.segments_U1, self.segment_bag_N)
        list_bags = kernels.list_bags if threads == 1 else kernels.list_bags_in_parts
        list_bags(0 if threads == 1 else threads, numbered, found, first_distinct_T1, *listed)
        self.pool_ends = first_distinct_T1[np.searchsorted(reads.tables_T5[:, 0], range(1, len(space.pools) + 1))]
        """The end of each pool's distinct rows."""
        self.source_U: NDArray[np.int64] = np.empty(distinct, dtype=np.int64)
        """Slot of a hot row, ``~row`` of a cold one (row within its pool)."""
        self.source_N: NDArray[np.int64] = np.empty(lookups, dtype=np.int64)
        """The same for each lookup."""
        self.popular_B: NDArray[np.bool_] = np.empty(batch.size, dtype=np.bool_)
        self.lookups_F: NDArray[np.int64] = np.zeros(len(space.features), dtype=np.int64)
        """Lookups of each feature."""
        self.hot_lookups_F: NDArray[np.int64] = np.zeros(len(space.features), dtype=np.int64)
        self.placement_version = -1
        self.staged: Any = None
        """The store's `Flight` of the batch, while it has one."""

    def classify(self, placement: Placement) -> None:
        """Find the source of every distinct row. Any thread may call it, as the placement's version is read first."""
        version, slot_of_row = placement.version, placement.slot_of_row
        rows = self.distinct_U, self.pool_ends, self.space.pool_first_row
        kernels.find_sources(*rows, slot_of_row, placement.any_hot, self.source_U)
        self.spread_sources()
        self.placement_version = version

    def spread_sources(self) -> None:
        """Find the source of every lookup, popular samples and counts from the sources of the distinct rows, `source_U`."""
        kernels.spread_sources(
            self.source_U,
            self.inverse_N,
            self.batch.offsets,
            self.one_hot,
            len(self.space.features),
            self.source_N,
            self.popular_B,
            self.lookups_F,
            self.hot_lookups_F,
            threads=self._threads,
        )

    def forget_placement(self) -> None:
        """Have the batch classified again, whatever the next placement's version."""
        self.placement_version = -1

    def attach(self, flight: Any) -> None:
        """Set the store's flight of the batch; None ends it."""
        self.staged = flight

    @property
    def hot_U(self) -> NDArray[np.bool_]:
        return self.source_U >= 0

    def pool_range(self, pool: int) -> slice:
        """Return the range of one pool's distinct rows."""
        return slice(int(self.pool_ends[pool - 1]) if pool else 0, int(self.pool_ends[pool]))

    def segments(self, pool: int) -> NDArray[np.int64]:
        """Return the bounds of the segments of one pool's distinct rows."""
        span = self.pool_range(pool)
        return self.segments_U1[span.start : span.stop + 1]

    def count_flagged(self, flag_U: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Count each sample's lookups whose distinct row is flagged."""
        count_B = np.empty(self.batch.size, dtype=np.int64)
        features = len(self.space.features)
        kernels.count_flagged(flag_U, self.inverse_N, self.batch.offsets, features, count_B)
        return count_B

    @property
    def lookups_B(self) -> NDArray[np.int64]:
        """Number of lookups of each sample."""
        return np.diff(self.batch.offsets[:: len(self.space.features)])
