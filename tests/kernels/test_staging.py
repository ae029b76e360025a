"""Every kernel of the staging worker against its plain twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.kernels import staging
from tests.kernels.reference import staging as reference_staging

quick = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 1 << 16)
FAR = 1 << 31
"""A distance of rows whose numbers are alike in their lower halves, but for one bit."""


def pool_ends(random: np.random.Generator, rows: int, pools: int) -> Any:
    return np.append(np.sort(random.integers(0, rows + 1, pools - 1)), rows).astype(np.int64)


@quick
@given(seeds, st.integers(0, 20), st.integers(1, 4), st.sampled_from([0.0, 0.5, 1.0]))
def test_split_sources_equals_its_twin(seed: int, rows: int, pools: int, cold: float) -> None:
    random = np.random.default_rng(seed)
    numbers, ends = random.integers(0, 1 << 40, rows), pool_ends(random, rows, pools)
    distinct_U = random.integers(0, 1 << 40, rows)
    source_U = np.where(random.random(rows) < cold, ~numbers, numbers % (1 << 31))
    out_U, cold_ends = np.full(rows, 77, np.int32), np.full(pools, 77, np.int64)
    row_C, host_row_C = np.full(rows, 77, np.int64), np.full(rows, 77, np.int64)
    staging.split_sources(distinct_U, source_U, ends, out_U, row_C, host_row_C, cold_ends)
    twin_U, twin_C, twin_host_C, twin_ends = reference_staging.split_sources(distinct_U, source_U, ends)
    count = cold_ends[-1]
    assert out_U.tolist() == twin_U.tolist()
    assert cold_ends.tolist() == twin_ends.tolist()
    assert row_C[:count].tolist() == twin_C.tolist()
    assert host_row_C[:count].tolist() == twin_host_C.tolist()
    assert {*row_C[count:].tolist(), *host_row_C[count:].tolist()} <= {77}, "what lies behind is left alone"


@pytest.mark.parametrize("room_for_offsets", [True, False])
@pytest.mark.parametrize("offset_type", [np.int32, np.int64])
def test_pack_inputs_equals_its_twin(room_for_offsets: bool, offset_type: type) -> None:
    random = np.random.default_rng(5)
    offsets = np.arange(0, 21, 2, dtype=offset_type)
    others = [random.random((5, 3), np.float32), random.random(5, np.float32), random.integers(0, 1 << 40, 20)]
    expected = reference_staging.pack_inputs(offsets, others, room_for_offsets)
    packed = [np.full(each.shape, -7, kind) for each, kind in zip(expected, "iffl", strict=True)]
    staging.pack_inputs(offsets, *others, *packed)
    for mine, theirs in zip(packed, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)



@quick
@given(
    seeds,
    st.integers(0, 12),
    st.integers(1, 3),
    st.integers(1, 8),
    st.booleans(),
    st.sampled_from([np.float32, np.float64]),
)
def test_pack_batch_equals_its_twin(
    seed: int, rows: int, pools: int, piece_lookups: int, numbered: bool, dtype: Any
) -> None:
    random = np.random.default_rng(seed)
    segments_U1 = np.concatenate([[0], np.cumsum(random.integers(0, 20, rows))])
    lookups, ends = int(segments_U1[-1]), pool_ends(random, rows, pools)
    offsets, distinct_U = random.integers(0, 1 << 31, 7), random.integers(0, 1 << 40, rows)
    inverse_N, bag_N, source_U = (random.integers(-99, 99, size).astype(np.int32) for size in (lookups, lookups, rows))
    dense_BX, labels_B = random.random((3, 2), dtype=np.float32), random.random(3, dtype=np.float32)
    given_ = [offsets, inverse_N, bag_N, source_U, dense_BX, labels_B, distinct_U[: rows * numbered]]
    room = [np.full(array.shape, 77, np.int32) for array in given_[:4]]
    dense, labels, numbers = np.full((3, 2), 77, dtype), np.full(3, 77, dtype), np.full(rows * numbered, 77, np.int64)
    piece_NQ, piece_ends = np.full(rows + pools, 77, np.int32), np.full(pools, 77, np.int64)
    piece_start = np.full(rows + lookups // piece_lookups + 1, 77, np.int32)
    staging.pack_batch(
        offsets, inverse_N, bag_N, source_U, segments_U1, distinct_U, ends, dense_BX, labels_B, piece_lookups,
        numbers, dense, labels, piece_ends, *room, piece_NQ, piece_start,
    )  # fmt: skip
    copies, twin_NQ, twin_start, twin_ends = reference_staging.pack_batch(given_, segments_U1, ends, piece_lookups)
    for mine, twin in zip([*room, dense, labels, numbers], copies, strict=True):
        assert mine.tolist() == twin.tolist()
    assert piece_ends.tolist() == twin_ends.tolist()
    assert piece_NQ.tolist() == twin_NQ.tolist()
    assert piece_start[: piece_ends[-1] + 1].tolist() == twin_start.tolist()


@quick
@given(st.lists(st.integers(0, 20), max_size=12), st.integers(1, 8), st.integers(0, 1 << 40))
def test_cut_pieces_equals_its_twin(lengths: list[int], piece_lookups: int, first: int) -> None:
    """A pool's segments begin anywhere; some are empty, some exactly as long as pieces may be."""
    first %= 1 << 20
    segments_U1 = first + np.concatenate([[0], np.cumsum(np.array(lengths, dtype=np.int64))])
    pieces = staging.count_pieces(segments_U1, piece_lookups)
    piece_U1, piece_P1 = np.full(len(lengths) + 1, 77, np.int32), np.full(pieces + 1, 77, np.int32)
    assert staging.cut_pieces(segments_U1, piece_lookups, piece_U1, piece_P1) == pieces
    twin_U1, twin_P1 = reference_staging.cut_pieces(segments_U1, piece_lookups)
    assert pieces == reference_staging.count_pieces(segments_U1, piece_lookups)
    assert piece_U1.tolist() == twin_U1.tolist()
    assert piece_P1.tolist() == twin_P1.tolist()
    assert np.all(np.diff(piece_P1) <= piece_lookups)
    assert piece_P1[piece_U1].tolist() == segments_U1.tolist(), "pieces end where segments do"


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint16])
@pytest.mark.parametrize("dim", [0, 1, 3, 16])
@pytest.mark.parametrize("count", [0, 9])
def test_gather_rows_and_scatter_rows_equal_their_twins(dim: int, count: int, dtype: Any) -> None:
    random = np.random.default_rng(dim)
    rows_C = random.permutation(30)[:count]
    tables = [
        random.integers(0, 1000, (30, width)).astype(kind) for width, kind in ((dim, dtype), (1 + dim % 3, np.float32))
    ]
    given_ = [random.integers(0, 1000, (count, table.shape[1])).astype(table.dtype) for table in tables]
    out, twins = [np.full_like(each, 77) for each in given_], [table.copy() for table in tables]
    staging.gather_rows(*tables, rows_C, *out)
    for mine, twin in zip(out, reference_staging.gather_rows(*tables, rows_C), strict=True):
        assert np.array_equal(mine, twin)
    staging.scatter_rows(*tables, rows_C, *given_)
    reference_staging.scatter_rows(*twins, rows_C, *given_)
    for mine, twin in zip(tables, twins, strict=True):
        assert np.array_equal(mine, twin)


