"""The threshold searches against brute force, and against Slipstream's bisection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.tracking.stale import (
    critical_movement,
    stale_lookups_needed,
    threshold_for_samples,
    threshold_for_updates,
)

movements = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0, np.inf]), st.floats(0, 0.1))
ratios = st.one_of(st.sampled_from([0.0, 0.25, 0.3, 0.5, 1.0]), st.floats(0, 1))


def skipped_updates(movement: Any, touches: Any, threshold: float) -> float:
    """Share of the touches that a threshold skips."""
    known = touches > 0
    return float(touches[known & (movement < threshold)].sum() / touches[known].sum())


def skipped_samples(samples: list[list[float]], alpha: float, threshold: float) -> float:
    """Share of the samples that a threshold skips, counted as the definition says."""
    needed = stale_lookups_needed(np.array([len(s) for s in samples]), alpha)
    stale = [s for s, n in zip(samples, needed, strict=True) if s and sum(m < threshold for m in s) >= n]
    return len(stale) / len(samples)


def largest(candidates: list[float], share: Any, target: float) -> float:
    """Try every movement (the share changes nowhere else) and infinity."""
    return max(T for T in [0.0, *candidates, np.inf] if share(T) <= target)


def jagged(samples: list[list[float]], dtype: Any = np.float64) -> tuple[Any, Any]:
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in samples])]).astype(np.int64)
    return np.array([m for s in samples for m in s], dtype=dtype), offsets


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(movements, st.integers(0, 5)), min_size=1, max_size=30), ratios)
def test_threshold_for_updates_equals_brute_force(rows: list[tuple[float, int]], target: float) -> None:
    movement, touches = np.array([row[0] for row in rows]), np.array([row[1] for row in rows], dtype=np.int32)
    found = threshold_for_updates(movement, touches, target)
    if not touches.any():
        assert found == 0
        return
    assert found == largest(movement[touches > 0].tolist(), lambda T: skipped_updates(movement, touches, T), target)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(movements, max_size=8), min_size=1, max_size=12), st.sampled_from([0.1, 0.5, 0.9, 1.0]), ratios
)
def test_critical_movement_and_threshold_equal_brute_force(
    samples: list[list[float]], alpha: float, target: float
) -> None:
    critical_S = critical_movement(*jagged(samples), alpha)
    every = sorted({m for s in samples for m in s})
    for threshold in [0.0, *every, np.inf]:
        assert np.mean(critical_S < threshold) == skipped_samples(samples, alpha, threshold)
    found = threshold_for_samples(critical_S, target)
    assert found == largest(every, lambda T: skipped_samples(samples, alpha, T), target)


def bisect(share: Any, target: float, tolerance: float) -> float:
    """The search of Slipstream's released script: 25 halvings of [0, 0.1], 0 where none comes near the target."""
    low, high = 0.0, 0.1
    for _ in range(25):
        middle = (low + high) / 2
        if abs(share(middle) - target) <= tolerance:
            return middle
        low, high = (middle, high) if share(middle) < target else (low, middle)
    return 0.0


@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0, 10.0])
def test_it_comes_nearer_to_the_target_than_bisection(scale: float) -> None:
    random = np.random.default_rng(4)
    movement, touches = random.exponential(scale, 3000), random.integers(1, 9, 3000)
    ours = skipped_updates(movement, touches, threshold_for_updates(movement, touches, 0.3))
    theirs = skipped_updates(movement, touches, bisect(lambda T: skipped_updates(movement, touches, T), 0.3, 0.08))
    assert 0.3 - 9 / touches.sum() <= ours <= 0.3
    assert abs(ours - 0.3) <= abs(theirs - 0.3)
    if scale < 1:
        assert abs(theirs - 0.3) <= 0.08
    elif scale > 1:
        # Movements beyond its interval: it gives up and skips nothing.
        assert theirs == 0


def test_all_equal_movements_are_skipped_together_or_not_at_all() -> None:
    movement, touches = np.full(10, 0.02), np.ones(10, dtype=np.int32)
    assert threshold_for_updates(movement, touches, 0.3) == 0.02
    assert skipped_updates(movement, touches, 0.02) == 0
    assert threshold_for_updates(movement, touches, 1.0) == np.inf


def test_an_untouched_row_is_unknown() -> None:
    movement, touches = np.array([0.0, 0.0, 0.1, 0.2]), np.array([0, 0, 1, 1])
    assert threshold_for_updates(movement, touches, 0.5) == 0.2


def test_a_row_of_unknown_movement_is_never_stale() -> None:
    for unknown in (np.inf, np.nan):
        movement, touches = np.array([0.1, unknown]), np.array([1, 1])
        assert threshold_for_updates(movement, touches, 0.4) == 0.1
        assert threshold_for_updates(movement, touches, 0.5) == np.inf
        assert not np.any(movement[1:] < np.inf)


def test_rows_that_do_not_move_at_all_can_be_skipped() -> None:
    movement, touches = np.array([0.0, 0.0, 0.3, 0.4]), np.ones(4, dtype=np.int32)
    assert skipped_updates(movement, touches, threshold_for_updates(movement, touches, 0.5)) == 0.5
    assert threshold_for_updates(movement, touches, 0.3) == 0.0


def test_samples_without_lookups_or_with_too_few_known_rows_are_kept() -> None:
    critical_S = critical_movement(*jagged([[], [np.inf, 0.1], [np.inf, 0.1, 0.2]]), 0.6)
    assert critical_S.tolist() == [np.inf, np.inf, 0.2]
    assert critical_movement(*jagged([]), 0.6).tolist() == []
    assert threshold_for_samples(np.empty(0), 0.3) == 0.0


def test_single_precision_stays_exact() -> None:
    values, offsets = jagged([[0.1, 0.3], [0.7, 0.2]], np.float32)
    critical_S = critical_movement(values, offsets, 1.0)
    assert critical_S.dtype == np.float32
    threshold = threshold_for_samples(critical_S, 0.5)
    assert (critical_S < threshold).tolist() == [True, False]


def test_needed_lookups_round_up_but_not_for_rounding_errors() -> None:
    assert stale_lookups_needed(np.array([0, 1, 26, 100]), 0.55).tolist() == [0, 1, 15, 55]
    assert stale_lookups_needed(np.array([26, 63]), 1.0).tolist() == [26, 63]
