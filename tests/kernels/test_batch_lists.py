"""What `kernels.batch_lists` finds equals what the host finds, bit by bit, and no part of it waits for a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.kernels import batch_lists, staging
from adaptive_rec.placement import Placement, RowSpace
from tests.kernels.reference import staging as reference_staging

PIECE = 3
WIDE = 1 << 33
"""Rows of a table whose numbers need 64 bits."""


def space_of(wide: bool = False, pool_per_table: bool = False) -> RowSpace:
    tables = (TableSpec("A", WIDE if wide else 50, 4), TableSpec("B", 7, 3), TableSpec("C", 40, 4), TableSpec("D", 9, 3))
    features = (FeatureSpec("c", 2), FeatureSpec("a", 0), FeatureSpec("b", 1), FeatureSpec("c too", 2), FeatureSpec("a too", 0))
    return RowSpace.of(tables, features, pool_per_table)  # nobody reads D


def draw(seed: int, space: RowSpace, samples: int, longest: int) -> Batch:
    """Bags of up to `longest` ids, some of them empty; 1: one id each."""
    random = np.random.default_rng(seed)
    shape = (samples, len(space.features))
    lengths = np.ones(shape, np.int64) if longest == 1 else random.integers(0, longest + 1, shape)
    lengths[0, 0] = max(1, lengths[0, 0])
    rows_N = np.repeat(np.broadcast_to(space.rows_F, shape).reshape(-1), lengths.reshape(-1))
    ids_N = (random.random(len(rows_N)) ** 3 * rows_N).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
    return Batch(np.zeros((samples, 1), np.float32), ids_N, offsets, np.zeros(samples, np.float32))


def space_on(space: RowSpace, device: str) -> batch_lists.SpaceOnDevice:
    per_pool = np.cumsum([len(pool.features) for pool in space.pools])
    numbers = (space.feature_order, space.feature_first_row, space.rows_F, per_pool)
    return batch_lists.SpaceOnDevice(*(torch.tensor(array, device=device) for array in numbers), space.rows)


def empty_lists(lookups: int, space: RowSpace, device: str) -> batch_lists.BatchLists:
    def room(size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.full((size,), -77, dtype=dtype, device=device)

    pools = len(space.pools)
    counts = room(batch_lists.BatchLists.counts_size(pools, len(space.features)), torch.int64)
    few = room(lookups), room(lookups), room(lookups, torch.int64), room(lookups + 1), room(lookups + pools), room(lookups + 2)
    return batch_lists.BatchLists(*few, counts)


def empty_places(batch: Batch, space: RowSpace, device: str) -> batch_lists.BatchPlaces:
    lookups, counts = batch.lookups, batch_lists.BatchPlaces.counts_size(len(space.pools), len(space.features))
    return batch_lists.BatchPlaces(
        torch.full((lookups,), -77, dtype=torch.int32, device=device),
        torch.full((lookups + 1,), -77, dtype=torch.int64, device=device),
        torch.zeros(batch.size, dtype=torch.bool, device=device),
        torch.full((counts,), -77, dtype=torch.int64, device=device),
    )


def find_lists(
    batch: Batch, space: RowSpace, device: str, one_hot: bool, find: Any = batch_lists.find_lists
) -> batch_lists.BatchLists:
    out = empty_lists(batch.lookups, space, device)
    ids_N, offsets = torch.tensor(batch.ids_N, device=device), torch.tensor(batch.offsets, dtype=torch.int32, device=device)
    find(ids_N, offsets, one_hot, space_on(space, device), PIECE, out)
    return out


SPACES = [(longest, wide, per_table) for longest in (1, 6) for wide, per_table in ((False, False), (True, False), (False, True))]


@pytest.mark.parametrize(
    ("longest", "wide", "pool_per_table", "sizes"),
    [
        *((*space, (1, 2, 40)) for space in SPACES),
        (6, False, False, (300,)),
        *(pytest.param(*space, (1, 2, 40, 300), marks=pytest.mark.slow) for space in SPACES),
    ],
)
def test_lists_and_places_are_those_of_the_host(
    form: Any, longest: int, wide: bool, pool_per_table: bool, sizes: tuple[int, ...]
) -> None:
    space = space_of(wide, pool_per_table)
    for seed, samples in enumerate(sizes):
        check_all(draw(seed, space, samples, longest), space, form.device.type, longest == 1, seed, form.kernels)


@pytest.mark.gpu
def test_torchs_primitives_find_them_on_a_device() -> None:
    space = space_of()
    check_all(draw(5, space, 40, 6), space, "cuda", False, 5, batch_lists)


def check_all(batch: Batch, space: RowSpace, device: str, one_hot: bool, seed: int, kernels: Any) -> None:
    work, samples = ClassifiedBatch(batch, space), batch.size
    rows, pools = len(work.distinct_U), len(space.pools)
    out = find_lists(batch, space, device, one_hot, kernels.find_lists)

    assert out.distinct_N[:rows].tolist() == work.distinct_U.tolist()
    assert out.inverse_N.tolist() == work.inverse_N.tolist()
    assert out.segments_N1[: rows + 1].tolist() == work.segments_U1.tolist()
    assert out.segment_bag_N.tolist() == work.segment_bag_N.tolist()
    counts = out.counts.tolist()
    assert counts[: 1 + pools] == [0, *work.pool_ends.tolist()]
    first = 0
    for pool, end in enumerate(counts[1 + pools : 1 + 2 * pools]):
        segments, span = work.segments(pool), work.pool_range(pool)
        piece_U1, piece_P1 = np.empty(len(segments), np.int32), np.empty(end - first + 1, np.int32)
        assert staging.cut_pieces(segments, PIECE, piece_U1, piece_P1) == end - first
        assert out.piece_NQ[span.start + pool : span.stop + pool + 1].tolist() == piece_U1.tolist()
        if end > first:
            assert out.piece_start_N2[first : end + 1].tolist() == piece_P1.tolist()
        first = end
    assert counts[1 + 2 * pools :] == np.diff(batch.offsets).reshape(samples, -1).sum(axis=0).tolist()
    if space.rows < batch_lists.INT32_END:
        check_places(work, out, device, seed, kernels.find_places)


def check_places(work: ClassifiedBatch, lists: batch_lists.BatchLists, device: str, seed: int, find_places: Any) -> None:
    space, rows = work.space, len(work.distinct_U)
    slot_of_row = np.random.default_rng(seed).permutation(space.rows).astype(np.int32)
    slot_of_row[slot_of_row % 4 == 0] = -1
    work.classify(Placement(1, slot_of_row))
    pools, features = len(space.pools), len(space.features)
    found = empty_places(work.batch, space, device)
    offsets = torch.tensor(work.batch.offsets, dtype=torch.int32, device=device)
    find_places(torch.tensor(slot_of_row, device=device), lists, offsets, features, found)

    out_U, row_C, host_row_C, ends_P = reference_staging.split_sources(work.distinct_U, work.source_U, work.pool_ends)
    assert found.source_N[:rows].tolist() == out_U.tolist()
    assert found.cold_N1[: len(row_C)].tolist() == row_C.tolist()
    assert row_C.tolist() == (host_row_C + np.repeat(space.pool_first_row, np.diff(ends_P, prepend=0))).tolist()
    assert found.counts[:pools].tolist() == ends_P.tolist()
    assert found.popular_B.tolist() == work.popular_B.tolist()
    assert found.counts[pools:].tolist() == work.hot_lookups_F.tolist()

    in_place, slots = empty_places(work.batch, space, device), slot_of_row.copy()
    for pool in space.pools:
        of_pool = slots[pool.first_row : pool.end_row]
        np.putmask(of_pool, of_pool < 0, ~np.arange(pool.rows, dtype=np.int32))
    find_places(torch.tensor(slots, device=device), lists, offsets, features, in_place, True)
    assert in_place.source_N[:rows].tolist() == work.source_U.tolist()
    assert in_place.cold_N1[: len(row_C)].tolist() == row_C.tolist()
    assert in_place.counts.tolist() == found.counts.tolist()
    assert in_place.popular_B.tolist() == work.popular_B.tolist()


@pytest.mark.parametrize("wrong", [-1, 7, 1 << 40])
def test_an_id_outside_its_table_is_reported(wrong: int, form: Any) -> None:
    space = space_of()
    batch = draw(3, space, 10, 1)
    batch.ids_N[len(space.features) * 4 + 2] = wrong
    lists = find_lists(batch, space, form.device.type, True, form.kernels.find_lists)
    assert lists.counts[0].item() == 1
    places = empty_places(batch, space, form.device.type)
    slots = torch.zeros(space.rows, dtype=torch.int32, device=form.device)
    offsets = torch.tensor(batch.offsets, dtype=torch.int32, device=form.device)
    form.kernels.find_places(slots, lists, offsets, len(space.features), places)
    assert places.counts[0].item() == 0, "nothing is read by rows that do not exist"


@pytest.mark.parametrize("one_hot", [True, False])
def test_no_part_waits_for_the_device(one_hot: bool) -> None:
    """A shape or a branch that depends on a value would make the host wait; fake tensors, which have none, refuse it."""
    space = space_of()
    batch = draw(1, space, 20, 1)
    with FakeTensorMode():
        out: Any = find_lists(batch, space, "cpu", one_hot)
        places: Any = empty_places(batch, space, "cpu")
        slots, offsets = torch.empty(space.rows, dtype=torch.int32), torch.empty(len(batch.offsets), dtype=torch.int32)
        batch_lists.find_places(slots, out, offsets, len(space.features), places)
