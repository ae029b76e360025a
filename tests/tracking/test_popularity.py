"""The popularity tracker: which steps it samples, which rows it remembers, what a window's end does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.placement import Migration
from adaptive_rec.saved import Saved
from adaptive_rec.tracking.count_min import CountMinSketch
from adaptive_rec.tracking.popularity import Counter, PopularityTracker, best_rows, samples
from tests.tracking.exact import ExactCounter


@pytest.fixture(params=["sketch", "exact"])
def counter(request: pytest.FixtureRequest) -> Counter:
    return CountMinSketch(1 << 12) if request.param == "sketch" else ExactCounter()


def segments(counts: Any) -> Any:
    """Where each distinct row's lookups begin and end, as a batch keeps it."""
    return np.concatenate([[0], np.cumsum(counts)])


def see(tracker: PopularityTracker, rows: list[int], cold: list[int], counts: list[int] | None = None) -> None:
    rows_U = np.array(rows, dtype=np.int64)
    counts_U = np.array(counts or [1] * len(rows), dtype=np.int64)
    tracker.observe(rows_U, segments(counts_U), np.where(np.isin(rows_U, cold), -1, 1))


@settings(max_examples=200, deadline=None)
@given(st.floats(0.001, 1), st.integers(0, 10**6), st.integers(1, 300))
def test_sampling_is_even(ratio: float, first: int, steps: int) -> None:
    sampled = sum(samples(step, ratio) for step in range(first, first + steps))
    assert abs(sampled - ratio * steps) < 1 + 1e-6


def test_ratio_one_samples_every_step() -> None:
    assert all(samples(step, 1.0) for step in range(1000))
    assert [step for step in range(12) if samples(step, 0.25)] == [3, 7, 11]


def test_cold_rows_become_candidates(counter: Counter) -> None:
    tracker = PopularityTracker(counter, 10)
    assert tracker.candidates().tolist() == []
    see(tracker, [9, 3, 4], cold=[9, 3])
    see(tracker, [3, 7], cold=[3, 7])
    assert tracker.candidates().tolist() == [3, 7, 9]
    assert tracker.estimate(np.array([3, 4, 7, 100])).tolist() == [2, 1, 1, 0]


def test_a_window_ends(counter: Counter) -> None:
    tracker = PopularityTracker(counter, 10)
    see(tracker, [1, 2, 3], cold=[1, 2], counts=[4, 2, 8])
    tracker.end_window(0.5, Migration(promote=np.array([2]), demote=np.array([3])))
    assert tracker.candidates().tolist() == [1, 3]
    assert tracker.estimate(np.array([1, 2, 3])).tolist() == [2, 1, 4]
    tracker.end_window(0.0)
    assert tracker.candidates().tolist() == [1, 3]
    assert not tracker.estimate(np.array([1, 2, 3])).any()


@pytest.mark.parametrize("seed", range(5))
def test_candidates_are_the_cold_rows_met_whenever_they_are_requested(counter: Counter, seed: int) -> None:
    random = np.random.default_rng(seed)
    tracker, truth = PopularityTracker(counter, 10), set[int]()
    for _ in range(40):
        deed, rows = random.integers(0, 6), np.unique(random.integers(0, 60, random.integers(0, 20)))
        if deed < 2:
            see(tracker, rows.tolist(), cold=rows.tolist())
            truth |= set(rows.tolist())
        elif deed == 2:
            left = [row for row in sorted(truth) if row % 3]
            tracker.end_window(0.9, Migration(promote=np.array(sorted(truth - set(left))), demote=rows))
            truth = set(left) | set(rows.tolist())
        elif deed == 3:
            saved = tracker.state()
            saved["met"] = saved["met"].copy()
            tracker = PopularityTracker(counter, 10)
            tracker.set_state(Saved(saved))
        elif deed == 4:
            tracker.forget(random.permutation(rows))
            truth -= set(rows.tolist())
        else:
            assert tracker.candidates().tolist() == sorted(truth)
    assert tracker.candidates().tolist() == sorted(truth)


def test_rows_may_move_in_any_order(counter: Counter) -> None:
    """Those of a list come in the order of their policy; some that leave are candidates already."""
    tracker = PopularityTracker(counter, 10)
    see(tracker, [1, 2, 3, 5, 8], cold=[1, 2, 3, 5, 8])
    tracker.end_window(1.0, Migration(promote=np.array([5, 2]), demote=np.array([9, 3, 0])))
    assert tracker.candidates().tolist() == [0, 1, 3, 8, 9]


def test_candidates_are_bounded_and_the_popular_survive(counter: Counter) -> None:
    tracker = PopularityTracker(counter, 100)
    popular = np.arange(0, 1000, 10)
    random = np.random.default_rng(0)
    for _ in range(60):
        rows = np.union1d(random.integers(0, 10**9, 5000), popular)
        counts = np.where(np.isin(rows, popular), 50, 1)
        tracker.observe(rows, segments(counts), np.full(len(rows), -1))
        assert len(tracker.candidates()) <= tracker.limit_rows + len(rows)
    assert np.isin(popular, tracker.candidates()).all()
    assert tracker.bytes - counter.bytes <= 8 * (tracker.limit_rows + 5100)


def test_the_bound_follows_the_capacity() -> None:
    tracker = PopularityTracker(ExactCounter(), 50_000)
    rows = np.arange(150_000)
    tracker.observe(rows, segments(np.where(rows < 40_000, 9, 1)), ~rows)
    assert len(tracker.candidates()) == 150_000
    tracker.resize(10)
    assert tracker.candidates().tolist() == list(range(tracker.limit_rows // 2))


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.integers(0, 50), st.integers(-3, 3)), st.integers(0, 60))
def test_best_rows_equals_sorting(scores: dict[int, int], count: int) -> None:
    rows = np.array(sorted(scores), dtype=np.int64)
    values = np.array([scores[row] for row in rows.tolist()], dtype=np.float64)
    expected = sorted(sorted(scores, key=lambda row: (-scores[row], row))[:count])
    assert best_rows(rows, values, count).tolist() == expected


def test_exact_counts_are_exact() -> None:
    exact = ExactCounter()
    assert exact.estimate(np.array([1, 2])).tolist() == [0, 0]
    exact.add(np.array([2**40, 5, 5, 8]), np.array([1, 2, 3, -4]))
    exact.decay(0.5)
    exact.add(np.array([7]), np.array([2]))
    assert exact.estimate(np.array([5, 7, 2**40, 8, 6])).tolist() == [2.5, 2, 0.5, 0, 0]
    assert exact.best(2).tolist() == [5, 7]
    assert exact.bytes == 3 * 16
