"""Rows that are added up, measured and changed in vector registers, compared with their plain twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from adaptive_rec.kernels import row_vectors, rows16
from tests.kernels.reference import row_vectors as plain

DIMS = (1, 3, 8, 16, 20, 48, 128, 150, 256)
"""Whole vectors, parts of one, and both."""


@njit
def _sum(hot, cold, source, start, stop, out, line):  # type: ignore[no-untyped-def]
    rows16.sum_listed(hot, cold, source, start, stop, out, line)


@njit
def _square(values, line):  # type: ignore[no-untyped-def]
    return row_vectors.sum_of_squares(values, line)


@njit
def _subtract(rows, row, scale, values, line):  # type: ignore[no-untyped-def]
    row_vectors.subtract_scaled(rows, row, scale, values, line)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_listed_rows_of_both_tiers_are_added_up_and_no_other_line_changes(dtype: Any) -> None:
    rng, close = np.random.default_rng(1), 3e-6 if dtype == np.float32 else 1e-14
    for dim in DIMS:
        hot, cold = (rng.standard_normal((rows, dim)).astype(dtype) for rows in (5, 7))
        for kind in (np.int64, np.int32):
            source = rng.integers(-7, 5, 12).astype(kind)
            for start, stop in ((0, 12), (3, 4), (5, 5)):
                made = [np.full((3, dim), 9, dtype) for _ in range(2)]
                _sum(hot, cold, source, start, stop, made[0], 1)
                plain.sum_rows(hot, cold, source, start, stop, made[1], 1)
                np.testing.assert_allclose(made[0], made[1], rtol=close, atol=close)
                np.testing.assert_array_equal(made[0][[0, 2]], 9)


def test_a_sum_does_not_depend_on_the_tiers_of_its_rows() -> None:
    """Bit by bit: a policy that moves rows changes no sum."""
    rng = np.random.default_rng(4)
    for dim in DIMS:
        rows, source, made = (
            rng.standard_normal((8, dim)).astype(np.float32),
            rng.integers(0, 8, 13),
            np.zeros((3, dim), np.float32),
        )
        for line, listed in enumerate((source, ~source, np.where(source < 4, source, ~source))):
            _sum(rows, rows, listed, 0, 13, made, line)
        np.testing.assert_array_equal(made[0], made[1])
        np.testing.assert_array_equal(made[0], made[2])


def test_rows_of_16_bits_are_added_up_as_the_numbers_that_they_stand_for() -> None:
    rng = np.random.default_rng(2)
    for kind, pattern in (("bf16", np.uint16), ("fp16", np.int16)):
        assert rows16.PATTERNS[kind] == pattern
        for dim in DIMS:
            numbers = rng.standard_normal((9, dim)).astype(np.float32)
            rows = _patterns(numbers, kind)
            held = _numbers(rows, kind)
            for total, near in ((np.float32, 3e-6), (np.float64, 1e-14)):
                source, made = rng.integers(0, 9, 6), np.full((2, dim), 9, total)
                expected = made.copy()
                _sum(rows, rows, source, 0, 6, made, 0)
                plain.sum_rows(held.astype(total), held.astype(total), source, 0, 6, expected, 0)
                np.testing.assert_allclose(made, expected, rtol=near, atol=near)


def _patterns(numbers: Any, kind: str) -> Any:
    import torch

    half = torch.from_numpy(numbers).to(torch.bfloat16 if kind == "bf16" else torch.float16)
    return half.view(torch.int16).numpy().view(rows16.PATTERNS[kind])


def _numbers(rows: Any, kind: str) -> Any:
    import torch

    found = torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16 if kind == "bf16" else torch.float16)
    return found.float().numpy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_squares_and_scaled_differences_are_those_of_the_twin(dtype: Any) -> None:
    rng, close = np.random.default_rng(3), {"rtol": 2e-6 if dtype == np.float32 else 1e-14}
    for dim in DIMS:
        rows, values = (rng.standard_normal((4, dim)).astype(dtype) for _ in range(2))
        np.testing.assert_allclose(_square(values, 2), plain.sum_of_squares(values, 2), **close)
        made = [rows.copy(), rows.copy()]
        _subtract(made[0], 3, dtype(0.37), values, 1)
        plain.subtract_scaled(made[1], 3, 0.37, values, 1)
        np.testing.assert_allclose(made[0], made[1], atol=1e-6 if dtype == np.float32 else 1e-14, **close)
        np.testing.assert_array_equal(made[0][:3], rows[:3])
