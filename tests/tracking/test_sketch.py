"""The sketch against its plain twin, against exact counts and against Apache DataSketches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from datasketches import count_min_sketch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from adaptive_rec.errors import CheckpointError, ConfigError
from adaptive_rec.kernels import sketch
from adaptive_rec.kernels.jit import MIN_LOOKUPS, usable_threads
from adaptive_rec.kernels.sketch_numpy import BLOCK_CELLS, REGION_BLOCKS, find_cells, sketch_seeds
from adaptive_rec.saved import Saved
from adaptive_rec.system.crew import Crew
from adaptive_rec.tracking.count_min import (
    LEAST_ROWS,
    CountMinSketch,
    of_older_version,
    saved_sketch,
    saved_width,
    width_for,
)
from tests.kernels.reference import sketch as reference_sketch
from tests.tracking.exact import ExactCounter

SEED = sketch_seeds(7)[0]

counters_arrays = hnp.arrays(
    np.uint32,
    st.tuples(st.sampled_from([4, 8, 64]), st.just(BLOCK_CELLS)),
    elements=st.one_of(st.integers(0, 9), st.integers(2**32 - 9, 2**32 - 1), st.integers(0, 2**32 - 1)),
)
updates = st.lists(st.tuples(st.integers(0, 2**62), st.one_of(st.integers(-2, 50), st.integers(0, 2**62))), max_size=40)


def columns(pairs: list[tuple[int, int]]) -> tuple[Any, Any]:
    return np.array([p[0] for p in pairs], dtype=np.int64), np.array([p[1] for p in pairs], dtype=np.int64)


@settings(max_examples=150, deadline=None)
@given(counters_arrays, updates)
def test_add_and_estimate_equal_their_twins(counters: Any, pairs: list[tuple[int, int]]) -> None:
    rows, counts = columns(pairs)
    fast, plain = counters.copy(), counters.copy()
    sketch.sketch_add(fast, rows, counts, SEED)
    reference_sketch.sketch_add(plain, rows, counts, SEED)
    np.testing.assert_array_equal(fast, plain)
    read, read_plain = np.zeros(len(rows)), np.zeros(len(rows))
    sketch.sketch_estimate(fast, rows, SEED, 16, read)
    reference_sketch.sketch_estimate(plain, rows, SEED, 16, read_plain)
    np.testing.assert_array_equal(read, read_plain)


@pytest.mark.parametrize("rows", [MIN_LOOKUPS - 1, MIN_LOOKUPS, 3 * MIN_LOOKUPS + 17])
def test_several_threads_estimate_as_one_does(rows: int) -> None:
    random = np.random.default_rng(rows)
    counters, row_U = random.integers(0, 2**32, (16, 16), dtype=np.uint32), random.integers(0, 2**62, rows)
    one, several, plain = np.zeros((3, rows))
    sketch.sketch_estimate(counters, row_U, SEED, 16, one)
    sketch.sketch_estimate(counters, row_U, SEED, 16, several, threads=usable_threads(2))
    reference_sketch.sketch_estimate(counters, row_U, SEED, 16, plain)
    np.testing.assert_array_equal(one, plain)
    np.testing.assert_array_equal(several, plain)


@settings(max_examples=150, deadline=None)
@given(counters_arrays, st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 50)), max_size=150))
def test_observe_equals_its_twin(counters: Any, lookups: list[tuple[int, int]]) -> None:
    rows, counts = columns(lookups)
    segments = np.concatenate([[0], np.cumsum(counts)])
    outcomes = []
    for module in (sketch, reference_sketch):
        changed = counters.copy()
        module.sketch_observe(changed, rows, segments, 16, SEED, 0, 1)
        outcomes.append(changed.tolist())
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("regions", [1, 2, 8])
def test_both_blocks_of_a_row_lie_in_one_region(regions: int) -> None:
    """Regions that are counted alone, in any order, give what all together give, and what the twin gives."""
    random = np.random.default_rng(regions)
    rows = random.permutation(60_000)[:20_000]
    segments = np.concatenate([[0], np.cumsum(random.integers(1, 9, len(rows)))])
    counters = random.integers(0, 99, (regions * REGION_BLOCKS, BLOCK_CELLS), dtype=np.uint32)
    whole, parts, plain = counters.copy(), counters.copy(), counters.copy()
    sketch.sketch_observe(whole, rows, segments, 16, SEED, 0, regions)
    for region in random.permutation(regions).tolist():
        before = parts.copy()
        sketch.sketch_observe(parts, rows, segments, 16, SEED, region, region + 1)
        changed = np.flatnonzero((parts != before).any(axis=1)) // REGION_BLOCKS
        assert set(changed.tolist()) == {region}
    for region in range(regions):
        reference_sketch.sketch_observe(plain, rows, segments, 16, SEED, region, region + 1)
    np.testing.assert_array_equal(parts, whole)
    np.testing.assert_array_equal(plain, whole)


def test_cells_are_used_evenly_and_blocks_of_a_row_are_independent() -> None:
    cells = find_cells(np.arange(200_000), (SEED,), (64, BLOCK_CELLS))
    assert np.array_equal(cells // 8 % 4, np.repeat([[0], [1], [2], [3]], cells.shape[1], axis=1))
    used = np.bincount(cells.reshape(-1), minlength=64 * BLOCK_CELLS)
    assert np.abs(used / used.mean() - 1).max() < 0.2  # seven standard errors of 781
    pairs = np.unique(cells[[0, 2]] // BLOCK_CELLS, axis=1)
    assert pairs.shape[1] == 32 * 32


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_any_number_of_threads_counts_and_estimates_the_same(threads: int) -> None:
    random = np.random.default_rng(threads)
    crew = Crew(threads)
    alone, shared = CountMinSketch(1 << 16), CountMinSketch(1 << 16, crew=crew)
    for _ in range(3):
        rows = random.permutation(10**6)[: threads * LEAST_ROWS + 77]
        segments = np.concatenate([[0], np.cumsum(random.integers(1, 9, len(rows)))])
        for counter in (alone, shared):
            counter.observe(rows, segments)
        np.testing.assert_array_equal(shared.counters, alone.counters)
        np.testing.assert_array_equal(shared.estimate(rows), alone.estimate(rows))
    crew.close()


@settings(max_examples=150, deadline=None)
@given(counters_arrays, st.one_of(st.sampled_from([0.0, 0.5, 0.8, 1.0]), st.floats(0, 1)), st.integers(0, 2**64 - 1))
def test_decay_equals_its_twin(counters: Any, factor: float, seed: int) -> None:
    fast, plain = counters.copy(), counters.copy()
    sketch.sketch_decay(fast, factor, np.uint64(seed), 0, fast.size)
    reference_sketch.sketch_decay(plain, factor, seed)
    np.testing.assert_array_equal(fast, plain)
    in_parts = counters.copy()
    for first, end in ((fast.size // 3, fast.size), (0, fast.size // 3)):
        sketch.sketch_decay(in_parts, factor, np.uint64(seed), first, end)
    np.testing.assert_array_equal(in_parts, plain)
    if factor == 0:
        assert not fast.any()
    if factor == 1:
        np.testing.assert_array_equal(fast, counters)


def test_counts_that_are_not_positive_change_nothing() -> None:
    for module in (sketch, reference_sketch):
        counters = np.zeros((4, 16), dtype=np.uint32)
        module.sketch_add(counters, np.array([1, 2]), np.array([0, -3]), SEED)
        assert not counters.any()


@pytest.mark.parametrize("factor", [0.1, 0.5, 0.8])
def test_decay_keeps_the_mean_also_of_small_counts(factor: float) -> None:
    for count in (1, 2, 5):
        counters = np.full((4, 1 << 16), count, dtype=np.uint32)
        sketch.sketch_decay(counters, factor, np.uint64(3), 0, counters.size)
        # Four standard errors of 2^18 draws of a variable between two neighbouring whole numbers.
        assert abs(counters.mean() - factor * count) < 4 * 0.5 / 2**9
        assert np.all(np.abs(counters - factor * count) < 1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=150),
    st.sampled_from([16, 32]),
    st.integers(0, 5),
)
def test_never_counts_too_little_and_apache_agrees(pairs: list[tuple[int, int]], width: int, seed: int) -> None:
    ours, apache = CountMinSketch(width, seed=seed), count_min_sketch(3, width, seed + 1)
    exact = ExactCounter()
    for row, count in pairs:
        rows, counts = columns([(row, count)])
        ours.add(rows, counts)
        exact.add(rows, counts)
        apache.update(row, count)
    rows = np.unique([pair[0] for pair in pairs])
    truth = exact.estimate(rows)
    assert truth.sum() == sum(pair[1] for pair in pairs)
    assert np.all(ours.estimate(rows) >= truth)
    assert np.all(np.array([apache.get_estimate(int(row)) for row in rows]) >= truth)


def test_conservative_update_errs_less_than_apaches_sketch_of_the_same_size() -> None:
    rows = np.random.default_rng(1).zipf(1.2, 40_000) % 20_000
    distinct, counts = np.unique(rows, return_counts=True)
    ours, apache = CountMinSketch(2048), count_min_sketch(4, 2048)
    for start in range(0, len(rows), 1000):
        part, part_counts = np.unique(rows[start : start + 1000], return_counts=True)
        ours.add(part, part_counts)
        for row, count in zip(part.tolist(), part_counts.tolist(), strict=True):
            apache.update(row, count)
    our_error = ours.estimate(distinct) - counts
    apache_error = np.array([apache.get_estimate(row) for row in distinct.tolist()]) - counts
    assert our_error.min() >= 0
    assert apache_error.min() >= 0
    assert our_error.mean() < 0.7 * apache_error.mean()


def test_decayed_estimates_follow_the_exact_counter() -> None:
    random = np.random.default_rng(2)
    ours, exact = CountMinSketch(1 << 16), ExactCounter()  # so wide that no row shares all of its cells
    rows = np.arange(2000)
    for _ in range(10):
        counts = random.integers(0, 30, len(rows))
        ours.add(rows, counts)
        exact.add(rows, counts)
        ours.decay(0.8)
        exact.decay(0.8)
    error = ours.estimate(rows) - exact.estimate(rows)
    assert abs(error.mean()) < 0.2
    assert np.abs(error).max() < 1


def test_two_sketches_of_one_seed_are_one() -> None:
    pair = CountMinSketch(64, seed=5), CountMinSketch(64, seed=5)
    for one in pair:
        one.add(np.arange(50), np.arange(50))
        one.decay(0.7)
        one.decay(0.7)
    np.testing.assert_array_equal(pair[0].counters, pair[1].counters)
    assert not np.array_equal(CountMinSketch(64, seed=6).seeds, pair[0].seeds)


def test_every_decay_draws_other_random_numbers() -> None:
    counter = CountMinSketch(1 << 10)
    lost = []
    for _ in range(2):
        counter.counters[:] = 1
        counter.decay(0.5)
        lost.append(counter.counters == 0)
    assert 0.2 < np.mean(lost[0] & lost[1]) < 0.3


def test_a_full_cell_stays_full() -> None:
    counter = CountMinSketch(16)
    for _ in range(3):
        counter.add(np.array([3]), np.array([2**62]))
    assert counter.counters.max() == 2**32 - 1
    assert counter.estimate(np.array([3]))[0] == (2**32 - 1) / 16


@pytest.mark.parametrize("width", [0, 1, 8, 100])
def test_impossible_widths_are_refused(width: int) -> None:
    with pytest.raises(ConfigError, match=r"must be"):
        CountMinSketch(width)


def test_a_sketch_takes_over_what_one_of_an_older_version_remembers() -> None:
    """Its counters are lines. Rows that are known keep their estimates, which may only grow; decays go on."""
    random = np.random.default_rng(3)
    rows, seeds = random.permutation(10**6)[:3000], sketch_seeds(5, 4)
    lines = np.zeros((4, 1 << 12), dtype=np.uint32)
    units = random.integers(1, 500, len(rows))
    lines.reshape(-1)[find_cells(rows, seeds, lines.shape)] = units
    found = Saved({"counters": lines, "decays": 7})
    old = saved_sketch(found, seed=5)
    assert of_older_version(found)
    assert saved_width(found) == 1 << 12
    ours = CountMinSketch(saved_width(found), seed=5)
    ours.add(rows, rows)
    ours.set_state(found)
    assert ours.decays == 7
    assert not ours.counters.any()
    ours.take_over(old, rows[:2000])
    before, after = old.estimate(rows[:2000]), ours.estimate(rows[:2000])
    assert np.all(after >= before)
    assert np.mean(after == before) > 0.8
    state = Saved(ours.state())
    assert not of_older_version(state)
    again = saved_sketch(state, seed=5)
    np.testing.assert_array_equal(again.estimate(rows), ours.estimate(rows))


@pytest.mark.parametrize("shape", [(3, 16), (2, 16), (4, 17), (4, 12), (0, 16), (64,), (0, 64)])
def test_saved_counters_that_can_be_no_sketch_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(CheckpointError, match=r"a sketch must have 2\^n blocks of 16 cells, got"):
        saved_sketch(Saved({"counters": np.zeros(shape, np.uint32), "decays": 0}), seed=0)


def test_decay_outside_its_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"decay must be between 0 and 1, got 1\.5"):
        CountMinSketch(64).decay(1.5)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**8), st.integers(1, 10**9), st.integers(1 << 14, 1 << 34))
def test_width_is_wide_enough_and_affordable(hot_rows: int, rows: int, limit_bytes: int) -> None:
    width = width_for(hot_rows, rows, limit_bytes)
    assert width & (width - 1) == 0
    assert 16 * width <= limit_bytes
    cramped = 32 * width > limit_bytes
    assert cramped or width >= 4 * min(hot_rows, rows)
    assert width <= max(2 * max(4 * min(hot_rows, rows), min(rows, 1 << 16)), 1024)


def test_width_needs_some_memory() -> None:
    with pytest.raises(ConfigError, match="limit_bytes must be at least 16384, got 10"):
        width_for(10, 10, 10)