@pytest.mark.parametrize("some", [True, False])
def test_flag_rows_equals_its_twin(some: bool) -> None:
    random = np.random.default_rng(3)
    rows_C, flag_R = random.permutation(20)[:9], random.random(30) < 0.2
    chosen_C, twin_R = random.random(9) < 0.5 if some else None, flag_R.copy()
    staging.flag_rows(rows_C, chosen_C, 7, flag_R)
    reference_staging.flag_rows(rows_C, chosen_C, 7, twin_R)
    assert flag_R.tolist() == twin_R.tolist()


@quick
@given(seeds, st.integers(0, 60), st.integers(1, 4), st.integers(0, 3), st.integers(1, 4))
def test_what_earlier_batches_hold_equals_its_twin(
    seed: int, rows: int, pools: int, batches: int, threads: int
) -> None:
    """In tables as full as they may be; several threads find a part each."""
    random = np.random.default_rng(seed)

    def batch() -> tuple[Any, Any]:
        ends = pool_ends(random, random.integers(0, rows + 1), pools)
        # Pools have numbers of their own, as in the joint row space.
        return np.concatenate(
            [
                (pool << 40) + FAR * random.permutation(2 * rows)[:count]
                for pool, count in enumerate(np.diff(ends, prepend=0))
            ]
        ).astype(np.int64), ends

    made, row_C, ends = [batch() for _ in range(batches)], *batch()
    tables, lines = [], []
    for their_row_C, their_ends in made:
        tables.append(np.zeros(1 << max(1, len(their_row_C).bit_length()), np.int64))
        staging.index_travelling(their_row_C, tables[-1])
        address = tables[-1].ctypes.data, len(tables[-1]), their_row_C.ctypes.data
        lines.append([*address, 0, *their_ends[:-1]])
    earlier_EX = np.array(lines, dtype=np.int64).reshape(batches, 3 + pools)
    origin_C, place_C = np.full(len(row_C), 77, np.int32), np.full(len(row_C), -1, np.int32)
    count_PE = np.zeros((pools, batches), np.int64)
    bounds = np.linspace(0, len(row_C), threads + 1).astype(int)
    for first, end in zip(bounds[:-1], bounds[1:], strict=True):
        staging.find_travelling(earlier_EX, row_C, first, end, ends, origin_C, place_C, count_PE)
    twins = [(reference_staging.index_travelling(rows_C), [0, *ends_P[:-1]]) for rows_C, ends_P in made]
    twin, twin_PE = reference_staging.find_travelling(twins, row_C, ends)
    assert list(zip(origin_C.tolist(), place_C.tolist(), strict=True)) == twin
    assert count_PE.tolist() == twin_PE.tolist()
    taken = int(count_PE.sum())
    from_R, to_R = np.full(taken, 77, np.int32), np.full(taken, 77, np.int32)
    staging.list_taken(origin_C, place_C, ends, count_PE, from_R, to_R)
    twin_from, twin_to = reference_staging.list_taken(origin_C, place_C, ends)
    assert from_R.tolist() == twin_from.tolist()
    assert to_R.tolist() == twin_to.tolist()


@quick
@given(seeds, st.integers(1, 12), st.integers(1, 4))
def test_touched_rows_equals_its_twin(seed: int, rows: int, features: int) -> None:
    random = np.random.default_rng(seed)
    position_B = random.integers(-1, 1, 6)
    segments_U1 = np.concatenate([[3], 3 + np.cumsum(random.integers(0, 4, rows))])
    bag_N = random.integers(0, 6 * features, segments_U1[-1]).astype(np.int32)
    touched_U = np.empty(rows, dtype=np.bool_)
    staging.touched_rows(segments_U1, bag_N, features, position_B, touched_U)
    assert touched_U.tolist() == reference_staging.touched_rows(segments_U1, bag_N, features, position_B).tolist()
