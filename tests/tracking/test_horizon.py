"""Memories tried at once: against a slow reference, thinned samples against whole ones, and what wins on which stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from adaptive_rec.errors import ConfigError
from adaptive_rec.tracking.hashes import hash_rows
from adaptive_rec.tracking.horizon import (
    DECAYS,
    FIRST_MEMORY,
    FORGOTTEN_LOOKUPS,
    INTERVALS_TICKS,
    LEAVE_MARGIN,
    MARGIN,
    MEMORIES,
    PROVEN_WINDOWS,
    SCORE_DECAY,
    Memory,
    MemoryTrials,
)

Step = dict[int, int]
"""Row -> lookups."""


def feed(trials: MemoryTrials, step: Step) -> None:
    rows = np.array(list(step), dtype=np.int64)
    trials.observe(rows, np.concatenate([[0], np.cumsum(list(step.values()), dtype=np.int64)]).astype(np.int64))


class SlowTrials:
    """Every row is in the sample, one memory after the other, dictionaries."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.ticks = 0
        self.counts: list[dict[int, Any]] = [{} for _ in MEMORIES]
        self.hot: list[set[int]] = [set() for _ in MEMORIES]
        self.missed = [0.0] * len(MEMORIES)
        self.lookups = 0.0
        self.present = FIRST_MEMORY

    def tick(self, steps: list[Step]) -> None:
        now: Step = {}
        for row in sorted({row for step in steps for row in step}):
            now[row] = sum(step.get(row, 0) for step in steps)
        if self.ticks:
            self.lookups = SCORE_DECAY * self.lookups + sum(now.values())
            for m, hot in enumerate(self.hot):
                missed = sum(count for row, count in now.items() if row not in hot)
                self.missed[m] = SCORE_DECAY * self.missed[m] + missed
        self.ticks += 1
        for m, memory in enumerate(MEMORIES):
            counts = self.counts[m]
            for row, count in now.items():
                counts[row] = counts.get(row, np.float32(0)) + np.float32(count)
            ends = [tick for tick in (1, 2, 4) if tick < memory.ticks] + [memory.ticks * n for n in range(1, 99)]
            if self.ticks not in ends:
                continue
            best = sorted((row for row in counts if counts[row] > 0), key=lambda row: -counts[row])
            self.hot[m] = set(best[: self.capacity])
            since = self.ticks - max([0, *(tick for tick in ends if tick < self.ticks)])
            for row in counts:
                counts[row] *= np.float32(memory.decay**since)
                if counts[row] < FORGOTTEN_LOOKUPS:
                    counts[row] = np.float32(0)

    def caught(self, memory: Memory) -> float:
        return 1 - self.missed[MEMORIES.index(memory)] / self.lookups if self.lookups else 0.0

    def best(self) -> Memory:
        proven = [memory for memory in MEMORIES if self.ticks > PROVEN_WINDOWS * memory.ticks]
        if not proven:
            return FIRST_MEMORY
        top = max(self.caught(memory) for memory in proven)
        longest = max(memory.ticks for memory in proven if top - self.caught(memory) <= MARGIN)
        if top - self.caught(self.present) > LEAVE_MARGIN or longest > self.present.ticks:
            long = [memory for memory in MEMORIES if memory.ticks == longest]
            self.present = max(long, key=lambda memory: (self.caught(memory), memory.decay))
        return self.present


steps = st.dictionaries(st.integers(0, 40), st.integers(1, 5), max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(steps, max_size=3), min_size=1, max_size=30), st.integers(0, 8))
def test_scores_and_answers_equal_those_of_the_slow_reference(ticks: list[list[Step]], capacity: int) -> None:
    fast, slow = MemoryTrials(capacity, seed=3), SlowTrials(capacity)
    for tick in ticks:
        for step in tick:
            feed(fast, step)
        fast.end_tick()
        slow.tick(tick)
        np.testing.assert_allclose(
            [fast.caught_ratio(m) for m in MEMORIES], [slow.caught(m) for m in MEMORIES], atol=1e-9
        )
        assert fast.best() == slow.best()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 60), st.integers(1, 12))
def test_a_thinned_sample_is_what_it_would_have_been_from_the_start(seed: int, limit: int, ticks: int) -> None:
    random = np.random.default_rng(seed)
    thin, whole = MemoryTrials(5, seed, limit_rows=limit), MemoryTrials(5, seed, limit_rows=10_000)
    rate = 1.0
    for _ in range(ticks):
        for _ in range(3):
            rows, counts = np.unique(random.zipf(1.3, 40) % 1000, return_counts=True)
            step = dict(zip(rows.tolist(), counts.tolist(), strict=True))
            feed(thin, step)
            feed(whole, step)
        thin.end_tick()
        whole.end_tick()
        mine, all_of_them = remembered(thin), remembered(whole)
        assert len(thin._rows[: thin.held_rows]) == thin.held_rows <= limit
        sampled = hash_rows(np.array(list(all_of_them)), thin._salt) <= thin._threshold
        assert mine == {row: all_of_them[row] for row, kept in zip(all_of_them, sampled, strict=True) if kept}
        assert thin.rate <= rate
        rate = thin.rate
    assert whole.rate == 1


