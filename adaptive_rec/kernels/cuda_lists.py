"""The calls of `batch_lists.py` on a CUDA device, in a few kernels where torch's primitives take a hundred launches.

Every launch from Python makes other threads wait for the interpreter: on a Xeon with an H100, five threads launched them one by
one in 10 to 20 ms a batch, though the device worked for 3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptive_rec.kernels import triton_lists
from adaptive_rec.kernels.batch_lists import INT32_END, BatchLists, BatchPlaces, SpaceOnDevice

LISTED, COUNTED, SUMMED = 512, 64, 256
"""Numbers, samples of a feature, and numbers of whole samples that a program works on."""

CHUNK = 4
"""Lookups of a bag whose loads are under way together."""


def find_lists(
    ids_N: Tensor, offsets: Tensor, one_hot: bool, space: SpaceOnDevice, piece_lookups: int, out: BatchLists
) -> None:
    """Find the distinct rows of a batch with at least one lookup: see `batch_lists.find_lists`."""
    lookups, features, pools = len(ids_N), len(space.order_F), len(space.features_Q)
    bags = len(offsets) - 1
    samples = bags // features

    def room(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=ids_N.device)

    per_lookup, per_bag = (-(-lookups // LISTED),), (-(-bags // LISTED),)
    end_L1 = room(bags + 1, dtype=torch.int64)
    triton_lists.measure_bags[per_bag](
        offsets, space.order_F, end_L1, out.counts, bags, samples, features, pools, BLOCK=LISTED,
        BLOCK_C=_power_of_two(len(out.counts)),
    )  # fmt: skip
    end_L1.cumsum_(0)
    key_N = room(lookups, dtype=torch.int32 if space.rows < INT32_END else torch.int64)
    lookup_N, bag_N = room(2, lookups)
    triton_lists.list_lookups[(-(-samples // COUNTED), features)](
        ids_N, offsets, space.order_F, space.first_row_F, space.rows_F, end_L1, key_N, lookup_N, bag_N, out.counts, samples,
        features, pools, SAMPLES=COUNTED, CHUNK=CHUNK,
    )  # fmt: skip
    sorted_N, order_N = torch.sort(key_N, stable=True)
    marks = room(2, lookups + 1)
    triton_lists.mark_heads[per_lookup](sorted_N, order_N, *marks, lookups, BLOCK=LISTED)
    head_N1, rank_N1 = (each.cumsum_(0) for each in marks)  # cumsum_(1) takes a hundred times as long: one block a line
    start_N1, new_N = room(lookups + 1), room(lookups)
    triton_lists.mark_starts[per_lookup](head_N1, start_N1, lookups, BLOCK=LISTED)
    count_N1, pieces_N1 = room(2, lookups + 1)
    triton_lists.number_rows[per_lookup](
        head_N1, rank_N1, start_N1, sorted_N, order_N, new_N, out.distinct_N, count_N1, pieces_N1, lookups, PIECE=piece_lookups,
        BLOCK=LISTED,
    )  # fmt: skip
    torch.cumsum(count_N1, 0, dtype=torch.int32, out=out.segments_N1)
    piece_N1 = pieces_N1.cumsum_(0)
    triton_lists.list_segments[per_lookup](
        head_N1, start_N1, new_N, order_N, lookup_N, bag_N, out.segments_N1, piece_N1, out.inverse_N, out.segment_bag_N,
        out.piece_start_N2, lookups, PIECE=piece_lookups, BLOCK=LISTED,
    )  # fmt: skip
    triton_lists.bound_pieces[per_lookup](
        rank_N1, end_L1, piece_N1, space.features_Q, out.piece_NQ, out.piece_start_N2, out.counts, samples, pools, lookups,
        BLOCK=LISTED,
    )  # fmt: skip


def find_places(
    slot_of_row: Tensor, lists: BatchLists, offsets: Tensor, features: int, out: BatchPlaces, in_place: bool = False
) -> None:
    """Find the source of each distinct row, the cold rows, and the popular samples: see `batch_lists.find_places`."""
    lookups, samples, pools = len(lists.distinct_N), (len(offsets) - 1) // features, len(out.counts) - features
    slot_N = torch.empty(lookups, dtype=torch.int32, device=offsets.device)
    before_N1 = torch.empty(lookups + 1, dtype=torch.int64, device=offsets.device)
    hot_BF = torch.empty(samples * features, dtype=torch.int32, device=offsets.device)
    block_features, per_row = _power_of_two(features), (-(-lookups // LISTED),)
    triton_lists.find_slots[per_row](
        slot_of_row, lists.distinct_N, lists.counts, slot_N, before_N1, out.counts, lookups, pools, features, ROWS=LISTED,
        BLOCK_F=block_features,
    )  # fmt: skip
    before_N1.cumsum_(0)
    triton_lists.number_cold[per_row](
        lists.distinct_N, lists.counts, slot_N, before_N1, out.source_N, out.cold_N1, out.counts, pools, IN_PLACE=in_place,
        ROWS=LISTED,
    )  # fmt: skip
    triton_lists.count_hot[(-(-samples // COUNTED), features)](
        slot_N, lists.inverse_N, offsets, hot_BF, samples, features, SAMPLES=COUNTED, CHUNK=CHUNK,
    )  # fmt: skip
    summed = max(1, SUMMED // block_features)
    triton_lists.sum_hot[(-(-samples // summed),)](
        hot_BF, offsets, out.popular_B, out.counts, samples, features, pools, SAMPLES=summed, BLOCK_F=block_features,
    )  # fmt: skip


def _power_of_two(number: int) -> int:
    """The lowest one that is not below a number."""
    return 1 << (number - 1).bit_length()
