"""Lookups of a loop of the user's own: each kernel beside its plain twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive_rec.kernels import lookups, pooling
from tests.kernels.reference import lookups as plain

SEEDS = range(8)


def bags(rng: np.random.Generator, tables: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of each table, and the offsets of bags of them in turn, some of them empty."""
    lengths = rng.integers(0, 4, size=tables * int(rng.integers(0, 30)))
    return rng.integers(1, 50, size=tables), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_numbered_as_by_the_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows_T, offsets = bags(rng, tables=int(rng.integers(1, 5)))
    first_T = np.concatenate([[0], np.cumsum(rows_T)[:-1]])
    table_N = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)) % len(rows_T)
    ids_N = rng.integers(0, rows_T[table_N])
    ours, theirs = np.empty_like(ids_N), np.empty_like(ids_N)
    assert lookups.number_rows(ids_N, offsets, first_T, rows_T, ours) == -1
    assert plain.number_rows(ids_N, offsets, first_T, rows_T, theirs) == -1
    assert (ours == theirs).all()
    for wrong in range(min(3, len(ids_N))):
        bad = ids_N.copy()
        bad[wrong] = (rows_T[table_N[wrong]], -1, 1 << 62)[wrong]
        bad[-1] = -5
        assert lookups.number_rows(bad, offsets, first_T, rows_T, ours) == wrong
        assert plain.number_rows(bad, offsets, first_T, rows_T, theirs) == wrong


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_jagged_lookups_are_turned_and_numbered_as_by_the_twin(seed: int, one_hot: bool) -> None:
    """Features that are not read, tables that read one feature, samples that there are none of."""
    rng = np.random.default_rng(seed)
    features, samples = int(rng.integers(1, 5)), int(rng.integers(0, 9))
    lowest, highest = (1, 2) if one_hot else (0, 4)
    length_FB = rng.integers(lowest, highest, size=(features, samples))
    feature_T = rng.integers(0, features, size=int(rng.integers(1, 6)))
    rows_T = rng.integers(20, 50, size=len(feature_T))
    first_T = np.concatenate([[0], np.cumsum(rows_T)[:-1]])
    ids_N = rng.integers(0, 20, size=int(length_FB.sum()) + 2)
    first_F1, theirs_F1 = np.empty(features + 1, np.int64), np.empty(features + 1, np.int64)
    assert lookups.find_features(length_FB, first_F1) == plain.find_features(length_FB, theirs_F1)
    assert (first_F1 == theirs_F1).all()

    def turned(module: Any, ids_N: NDArray[np.int64]) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        row_M = np.empty(int(length_FB[feature_T].sum()), dtype=np.int64)
        offsets = np.empty(samples * len(feature_T) + 1, dtype=np.int64)
        return module.number_jagged_rows(
            ids_N, length_FB, one_hot, first_F1, feature_T, first_T, rows_T, row_M, offsets
        ), row_M, offsets  # fmt: skip

    ours, theirs = turned(lookups, ids_N), turned(plain, ids_N)
    assert ours[0] == theirs[0] == -1
    assert (ours[1] == theirs[1]).all()
    assert (ours[2] == theirs[2]).all()
    read = np.flatnonzero(np.isin(np.repeat(np.arange(features), length_FB.sum(axis=1)), feature_T))
    for n in read[:3]:
        bad = ids_N.copy()
        bad[n] = (-1, 50, 1 << 62)[n % 3]
        ours, theirs = turned(lookups, bad), turned(plain, bad)
        assert ours[0] == theirs[0] >= 0
        assert ours[1][ours[0]] == theirs[1][ours[0]] == bad[n]
        bag = int(np.searchsorted(theirs[2], ours[0], side="right"))
        assert int(np.searchsorted(ours[2], ours[0], side="right")) == bag, "both tell the bag"


def test_negative_lengths_are_found() -> None:
    first_F1 = np.empty(3, dtype=np.int64)
    assert lookups.find_features(np.array([[1, 2], [-1, 4]]), first_F1) == (-1, 4)
    assert lookups.find_features(np.empty((2, 0), dtype=np.int64), first_F1) == (1, 1)


@pytest.mark.parametrize(
    "offsets", [[], [0], [1], [0, 0], [0, 3], [0, 4], [0, 2, 1], [0, 2, 3], [0, -1, 3], [0, 1, 1, 3], [0, 5, 3]]
)
def test_wrong_bounds_are_found_as_by_the_twin(offsets: list[int]) -> None:
    array = np.array(offsets, dtype=np.int64)
    assert lookups.are_bounds(array, 3) is plain.are_bounds(array, 3)


def test_which_offsets_bound_bags() -> None:
    assert lookups.are_bounds(np.array([0, 1, 1, 3]), 3)
    assert not lookups.are_bounds(np.array([0, 2, 1]), 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_sources_and_counts_are_those_of_the_twins(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slot_of_row = np.full(200, -1, dtype=np.int32)
    hot = rng.choice(200, 40, replace=False)
    slot_of_row[hot] = np.arange(40)
    row_N = rng.integers(0, 200, size=int(rng.integers(0, 300)))
    ours, theirs = np.empty_like(row_N), np.empty_like(row_N)
    lookups.find_row_sources(row_N, slot_of_row, ours)
    plain.find_row_sources(row_N, slot_of_row, theirs)
    assert (ours == theirs).all()
    distinct_U, count_U = np.unique(row_N, return_counts=True)
    order = rng.permutation(len(distinct_U))
    distinct_U, count_U = distinct_U[order], count_U[order]
    segments_U1 = np.concatenate([[0], np.cumsum(count_U)])
    source_U = np.where(slot_of_row[distinct_U] >= 0, slot_of_row[distinct_U], ~distinct_U)
    first_T, counted = np.array([0, 3, 4, 120]), []
    for count in (lookups.count_by_table, plain.count_by_table):
        counts_2T = np.zeros((2, 4), dtype=np.int64)
        count(distinct_U, segments_U1, source_U, first_T, counts_2T[0], counts_2T[1])
        counted.append(counts_2T)
    assert (counted[0] == counted[1]).all()
    assert counted[0][0].sum() == len(row_N)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", SEEDS)
def test_bags_are_gathered_as_by_the_twin(seed: int, dtype: type, threads: int) -> None:
    """Of one feature among several, from a sample on; more bags than a second thread is woken for, now and then."""
    rng = np.random.default_rng(seed)
    samples, features = int(rng.choice([0, 1, 60, 5000])), int(rng.integers(1, 4))
    lengths = rng.integers(0, 9, size=samples * features)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    hot, cold = rng.random((30, 5)).astype(dtype), rng.random((70, 5)).astype(dtype)
    source_N = rng.integers(-70, 30, size=int(offsets[-1]))
    first = int(rng.integers(0, samples + 1))
    made = [np.full((samples - first, 5), np.nan, dtype=dtype) for _ in range(2)]
    where = (first, features, features - 1, offsets, source_N, hot, cold)
    pooling.gather_bags(*where, made[0], threads=threads)
    plain.gather_bags(*where, made[1])
    np.testing.assert_allclose(made[0], made[1], rtol=1e-6 if dtype is np.float32 else 1e-14)
