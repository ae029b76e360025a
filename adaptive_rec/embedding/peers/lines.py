"""What a rank asks of the owners of rows for one batch: lines, each of them a distinct row or a part of a bag.

For each table the way that sends fewer bytes is taken. A table's distinct rows travel once each, with one gradient back. Where
bags are long, their owners pool them: a bag has a *part* for each owner of its rows, and the part's sum and its gradient travel,
whatever the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch, expand_ranges
from adaptive_rec.embedding.peers.ownership import Ownership
from adaptive_rec.embedding.records import BagReads
from adaptive_rec.kernels import bag_parts
from adaptive_rec.kernels.row_update import RowSegments

ROW_REQUEST_BYTES, PART_BYTES, LOOKUP_REQUEST_BYTES, CLASS_BYTES = 6, 4, 4, 1
"""Bytes besides vectors. Requested are a row's number and count, a part's length, the number of the row of each of its lookups;
answered is the class of each row and lookup."""

ROW_BYTES, LOOKUP_BYTES = ROW_REQUEST_BYTES + CLASS_BYTES, LOOKUP_REQUEST_BYTES + CLASS_BYTES


@dataclass(frozen=True)
class PoolLines:
    """The lines of one pool (L): its distinct rows that travel, then the parts of its bags, owner after owner."""

    owner_L: NDArray[np.int64]
    rows: NDArray[np.int64]
    """The rows that travel, by their numbers among the batch's distinct rows; they are the first lines."""
    scale_Q: NDArray[np.float64]
    """Factor of each part in its bag."""
    looked_up_K: NDArray[np.int64]
    """The distinct row of each lookup of the parts."""
    lookup_owner_K: NDArray[np.int64]
    segments: RowSegments
    """The bags that read each line."""

    def counts(self, ranks: int) -> NDArray[np.int64]:
        """Count the rows, parts and lookups of parts that are requested of each owner (W, 3)."""
        rows = len(self.rows)
        kinds = self.owner_L[:rows], self.owner_L[rows:], self.lookup_owner_K
        return np.stack([np.bincount(owners, minlength=ranks) for owners in kinds], axis=1)


@dataclass(frozen=True)
class Lines:
    """The lines of a batch, and which of them each bag reads. Where all rows travel, lines are distinct rows."""

    pools: list[PoolLines]
    bags: BagReads
    """The lines that each bag reads, or their complements."""
    part_length_Q: NDArray[np.int64]
    """Lookups of each part: owner after owner, pool after pool."""
    looked_up_K: NDArray[np.int64]
    """The distinct row of each of these lookups."""


def lines_of(work: ClassifiedBatch, ownership: Ownership, owner_U: NDArray[np.int64], vector_bytes: int) -> Lines:
    """Return what to ask for a batch. `vector_bytes` is the size of a component of a vector."""
    if not work.one_hot and work.batch.reads is None:
        counts_2FW = count_parts(work, owner_U, ownership.ranks)
        pooled_F = choose_pooled(work, ownership, owner_U, counts_2FW, vector_bytes)
        if pooled_F.any():
            return _lines_with_parts(work, owner_U, pooled_F, counts_2FW)
    nothing, pools = np.empty(0, dtype=np.int64), []
    for pool in range(len(work.space.pools)):
        span = work.pool_range(pool)
        segments = RowSegments(span.start, work.segments_U1, work.segment_bag_N)
        pools.append(
            PoolLines(owner_U[span], np.arange(span.start, span.stop), np.empty(0), nothing, nothing, segments)
        )
    return Lines(pools, BagReads.of(work), nothing, nothing)


def choose_pooled(
    work: ClassifiedBatch, ownership: Ownership, owner_U: NDArray[np.int64], counts_2FW: NDArray[np.int64],
    vector_bytes: int,
) -> NDArray[np.bool_]:  # fmt: skip
    """Return for each feature whether owners pool its bags: where that sends fewer bytes for its table. `counts_2FW`: parts of
    bags, and their lookups, of each owner."""
    rows_T, parts_T = way_bytes(work, ownership, owner_U, counts_2FW, vector_bytes)
    chosen: NDArray[np.bool_] = (parts_T < rows_T)[work.space.table_of_feature]
    return chosen


