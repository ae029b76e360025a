"""Sets of rows beside their plain twins."""

from __future__ import annotations

import numpy as np
import pytest

from adaptive_rec.kernels.row_sets import are_in, are_without_value, distinct_rows, drop_rows, keep_cold, merge_rows


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_found_as_by_the_plain_twin(seed: int) -> None:
    random = np.random.default_rng(seed)
    first, span = random.integers(0, 10**9), random.integers(1, 500)
    rows, others = (random.integers(first, first + span, random.integers(0, 200)) for _ in range(2))
    np.testing.assert_array_equal(are_in(rows, others), np.isin(rows, others))


@pytest.mark.parametrize("seed", range(20))
def test_distinct_rows_and_cold_ones_are_those_of_the_plain_twins(seed: int) -> None:
    random = np.random.default_rng(seed)
    first, span = random.integers(0, 10**9), random.integers(1, 500)
    rows = random.integers(first, first + span, random.integers(0, 200))
    np.testing.assert_array_equal(distinct_rows(rows), np.unique(rows))
    source, out = random.integers(-9, 9, len(rows)).astype(np.int32), np.empty(len(rows), dtype=np.int64)
    np.testing.assert_array_equal(out[: keep_cold(rows, source, out)], rows[source < 0])


def test_rows_without_a_slot_or_with_an_empty_one_have_no_value() -> None:
    random = np.random.default_rng(3)
    empty_S = random.random(50) < 0.3
    for dtype in (np.int32, np.int64):
        slot_N = random.integers(-3, 60, 500).astype(dtype)
        found_N = np.empty(len(slot_N), np.bool_)
        are_without_value(slot_N, empty_S, found_N)
        np.testing.assert_array_equal(found_N, (slot_N < 0) | np.append(empty_S, 10 * [True])[slot_N])


def test_each_bit_of_a_word_is_listed() -> None:
    rows = np.arange(64) * 65
    np.testing.assert_array_equal(distinct_rows(rows[::-1].copy()), rows)


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_changed_in_place_as_by_the_plain_twins(seed: int) -> None:
    random = np.random.default_rng(seed)
    span = random.integers(1, 300)
    rows, others = (np.unique(random.integers(0, span, random.integers(0, 200))) for _ in range(2))
    room = np.concatenate([rows, np.full(len(others), -7)])
    count = merge_rows(room, len(rows), others.copy())
    np.testing.assert_array_equal(room[:count], np.union1d(rows, others))
    assert (room[count:] == -7).all(), "nothing is written behind the rows"
    dropped = rows.copy()
    np.testing.assert_array_equal(dropped[: drop_rows(dropped, len(rows), others)], np.setdiff1d(rows, others))
