"""These functions find what `classify` finds, with torch's primitives: distinct rows, segments, sources, popular samples.

They run on any device and wait for nothing: no shape depends on a value, so arrays have room for the most there can be, and what
lies behind their end is arbitrary. All they find equals what the host finds bit by bit: rows are numbered in the order of their
first lookups, table by table, and segments list bags in that order. The plain twin is in
`tests/kernels/reference/step.py`.
Shapes: see the legend in `adaptive_rec.batch`; here Q counts pools, and what is called sorted is in the order of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

INT32_END = 1 << 31


@dataclass(frozen=True)
class SpaceOnDevice:
    """What a row space says about features and pools, as tensors (int64)."""

    order_F: Tensor
    """All features, pool by pool and table by table."""
    first_row_F: Tensor
    """First row of each feature's table."""
    rows_F: Tensor
    """Rows of each feature's table."""
    features_Q: Tensor
    """Features of each pool and of the pools before it."""
    rows: int
    """Rows of all pools."""


@dataclass(frozen=True)
class BatchLists:
    """What `find_lists` fills, with room for as many rows and pieces as there are lookups."""

    inverse_N: Tensor
    """Number of each lookup's row (int32)."""
    segment_bag_N: Tensor
    """The bags that touch each row, row after row (int32)."""
    distinct_N: Tensor
    """The distinct rows (int64)."""
    segments_N1: Tensor
    """Bounds of the rows' segments of `segment_bag_N` (int32)."""
    piece_NQ: Tensor
    """First piece of each row, counted in its pool, and behind the rows of each pool the number of its pieces (int32)."""
    piece_start_N2: Tensor
    """Bounds of the pieces of all pools in `segment_bag_N` (int32); the last place is scratch."""
    counts: Tensor
    """Whether an id lies outside its table; ends of the pools' distinct rows, and of their pieces; lookups of each feature."""

    @staticmethod
    def counts_size(pools: int, features: int) -> int:
        return 1 + 2 * pools + features


@dataclass(frozen=True)
class BatchPlaces:
    """What `find_places` fills, with room for as many rows as there are lookups."""

    source_N: Tensor
    """Slot of a hot row, ``~c`` for cold row c of its pool (int32)."""
    cold_N1: Tensor
    """The cold rows, in order (int64); the last place is scratch."""
    popular_B: Tensor
    counts: Tensor
    """Cold rows of each pool and of the pools before it; lookups of hot rows of each feature (int64)."""

    @staticmethod
    def counts_size(pools: int, features: int) -> int:
        return pools + features