def remembered(trials: MemoryTrials) -> dict[int, list[float]]:
    """What the memories know of each row of which any knows anything."""
    counts = trials._counts[:, : trials.held_rows].T.tolist()
    rows = trials._rows[: trials.held_rows].tolist()
    return {row: known for row, known in sorted(zip(rows, counts, strict=True)) if any(known)}


def zipf_steps(random: np.random.Generator, rows: NDArray[np.int64], ticks: int) -> list[tuple[Any, Any]]:
    """For each tick a step of 4,000 lookups; the first of the rows are the most popular."""
    weight = 1 / np.arange(1, len(rows) + 1) ** 0.8
    drawn = [random.choice(rows, 4000, p=weight / weight.sum()) for _ in range(ticks)]
    found = [np.unique(lookups, return_counts=True) for lookups in drawn]
    return [(rows_U, np.concatenate([[0], np.cumsum(counts_U)])) for rows_U, counts_U in found]


def follow(trials: MemoryTrials, ticks: list[tuple[Any, Any]]) -> list[Memory]:
    answers = []
    for rows_U, segments_U1 in ticks:
        trials.observe(rows_U, segments_U1)
        trials.end_tick()
        answers.append(trials.best())
    return answers


def shifting(random: np.random.Generator, ticks: int) -> list[tuple[Any, Any]]:
    """Other rows are popular in every tick and the one after it."""
    whole = []
    for tick in range(ticks):
        rows = np.concatenate([np.arange(200) + 200 * (tick - 1), np.arange(200) + 200 * tick])
        whole += zipf_steps(random, random.permutation(rows), 1)
    return whole


def changes(answers: list[Memory]) -> int:
    return sum(one != other for one, other in zip(answers, answers[1:], strict=False))


@pytest.mark.parametrize("limit", [1 << 14, 512])
def test_a_stream_that_stays_the_same_is_remembered_long(limit: int) -> None:
    random = np.random.default_rng(1)
    answers = follow(MemoryTrials(200, 1, limit), zipf_steps(random, random.permutation(5000), 60))
    assert answers[-1].ticks == max(INTERVALS_TICKS)
    assert answers[-1].decay >= 0.9
    assert changes(answers) <= 4


@pytest.mark.parametrize("limit", [1 << 14, 512])
def test_a_stream_that_drifts_fast_is_forgotten_fast(limit: int) -> None:
    answers = follow(MemoryTrials(200, 1, limit), shifting(np.random.default_rng(2), 60))
    assert answers[-1].ticks == 1
    assert answers[-1].decay <= 0.3
    assert changes(answers) <= 2


def test_the_answer_follows_when_a_stream_begins_to_drift_and_calms_down_again() -> None:
    random = np.random.default_rng(3)
    trials, rows = MemoryTrials(200), random.permutation(5000) + 1_000_000
    calm = follow(trials, zipf_steps(random, rows, 60))[-1]
    wild = follow(trials, shifting(random, 30))[-1]
    calm_again = follow(trials, zipf_steps(random, rows, 120))[-1]
    assert wild.ticks == 1 < calm.ticks == calm_again.ticks
    assert wild.decay < calm.decay


def test_a_sample_of_rows_gives_about_the_result_of_all_rows() -> None:
    random = np.random.default_rng(4)
    ticks = zipf_steps(random, random.permutation(20_000), 40)
    whole = MemoryTrials(1000, limit_rows=1 << 15)
    follow(whole, ticks)
    for seed in range(4):
        some = MemoryTrials(1000, seed, limit_rows=2048)
        follow(some, ticks)
        assert some.rate < 0.2
        assert np.abs(some.caught_M - whole.caught_M).max() < 0.06
        behind = [trials.caught_M.max() - trials.caught_M for trials in (some, whole)]
        assert np.abs(behind[0] - behind[1]).max() < 0.03, "differences are told better, and the answer goes by them"


def test_nothing_but_the_seed_is_left_to_chance() -> None:
    random = np.random.default_rng(5)
    ticks = zipf_steps(random, random.permutation(5000), 12)
    one, same, other = (MemoryTrials(200, seed, 512) for seed in (1, 1, 2))
    assert follow(one, ticks) == follow(same, ticks)
    follow(other, ticks)
    assert remembered(one) == remembered(same) != remembered(other)


def test_windows_are_no_longer_than_they_have_been_tried() -> None:
    random = np.random.default_rng(6)
    for ticks, answer in enumerate(follow(MemoryTrials(50), zipf_steps(random, np.arange(100), 30)), start=1):
        assert answer == FIRST_MEMORY or ticks > PROVEN_WINDOWS * answer.ticks


def test_a_budget_that_grows_is_gone_by_from_then_on() -> None:
    trials = MemoryTrials(0)
    one_lookup_each = {row: 1 for row in range(100)}
    for tick in range(8):
        if tick == 4:
            assert trials.caught_M.tolist() == [0] * len(MEMORIES)
            trials.resize(100)
        feed(trials, one_lookup_each)
        trials.end_tick()
    assert trials.caught_ratio(Memory(0.98, 1)) > 0.3


def test_memories_are_distinct_and_decay_by_window() -> None:
    assert len(set(MEMORIES)) == len(DECAYS) * len(INTERVALS_TICKS)
    assert FIRST_MEMORY in MEMORIES
    assert Memory(0.9, 4).window_decay == pytest.approx(0.6561)
    with pytest.raises(ConfigError, match="limit_rows must be at least 2, got 1"):
        MemoryTrials(10, limit_rows=1)
