"""Starting values: as the twin has them, the same however they are made, and random as numbers should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adaptive_rec.batch import TableSpec
from adaptive_rec.embedding import host
from adaptive_rec.embedding.first_values import FreshRows
from adaptive_rec.kernels.fill import fill_uniform
from tests.kernels.reference.fill import fill_uniform as plain_fill_uniform
from tests.kernels.reference.rows16 import widened


def filled(rows: int, dim: int, seed: int = 1, table: int = 0, bound: float = 1.0, dtype: Any = np.float32) -> Any:
    weights_RD = np.empty((rows, dim), dtype=dtype)
    fill_uniform(np.uint64(seed), table, bound, 0, weights_RD)
    return weights_RD


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint16, np.int16])
@pytest.mark.parametrize("dim", [1, 2, 3, 7, 16])
def test_fills_as_the_twin_does(dim: int, dtype: Any) -> None:
    for seed, table, first_row in ((0, 0, 0), (3, 25, 1 << 33), (2**64 - 1, 2**20, 7)):
        ours, plain = np.empty((5, dim), dtype=dtype), np.empty((5, dim), dtype=dtype)
        fill_uniform(np.uint64(seed), table, 0.37, first_row, ours)
        plain_fill_uniform(seed, table, 0.37, first_row, plain)
        np.testing.assert_array_equal(ours, plain)


def test_is_the_published_generator() -> None:
    """SplitMix64 of a published state: seed 1234567 begins with these numbers (as in Java and Rosetta Code)."""
    from tests.kernels.reference.fill import GOLDEN, _numbers, mixed

    drawn = mixed(_numbers([1234567 + (n + 1) * GOLDEN for n in range(3)]))
    assert drawn.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("dim", [3, 16])
def test_chunks_and_threads_change_nothing(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = filled(1000, dim, table=4, bound=1 / np.sqrt(1000))
    monkeypatch.setattr(host, "_CHUNK_ROWS", 64)
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: range(7))
    parts = np.empty_like(whole)
    FreshRows(1, (TableSpec("t", 1000, dim),) * 5).fill(4, parts)
    np.testing.assert_array_equal(parts, whole)


def test_every_precision_starts_from_the_same_place() -> None:
    single = filled(4096, 16, bound=0.01)
    np.testing.assert_array_equal(filled(4096, 16, bound=0.01, dtype=np.float64), single.astype(np.float64))
    for dtype, relative in ((np.uint16, 2.0**-8), (np.int16, 2.0**-11)):
        narrow = widened(filled(4096, 16, bound=0.01, dtype=dtype))
        large = np.abs(single) > 2.0**-14
        assert (np.abs(narrow - single)[large] <= relative * np.abs(single)[large]).all()


def test_values_are_uniform_between_the_bounds() -> None:
    values = filled(1 << 16, 16, bound=0.25).ravel().astype(np.float64) / 0.25
    n = len(values)
    assert -1 <= values.min() < -0.9999
    assert 0.9999 < values.max() < 1
    assert abs(values.mean()) < 5 * np.sqrt(1 / 3 / n)
    assert abs(values.var() - 1 / 3) < 5 * np.sqrt(4 / 45 / n)
    counts = np.bincount(((values + 1) * 128).astype(np.int64), minlength=256)
    chi_square = ((counts - n / 256) ** 2).sum() / (n / 256)
    assert abs(chi_square - 255) < 5 * np.sqrt(2 * 255)
    assert (np.abs(values) > 0).mean() > 0.999


def test_a_drawn_value_does_not_depend_on_its_neighbours() -> None:
    """Correlation of n pairs of independent values has a standard error of 1 / sqrt(n)."""
    rows = 1 << 15
    values = filled(rows, 16).astype(np.float64)
    others = {
        "the next row": np.roll(values, 1, axis=0),
        "the next component": np.roll(values, 1, axis=1),
        "the other half of the draw": np.roll(values, 8, axis=1),
        "the next table": filled(rows, 16, table=1),
        "the next seed": filled(rows, 16, seed=2),
        "table and seed swapped": filled(rows, 16, seed=0, table=1),
    }
    for name, other in others.items():
        assert abs(np.corrcoef(values.ravel(), other.ravel())[0, 1]) < 5 / np.sqrt(values.size), name
        squares = np.corrcoef(values.ravel() ** 2, other.ravel() ** 2)[0, 1]
        assert abs(squares) < 5 / np.sqrt(values.size), name
    by_component = np.corrcoef(values, rowvar=False) - np.eye(16)
    assert np.abs(by_component).max() < 5.5 / np.sqrt(rows)


def test_rows_differ() -> None:
    assert len(np.unique(filled(1 << 16, 4), axis=0)) == 1 << 16