def way_bytes(
    work: ClassifiedBatch, ownership: Ownership, owner_U: NDArray[np.int64], counts_2FW: NDArray[np.int64],
    vector_bytes: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """Return the bytes that go between this rank and others for each table, by rows and by parts. What stays here counts where a
    table is this rank's whole."""
    space, rank = work.space, ownership.rank
    away_T = np.array(ownership.home_T or [-1] * len(space.tables)) != rank
    others_2F = counts_2FW.sum(axis=2) - counts_2FW[..., rank] * away_T[space.table_of_feature]
    parts_T, lookups_T = (np.bincount(space.table_of_feature, each_F, len(space.tables)) for each_F in others_2F)
    rows_T = space.count_by_table(work.distinct_U) - space.count_by_table(work.distinct_U[owner_U == rank]) * away_T
    vectors_T = 2 * vector_bytes * np.array([table.dim for table in space.tables])
    return rows_T * (ROW_BYTES + vectors_T), parts_T * (PART_BYTES + vectors_T) + lookups_T * LOOKUP_BYTES


def count_parts(work: ClassifiedBatch, owner_U: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """Count the parts of each feature's bags, and their lookups, by owner (2, F, W)."""
    counts_2FW = np.zeros((2, len(work.space.features), ranks), dtype=np.int64)
    bag_parts.count_parts(work.batch.offsets, work.inverse_N, owner_U, *counts_2FW)
    return counts_2FW


def _lines_with_parts(
    work: ClassifiedBatch, owner_U: NDArray[np.int64], pooled_F: NDArray[np.bool_], counts_2FW: NDArray[np.int64]
) -> Lines:
    space, batch = work.space, work.batch
    bags = batch.offsets, work.inverse_N
    pools, features = len(space.pools), len(space.features)
    parts_WP, lookups_WP = np.zeros((2, counts_2FW.shape[2], pools), dtype=np.int64)
    for f in np.flatnonzero(pooled_F):
        parts_WP[:, space.pool_of_feature[f]] += counts_2FW[0, f]
        lookups_WP[:, space.pool_of_feature[f]] += counts_2FW[1, f]
    part_bag_Q, part_length_Q = np.empty((2, parts_WP.sum()), dtype=np.int64)
    looked_up_K = np.empty(lookups_WP.sum(), dtype=np.int64)
    bag_parts.list_parts(
        *bags, owner_U, pooled_F, space.pool_of_feature, _firsts(parts_WP), _firsts(lookups_WP),
        part_bag_Q, part_length_Q, looked_up_K,
    )  # fmt: skip
    length = np.diff(batch.offsets)
    by_parts = np.tile(pooled_F, batch.size)
    scale_Q = np.where(space.mean_F[part_bag_Q % features], 1 / length[part_bag_Q], 1.0)
    length[by_parts] = np.bincount(part_bag_Q, minlength=len(length))[by_parts]
    offsets = np.concatenate([[0], np.cumsum(length)])

    pool_Q, owner_Q = _keys(parts_WP)
    pool_K, owner_K = _keys(lookups_WP)
    pooled_T = np.zeros(len(space.tables), dtype=np.bool_)
    pooled_T[space.table_of_feature] = pooled_F
    travels_U = ~pooled_T[space.table_of(work.distinct_U)]
    line_U, line_Q, made = np.empty(len(owner_U), dtype=np.int64), np.empty(len(pool_Q), dtype=np.int64), []
    for pool in range(pools):
        span = work.pool_range(pool)
        rows, parts = span.start + np.flatnonzero(travels_U[span]), np.flatnonzero(pool_Q == pool)
        line_U[rows], line_Q[parts] = np.arange(len(rows)), len(rows) + np.arange(len(parts))
        lengths = np.diff(work.segments_U1)[rows]
        read_by = work.segment_bag_N[expand_ranges(work.segments_U1[rows], lengths)]
        ends = np.concatenate([[0], np.cumsum(lengths), lengths.sum() + 1 + np.arange(len(parts))])
        segments = RowSegments(0, ends, np.concatenate([read_by, part_bag_Q[parts]]).astype(np.int32))
        owner_L, of_pool = np.concatenate([owner_U[rows], owner_Q[parts]]), pool_K == pool
        made.append(PoolLines(owner_L, rows, scale_Q[parts], looked_up_K[of_pool], owner_K[of_pool], segments))
    source_N = np.empty(offsets[-1], dtype=np.int64)
    bag_parts.list_sources(*bags, pooled_F, line_U, part_bag_Q, line_Q, offsets[:-1].copy(), source_N)
    return Lines(made, BagReads(offsets, False, source_N, space.mean_F & ~pooled_F), part_length_Q, looked_up_K)


def lines_read(work: ClassifiedBatch, lines: Lines) -> NDArray[Any]:
    """Return the line of each thing that bags read, lines numbered over all pools."""
    bags = lines.bags
    if bags.source_N is work.source_N:  # distinct rows
        return work.inverse_N
    counts = [len(each.owner_L) for each in lines.pools]
    first_F = (np.cumsum(counts) - counts)[work.space.pool_of_feature]
    read: NDArray[np.int64] = bags.source_N + np.repeat(np.tile(first_F, work.batch.size), np.diff(bags.offsets))
    return read


def _firsts(count_WP: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the first one of each owner and pool goes."""
    return (np.cumsum(count_WP) - count_WP.reshape(-1)).reshape(count_WP.shape)


def _keys(count_WP: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pool and owner of each of what is counted, owner after owner."""
    ranks, pools = count_WP.shape
    key = np.repeat(np.arange(ranks * pools), count_WP.reshape(-1))
    return key % pools, key // pools
