"""The guard rails: properties that hold for every wish, and a comparison with a plain version that moves row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.errors import AdaptiveRecError
from adaptive_rec.placement import Migration
from adaptive_rec.reclassify.guard_rails import SAMPLED, plan_migration

Listed = dict[int, float]

scores = st.one_of(st.integers(-2, 6).map(float), st.just(-np.inf), st.floats(-5, 100))
listed = st.dictionaries(st.integers(0, 25), scores, max_size=25)
limits = st.tuples(st.integers(0, 12), st.sampled_from([0.0, 0.1, 1.0]), st.integers(0, 12))
"""Often fewer slots than hot rows, or fewer moves than wishes: several rules apply then."""


def plan(wanted: Listed, hot: Listed, capacity: int, hysteresis: float, most: int) -> Migration:
    def split(rows: Listed) -> tuple[Any, Any]:
        return np.array(list(rows), dtype=np.int64), np.array(list(rows.values()), dtype=np.float64)

    slot_of_row = np.full(1 + max([0, *wanted, *hot]), -1)
    slot_of_row[list(hot)] = range(len(hot))
    return plan_migration(*split(wanted), *split(hot), slot_of_row, capacity, hysteresis, most)


def plan_plainly(
    wanted: Listed, hot: Listed, capacity: int, hysteresis: float, most: int
) -> tuple[list[int], list[int]]:
    """Apply the rules one move at a time."""
    now = {row: wanted.get(row, score) for row, score in hot.items()}
    cold = {row: score for row, score in wanted.items() if row not in hot and score > -np.inf}
    promoted: list[int] = []
    demoted: list[int] = []

    def worst() -> int:
        return min(now, key=lambda row: (now[row], -row))

    def best() -> int:
        return min(cold, key=lambda row: (-cold[row], row))

    def demote(row: int) -> None:
        demoted.append(row)
        del now[row]

    while len(now) > capacity:
        demote(worst())
    most -= len(demoted)
    while cold and most > 0 and len(now) + len(promoted) < capacity:
        promoted.append(best())
        del cold[promoted[-1]]
        most -= 1
    while cold and now and most >= 2:
        bar = now[worst()] * (1 + hysteresis) if now[worst()] > 0 else now[worst()]
        if not cold[best()] > bar:
            break
        demote(worst())
        promoted.append(best())
        del cold[promoted[-1]]
        most -= 2
    while most > 0 and now and now[worst()] == -np.inf:
        demote(worst())
        most -= 1
    return sorted(promoted), sorted(demoted)


@settings(max_examples=400, deadline=None)
@given(listed, listed, limits)
def test_the_plan_equals_the_plain_version(wanted: Listed, hot: Listed, limit: tuple[int, float, int]) -> None:
    migration = plan(wanted, hot, *limit)
    assert (migration.promote.tolist(), migration.demote.tolist()) == plan_plainly(wanted, hot, *limit)


def plan_by_sorting(
    cold_rows: Any, cold_scores: Any, hot_rows: Any, hot_scores: Any, capacity: int, hysteresis: float, most: int
) -> tuple[list[int], list[int]]:
    """Apply the rules to all rows in the order of their scores, where no hot row is listed."""
    best, worst = np.lexsort((cold_rows, -cold_scores)), np.lexsort((-hot_rows, hot_scores))
    excess = max(0, len(hot_rows) - capacity)
    most = max(0, most - excess)
    fill = min(max(0, capacity - len(hot_rows)), most)
    swaps = 0
    for cold, hot in zip(cold_scores[best[fill:]], hot_scores[worst[excess:]], strict=False):
        if 2 * (swaps + 1) > most - fill or not cold > hot * (1 + hysteresis):
            break
        swaps += 1
    return np.sort(cold_rows[best[: fill + swaps]]).tolist(), np.sort(hot_rows[worst[: excess + swaps]]).tolist()


@pytest.mark.parametrize("misleading", [False, True])
@pytest.mark.parametrize(("free", "most"), [(0, 2000), (0, 13_000), (9000, 10_000), (-12_000, 13_000)])
def test_many_rows_are_planned_as_if_all_were_sorted(free: int, most: int, misleading: bool) -> None:
    """Most of them are left out early, up to a score that a sample suggests."""
    random = np.random.default_rng(most)
    rows = random.permutation(400_000)
    hot_rows, cold_rows = rows[:150_000], np.sort(rows[150_000:])
    hot_scores, cold_scores = (random.geometric(0.3, len(part)) / 16 for part in (hot_rows, cold_rows))
    if misleading:  # the sample says nothing of the others
        hot_scores[::SAMPLED], cold_scores[::SAMPLED] = 0, 9
    slot_of_row = np.full(len(rows), -1)
    slot_of_row[hot_rows] = np.arange(len(hot_rows))
    limits = len(hot_rows) + free, 0.1, most
    found = plan_migration(cold_rows, cold_scores, hot_rows, hot_scores, slot_of_row, *limits)
    expected = plan_by_sorting(cold_rows, cold_scores, hot_rows, hot_scores, *limits)
    assert (found.promote.tolist(), found.demote.tolist()) == expected
    assert found.moved_rows > most // 2


@settings(max_examples=400, deadline=None)
@given(listed, listed, limits)
def test_budget_and_limits_hold_for_every_wish(wanted: Listed, hot: Listed, limit: tuple[int, float, int]) -> None:
    capacity, _, most = limit
    migration = plan(wanted, hot, *limit)
    promote, demote = set(migration.promote.tolist()), set(migration.demote.tolist())
    assert len(promote) == len(migration.promote)
    assert len(demote) == len(migration.demote)
    assert promote <= wanted.keys() - hot.keys()
    assert demote <= hot.keys()
    assert len(hot) - len(demote) + len(promote) <= capacity
    excess = max(0, len(hot) - capacity)
    assert migration.moved_rows <= max(most, excess)
    if excess > most:
        assert not promote


@settings(max_examples=300, deadline=None)
@given(listed, listed, limits)
def test_the_same_wish_again_moves_nothing(wanted: Listed, hot: Listed, limit: tuple[int, float, int]) -> None:
    capacity, hysteresis, _ = limit
    migration = plan(wanted, hot, capacity, hysteresis, 1000)
    known = hot | wanted
    rows_then = (hot.keys() - set(migration.demote.tolist())) | set(migration.promote.tolist())
    hot_then = {row: known[row] for row in rows_then}
    assert plan(wanted, hot_then, capacity, hysteresis, 1000).moved_rows == 0


def test_free_slots_take_the_best_rows_first() -> None:
    migration = plan({1: 1.0, 2: 5.0, 3: 3.0}, {9: 0.5}, capacity=3, hysteresis=0.1, most=2)
    assert migration.promote.tolist() == [2, 3]
    assert migration.demote.tolist() == []


def test_hysteresis_holds_rows_of_nearly_equal_popularity() -> None:
    hot = {1: 10.0, 2: 20.0}
    assert plan({7: 10.9}, hot, 2, 0.1, 10).moved_rows == 0
    swapped = plan({7: 11.1}, hot, 2, 0.1, 10)
    assert (swapped.promote.tolist(), swapped.demote.tolist()) == ([7], [1])


def test_hysteresis_never_lowers_the_bar() -> None:
    for score in (0.0, -2.0):
        assert plan({7: score}, {8: score}, 1, 1.0, 10).moved_rows == 0
        assert plan({7: score + 0.5}, {8: score}, 1, 1.0, 10).moved_rows == 2


def test_a_smaller_budget_wins_over_the_bound_on_moves() -> None:
    migration = plan({50: 99.0}, {row: float(row) for row in range(10)}, capacity=4, hysteresis=0.0, most=3)
    assert migration.demote.tolist() == [0, 1, 2, 3, 4, 5]
    assert migration.promote.tolist() == []


def test_an_empty_wish_keeps_the_hot_rows() -> None:
    assert plan({}, {1: 0.0, 2: 4.0}, 5, 0.1, 10).moved_rows == 0


def test_a_score_of_minus_infinity_moves_a_row_to_the_host() -> None:
    migration = plan({1: -np.inf, 8: -np.inf}, {1: 5.0, 2: 1.0}, 5, 0.1, 10)
    assert (migration.promote.tolist(), migration.demote.tolist()) == ([], [1])


def test_of_rows_with_equal_scores_the_lower_one_is_hot() -> None:
    assert plan({4: 1.0, 3: 1.0, 5: 1.0}, {}, 2, 0.0, 10).promote.tolist() == [3, 4]
    assert plan({}, {4: 1.0, 3: 1.0, 5: 1.0}, 2, 0.0, 10).demote.tolist() == [5]


def test_a_row_listed_twice_counts_once_with_the_higher_score() -> None:
    rows, twice, slots = np.array([6, 2, 6]), np.array([1.0, 3.0, 9.0]), np.array([0, *[-1] * 6])
    migration = plan_migration(rows, twice, np.array([0]), np.array([4.0]), slots, 1, 0.0, 10)
    assert migration.promote.tolist() == [6]


def test_scores_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(AdaptiveRecError, match="scores must be numbers, got NaN for row 3"):
        plan({3: float("nan")}, {}, 5, 0.1, 10)
    with pytest.raises(AdaptiveRecError, match="rows and scores must be equally many, got 1 and 2"):
        plan_migration(np.array([1]), np.zeros(2), np.array([1]), np.zeros(1), np.array([-1, 0]), 5, 0.1, 10)


def test_inputs_stay_unchanged() -> None:
    rows, hot_scores = np.array([1, 2]), np.array([1.0, 2.0])
    plan_migration(rows, np.array([9.0, 9.0]), rows, hot_scores, np.array([-1, 0, 1]), 2, 0.1, 10)
    assert hot_scores.tolist() == [1.0, 2.0]