def find_lists(
    ids_N: Tensor, offsets: Tensor, one_hot: bool, space: SpaceOnDevice, piece_lookups: int, out: BatchLists
) -> None:
    """Find the distinct rows of a batch with at least one lookup, and cut their segments into pieces.

    `ids_N` is int64, `offsets` int32. Where an id lies outside its table, `counts` says so and nothing else is valid.
    """
    lookups, features = len(ids_N), len(space.order_F)
    samples = (len(offsets) - 1) // features
    place_N = torch.arange(lookups, device=ids_N.device)
    lengths = offsets[1:] - offsets[:-1]

    # Bags (L) and lookups in the order of the tables.
    bag_L = (space.order_F[:, None] + torch.arange(samples, device=ids_N.device) * features).reshape(-1)
    length_L = lengths[bag_L]
    end_L1 = _running_sum(length_L)
    if one_hot:
        bag_N = lookup_N = bag_L
    else:
        in_L = torch.repeat_interleave(length_L, output_size=lookups)
        bag_N = bag_L.index_select(0, in_L)
        lookup_N = place_N + (offsets[bag_L] - end_L1[:-1]).index_select(0, in_L)
    feature_N, id_N = bag_N % features, ids_N[lookup_N]
    outside = ((id_N < 0) | (id_N >= space.rows_F[feature_N])).any()
    row_N = id_N + space.first_row_F[feature_N]

    # Sorted lookups: of equal rows the first one stays first.
    key_N = row_N.to(torch.int32) if space.rows < INT32_END else row_N
    sorted_N, order_N = torch.sort(key_N, stable=True)
    head_N = torch.ones_like(place_N, dtype=torch.bool)
    torch.ne(sorted_N[1:], sorted_N[:-1], out=head_N[1:])
    number_N = torch.cumsum(head_N, 0) - 1
    start_N1 = torch.full((lookups + 1,), lookups, device=ids_N.device)
    start_N1.scatter_(0, torch.where(head_N, number_N, lookups), torch.where(head_N, place_N, lookups))
    start_N = start_N1[:-1].clamp(max=lookups - 1)

    # Rows by their first lookups. `new_N` is a permutation: what is behind the last row keeps its place.
    first_lookup_N = torch.zeros_like(head_N).scatter_(0, order_N, head_N)
    rank_N1 = _running_sum(first_lookup_N)
    is_row_N = place_N <= number_N[-1:]
    new_N = torch.where(is_row_N, rank_N1[order_N[start_N]], place_N)
    u_N = new_N[number_N]
    out.distinct_N.scatter_(0, new_N, sorted_N[start_N].to(torch.int64))
    count_N = torch.zeros_like(place_N).scatter_(0, new_N, start_N1[1:] - start_N1[:-1])
    out.segments_N1.copy_(_running_sum(count_N))
    out.inverse_N.scatter_(0, lookup_N[order_N], u_N.to(torch.int32))

    inside_N = place_N - start_N1[number_N]
    at_N = out.segments_N1[u_N] + inside_N
    out.segment_bag_N.scatter_(0, at_N, bag_N[order_N].to(torch.int32))
    piece_N1 = _running_sum((count_N + (piece_lookups - 1)) // piece_lookups)
    begins_N = inside_N % piece_lookups == 0
    piece_N = piece_N1[u_N] + inside_N // piece_lookups
    out.piece_start_N2.fill_(lookups)
    out.piece_start_N2.scatter_(
        0, torch.where(begins_N, piece_N, lookups + 1), torch.where(begins_N, at_N, lookups).to(torch.int32)
    )

    end_Q = rank_N1[end_L1[space.features_Q * samples]]
    end_piece_Q = piece_N1[end_Q]
    first_piece_Q = torch.nn.functional.pad(end_piece_Q[:-1], (1, 0))
    pools = torch.arange(len(end_Q), device=ids_N.device)
    pool_N = torch.searchsorted(end_Q, place_N, right=True).clamp(max=len(end_Q) - 1)
    out.piece_NQ.scatter_(0, place_N + pool_N, (piece_N1[:-1] - first_piece_Q[pool_N]).to(torch.int32))
    out.piece_NQ.scatter_(0, end_Q + pools, (end_piece_Q - first_piece_Q).to(torch.int32))

    lookups_F = lengths.view(samples, features).sum(0)
    torch.cat([outside.view(1).to(torch.int64), end_Q, end_piece_Q, lookups_F], out=out.counts)


def find_places(
    slot_of_row: Tensor, lists: BatchLists, offsets: Tensor, features: int, out: BatchPlaces, in_place: bool = False
) -> None:
    """Find the source of each distinct row of a batch, the cold rows, and the popular samples. The lists may have been found just
    before, on the same queue. Where an id lies outside its table, nothing is valid.

    `slot_of_row` is negative for a cold row. `in_place`: that number is its source; else the source is ``~c``, c the row's place
    among the cold ones of its pool.
    """
    lookups, pools = len(lists.distinct_N), len(out.counts) - features
    outside, end_Q = lists.counts[:1], lists.counts[1 : 1 + pools]
    place_N = torch.arange(lookups, device=offsets.device)
    is_row_N = place_N < torch.where(outside > 0, 0, end_Q[-1:])
    row_N = torch.where(is_row_N, lists.distinct_N, 0)
    slot_N = slot_of_row[row_N]
    is_cold_N = is_row_N & (slot_N < 0)
    before_N1 = _running_sum(is_cold_N)
    before_Q = before_N1[end_Q]
    pool_N = torch.searchsorted(end_Q, place_N, right=True).clamp(max=pools - 1)
    before_pool_Q = torch.nn.functional.pad(before_Q[:-1], (1, 0))
    out.source_N.copy_(slot_N if in_place else torch.where(is_cold_N, before_pool_Q[pool_N] - 1 - before_N1[:-1], slot_N))
    out.cold_N1.scatter_(0, torch.where(is_cold_N, before_N1[:-1], lookups), torch.where(is_cold_N, row_N, 0))

    hot_N1 = _running_sum((slot_N >= 0).index_select(0, lists.inverse_N))
    hot_L1 = hot_N1.index_select(0, offsets)
    hot_BF = (hot_L1[1:] - hot_L1[:-1]).view(-1, features)
    lookups_B = offsets[features::features] - offsets[:-1:features]
    torch.eq(hot_BF.sum(1), lookups_B, out=out.popular_B)
    torch.cat([before_Q, hot_BF.sum(0)], out=out.counts)


def _running_sum(numbers: Tensor) -> Tensor:
    """Return the sum of all numbers before each place, and of all of them at the end (int64)."""
    sums = torch.zeros(len(numbers) + 1, dtype=torch.int64, device=numbers.device)
    torch.cumsum(numbers, 0, dtype=torch.int64, out=sums[1:])
    return sums
