"""Every kernel of the staging worker against its plain twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.kernels import staging
from adaptive_rec.kernels.reference import staging as reference_staging

quick = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 1 << 16)


@quick
@given(seeds, st.integers(0, 20), st.sampled_from([0.0, 0.5, 1.0]))
def test_split_sources_equals_its_twin(seed: int, rows: int, cold: float) -> None:
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 1 << 40, rows)
    source_U = np.where(random.random(rows) < cold, ~numbers, numbers % (1 << 31))
    out_U, host_rows_C = np.full(rows, 77, np.int32), np.full(rows, 77, np.int64)
    count = staging.split_sources(source_U, out_U, host_rows_C)
    twin_U, twin_C = reference_staging.split_sources(source_U)
    assert out_U.tolist() == twin_U.tolist()
    assert host_rows_C[:count].tolist() == twin_C.tolist()
    assert host_rows_C[count:].tolist() == [77] * (rows - count), "what lies behind is left alone"


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
    table_RD, in_CD = (random.integers(0, 1000, (rows, dim)).astype(dtype) for rows in (30, count))
    rows_C = random.permutation(30)[:count]
    out_CD, twin_RD = np.full((count, dim), 77, dtype), table_RD.copy()
    staging.gather_rows(table_RD, rows_C, out_CD)
    assert np.array_equal(out_CD, reference_staging.gather_rows(table_RD, rows_C))
    staging.scatter_rows(table_RD, rows_C, in_CD)
    reference_staging.scatter_rows(twin_RD, rows_C, in_CD)
    assert np.array_equal(table_RD, twin_RD)


@quick
@given(seeds, st.integers(1, 60), st.integers(1, 80))
def test_find_travelling_equals_its_twin(seed: int, lookups: int, rows: int) -> None:
    """In a table as full as it may be."""
    random = np.random.default_rng(seed)
    distinct_U = random.permutation(2 * rows)[: min(lookups, 2 * rows)]
    count = len(distinct_U)
    asked_C = random.permutation(2 * rows)
    source_U = np.where(random.random(count) < 0.5, random.permutation(count), ~random.permutation(count)).astype(
        np.int32
    )
    size = 1 << max(1, int(np.count_nonzero(source_U < 0)).bit_length())
    keys, places = np.full(size, -1, dtype=np.int64), np.full(size, 77, dtype=np.int32)
    staging.index_travelling(distinct_U, source_U, keys, places)
    mine = [np.where(random.random(2 * rows) < 0.2, 9, -1).astype(np.int32), np.full(2 * rows, 77, dtype=np.int32)]
    twin = [part.copy() for part in mine]
    staging.find_travelling(keys, places, asked_C, 4, *mine)
    reference_staging.find_travelling(reference_staging.index_travelling(distinct_U, source_U), asked_C, 4, *twin)
    assert [part.tolist() for part in mine] == [part.tolist() for part in twin]
    travelling = set(distinct_U[source_U < 0].tolist())
    assert set(asked_C[mine[0] == 4].tolist()) <= travelling


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
