"""Triton kernels of `cuda_lists.py`. All numbers are integers, so the order in which some are added up makes no difference.

The plain twins are those of `batch_lists.py`, and names are as there. Places are those of the lookups in the order of the tables
(q) and sorted by their rows (p); r numbers rows in their order, u in the order of their first lookups.
"""

from __future__ import annotations

import triton
import triton.language as tl

from adaptive_rec.kernels.launcher import KernelLauncher

_COUNTS = ["pools", "B", "features", "bags", "N"]
"""Numbers the compiler must not specialise on, see `triton_rows.py`."""

_INDICES = [
    "slot_of_row", "list_counts", "slot_N", "before_N1", "source_N", "cold_N1", "inverse_N", "offsets", "hot_BF", "popular_B",
    "counts", "order_F", "first_row_F", "rows_F", "features_Q", "end_L1", "ids_N", "key_N", "lookup_N", "bag_N", "sorted_N",
    "order_N", "head_N1", "rank_N1", "start_N1", "new_N", "count_N1", "pieces_N1", "segments_N1", "piece_N1", "segment_bag_N",
    "distinct_N", "piece_NQ", "piece_start_N2",
]  # fmt: skip
"""Arrays whose alignment makes no difference but would compile another kernel."""


# Lists --------------------------------------------------------------------------------------------------------------


@KernelLauncher
@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def measure_bags(offsets, order_F, end_L1, counts, bags, B, features, pools, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr):
    """Write the lengths of all bags, in the order of the tables, behind a zero, and set all counts to zero."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < bags
    bag = (place % B) * features + tl.load(order_F + place // B, mask=inside, other=0).to(tl.int32)
    length = tl.load(offsets + bag + 1, mask=inside, other=0) - tl.load(offsets + bag, mask=inside, other=0)
    tl.store(end_L1 + 1 + place, length.to(tl.int64), mask=inside)
    if tl.program_id(0) == 0:
        tl.store(end_L1, 0)
        count = tl.arange(0, BLOCK_C)
        tl.store(counts + count, tl.full([BLOCK_C], 0, tl.int64), mask=count < 1 + 2 * pools + features)


@KernelLauncher
@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def list_lookups(
    ids_N, offsets, order_F, first_row_F, rows_F, end_L1, key_N, lookup_N, bag_N, counts, B, features, pools,
    SAMPLES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Program (i, j): SAMPLES bags of the j-th feature in the order of the tables. Lists rows, lookups and bags in that order."""
    sample = tl.program_id(0) * SAMPLES + tl.arange(0, SAMPLES)
    feature = tl.load(order_F + tl.program_id(1)).to(tl.int32)
    first_row, rows = tl.load(first_row_F + feature), tl.load(rows_F + feature)
    bag = sample * features + feature
    start = tl.load(offsets + bag, mask=sample < B, other=0)
    length = tl.load(offsets + bag + 1, mask=sample < B, other=0) - start
    place = tl.load(end_L1 + tl.program_id(1) * B + sample, mask=sample < B, other=0)
    outside = tl.full([SAMPLES], 0, tl.int32)
    for first in range(0, tl.max(length, axis=0), CHUNK):
        item = first + tl.arange(0, CHUNK)[None, :]
        inside = item < length[:, None]
        lookup = start[:, None] + item
        row = tl.load(ids_N + lookup, mask=inside, other=0)
        outside += tl.sum((inside & ((row < 0) | (row >= rows))).to(tl.int32), axis=1)
        q = place[:, None] + item
        tl.store(key_N + q, (row + first_row).to(key_N.dtype.element_ty), mask=inside)
        tl.store(lookup_N + q, lookup, mask=inside)
        tl.store(bag_N + q, tl.broadcast_to(bag[:, None], [SAMPLES, CHUNK]), mask=inside)
    tl.atomic_add(counts, tl.sum(outside, axis=0).to(tl.int64))
    tl.atomic_add(counts + 1 + 2 * pools + feature, tl.sum(length, axis=0).to(tl.int64))


@KernelLauncher
@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def mark_heads(sorted_N, order_N, head_N1, rank_N1, N, BLOCK: tl.constexpr):
    """Mark the first place of each row, sorted and in the order of the tables, behind a zero."""
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(sorted_N + p, mask=p < N, other=0)
    before = tl.load(sorted_N + p - 1, mask=(p < N) & (p > 0), other=0)
    head = ((p == 0) | (row != before)).to(tl.int32)
    q = tl.load(order_N + p, mask=p < N, other=0)
    tl.store(head_N1 + 1 + p, head, mask=p < N)
    tl.store(rank_N1 + 1 + q, head, mask=p < N)
    if tl.program_id(0) == 0:
        tl.store(head_N1, 0)
        tl.store(rank_N1, 0)


@KernelLauncher
@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def mark_starts(head_N1, start_N1, N, BLOCK: tl.constexpr):
    """List the first place of each row; `head_N1` counts the rows before each place by now."""
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = tl.load(head_N1 + p, mask=p < N, other=0)
    after = tl.load(head_N1 + 1 + p, mask=p < N, other=0)
    tl.store(start_N1 + r, p, mask=(p < N) & (after > r))
    tl.store(start_N1 + after, p + 1, mask=p == N - 1)


@KernelLauncher
@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def number_rows(
    head_N1, rank_N1, start_N1, sorted_N, order_N, new_N, distinct_N, count_N1, pieces_N1, N, PIECE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Number rows by their first lookups; write how many lookups and pieces each has, behind a zero."""
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_row = r < tl.load(head_N1 + N)
    start = tl.load(start_N1 + r, mask=is_row, other=0)
    count = tl.load(start_N1 + 1 + r, mask=is_row, other=0) - start
    first = tl.load(order_N + start, mask=is_row, other=0)
    u = tl.where(is_row, tl.load(rank_N1 + first, mask=is_row, other=0), r)
    tl.store(new_N + r, u, mask=is_row)
    tl.store(distinct_N + u, tl.load(sorted_N + start, mask=is_row, other=0).to(tl.int64), mask=is_row)
    tl.store(count_N1 + 1 + u, count, mask=r < N)
    tl.store(pieces_N1 + 1 + u, (count + PIECE - 1) // PIECE, mask=r < N)
    if tl.program_id(0) == 0:
        tl.store(count_N1, 0)
        tl.store(pieces_N1, 0)


@KernelLauncher
@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def list_segments(
    head_N1, start_N1, new_N, order_N, lookup_N, bag_N, segments_N1, piece_N1, inverse_N, segment_bag_N, piece_start_N2, N,
    PIECE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """List each lookup's row, each row's bags and where pieces begin."""
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = p < N
    r = tl.load(head_N1 + 1 + p, mask=inside, other=1) - 1
    u = tl.load(new_N + r, mask=inside, other=0)
    item = p - tl.load(start_N1 + r, mask=inside, other=0)
    at = tl.load(segments_N1 + u, mask=inside, other=0) + item
    q = tl.load(order_N + p, mask=inside, other=0)
    tl.store(inverse_N + tl.load(lookup_N + q, mask=inside, other=0), u, mask=inside)
    tl.store(segment_bag_N + at, tl.load(bag_N + q, mask=inside, other=0), mask=inside)
    piece = tl.load(piece_N1 + u, mask=inside, other=0) + item // PIECE
    tl.store(piece_start_N2 + piece, at, mask=inside & (item % PIECE == 0))


@KernelLauncher
@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def bound_pieces(
    rank_N1, end_L1, piece_N1, features_Q, piece_NQ, piece_start_N2, counts, B, pools, N, BLOCK: tl.constexpr
):  # fmt: skip
    """List each row's first piece, counted in its pool, and where pools end."""
    u = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    piece = tl.load(piece_N1 + u, mask=u < N, other=0)
    first, first_piece = 0, 0
    for pool in range(pools):
        place = tl.load(end_L1 + tl.load(features_Q + pool) * B)
        end = tl.load(rank_N1 + place)
        end_piece = tl.load(piece_N1 + end)
        tl.store(piece_NQ + pool + u, piece - first_piece, mask=(u >= first) & (u < end))
        if tl.program_id(0) == 0:
            tl.store(piece_NQ + pool + end, end_piece - first_piece)
            tl.store(counts + 1 + pool, end.to(tl.int64))
            tl.store(counts + 1 + pools + pool, end_piece.to(tl.int64))
            tl.store(piece_start_N2 + end_piece, N, mask=pool == pools - 1)
        first, first_piece = end, end_piece


# Places -------------------------------------------------------------------------------------------------------------


@KernelLauncher
@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def find_slots(
    slot_of_row, distinct_N, list_counts, slot_N, before_N1, counts, N, pools, features, ROWS: tl.constexpr, BLOCK_F: tl.constexpr
):
    """Read the slots, mark the cold rows behind a zero, and set the features' counts to zero."""
    u = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = tl.where(tl.load(list_counts) > 0, 0, tl.load(list_counts + pools))
    row = tl.load(distinct_N + u, mask=u < rows, other=0)
    slot = tl.load(slot_of_row + row, mask=u < rows, other=0)
    tl.store(slot_N + u, slot, mask=u < N)
    tl.store(before_N1 + 1 + u, (slot < 0).to(tl.int64), mask=u < N)
    if tl.program_id(0) == 0:
        tl.store(before_N1, 0)
        feature = tl.arange(0, BLOCK_F)
        tl.store(counts + pools + feature, tl.full([BLOCK_F], 0, tl.int64), mask=feature < features)


@KernelLauncher
@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def number_cold(
    distinct_N, list_counts, slot_N, before_N1, source_N, cold_N1, counts, pools, IN_PLACE: tl.constexpr, ROWS: tl.constexpr
):
    """Number the cold rows of each pool, unless they are used in place, and list them. `before_N1` counts those of all pools."""
    u = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    before_pool = tl.full([ROWS], 0, tl.int64)
    rows = tl.load(list_counts + pools)
    for pool in range(0, pools):
        end = tl.load(list_counts + 1 + pool)
        before_end = tl.load(before_N1 + end)
        before_pool = tl.where(u >= end, before_end, before_pool)
        if tl.program_id(0) == 0:
            tl.store(counts + pool, before_end)
    slot = tl.load(slot_N + u, mask=u < rows, other=0)
    before = tl.load(before_N1 + u, mask=u < rows, other=0)
    source = slot if IN_PLACE else tl.where(slot < 0, (before_pool - 1 - before).to(tl.int32), slot)
    tl.store(source_N + u, source, mask=u < rows)
    row = tl.load(distinct_N + u, mask=slot < 0, other=0)
    tl.store(cold_N1 + before, row, mask=slot < 0)


@KernelLauncher
@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def count_hot(slot_N, inverse_N, offsets, hot_BF, B, features, SAMPLES: tl.constexpr, CHUNK: tl.constexpr):
    """Program (i, f): the hot lookups of SAMPLES bags of feature f."""
    sample = tl.program_id(0) * SAMPLES + tl.arange(0, SAMPLES)
    bag = sample * features + tl.program_id(1)
    start = tl.load(offsets + bag, mask=sample < B, other=0)
    length = tl.load(offsets + bag + 1, mask=sample < B, other=0) - start
    hot = tl.full([SAMPLES], 0, tl.int32)
    for first in range(0, tl.max(length, axis=0), CHUNK):
        item = first + tl.arange(0, CHUNK)[None, :]
        inside = item < length[:, None]
        u = tl.load(inverse_N + start[:, None] + item, mask=inside, other=0)
        slot = tl.load(slot_N + u, mask=inside, other=-1)
        hot += tl.sum((slot >= 0).to(tl.int32), axis=1)
    tl.store(hot_BF + bag, hot, mask=sample < B)


@KernelLauncher
@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def sum_hot(hot_BF, offsets, popular_B, counts, B, features, pools, SAMPLES: tl.constexpr, BLOCK_F: tl.constexpr):
    """Find the samples all of whose lookups are hot, and add up the hot lookups of each feature."""
    sample = tl.program_id(0) * SAMPLES + tl.arange(0, SAMPLES)
    feature = tl.arange(0, BLOCK_F)
    inside = (sample < B)[:, None] & (feature < features)[None, :]
    hot = tl.load(hot_BF + sample[:, None] * features + feature[None, :], mask=inside, other=0)
    start = tl.load(offsets + sample * features, mask=sample < B, other=0)
    end = tl.load(offsets + (sample + 1) * features, mask=sample < B, other=0)
    tl.store(popular_B + sample, tl.sum(hot, axis=1) == end - start, mask=sample < B)
    tl.atomic_add(counts + pools + feature, tl.sum(hot, axis=0).to(tl.int64), mask=feature < features)
