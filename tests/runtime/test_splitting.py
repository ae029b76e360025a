"""The choice to split steps is made by times, written to the journal, and read from there by a replay."""

from __future__ import annotations

import pytest

from adaptive_rec.runtime.splitting import BLOCK_STEPS, BLOCKS, TRIAL_EVERY_STEPS, UNTIMED_STEPS, Splitting, TrialTimes

TRIAL_STEPS = BLOCK_STEPS * BLOCKS


def hold_trial(splitting: Splitting, first: int, whole: float, split: float, untimed: float = 0.0) -> list[TrialTimes]:
    """Make the steps of a trial, each as long as its kind takes; returns what was found and when."""
    clock, found = 100.0, []
    for step in range(first, first + TRIAL_STEPS):
        early = (step - first) % BLOCK_STEPS < UNTIMED_STEPS
        clock += (split if splitting.at(step) else whole) + (untimed if early else 0.0)
        if outcome := splitting.after_step(step + 1, clock):
            assert step == first + TRIAL_STEPS - 1
            found.append(outcome)
    return found


@pytest.mark.parametrize(("whole", "split"), [(2.0, 1.0), (1.0, 2.0), (1.0, 1.0)])
@pytest.mark.parametrize("first", [0, 7, 100])
def test_the_quicker_way_is_chosen(first: int, whole: float, split: float) -> None:
    splitting = Splitting("auto", tries=True)
    assert not splitting.at(first), "whole until something is known"
    splitting.begin_trial(first)
    (outcome,) = hold_trial(splitting, first, whole, split, untimed=50.0)
    assert outcome.whole_seconds == pytest.approx(whole)
    assert outcome.split_seconds == pytest.approx(split)
    assert splitting.at(first + TRIAL_STEPS) == outcome.split == (split < whole), "at a tie batches stay whole"


def test_one_slow_block_of_three_does_not_decide() -> None:
    splitting = Splitting("auto", tries=True)
    splitting.begin_trial(0)
    clock, outcome = 0.0, None
    for step in range(TRIAL_STEPS):
        disturbed = step // BLOCK_STEPS == 2
        clock += (1.0 if splitting.at(step) else 0.9) + (5.0 if disturbed else 0.0)
        outcome = splitting.after_step(step + 1, clock)
    assert outcome is not None
    assert not outcome.split


@pytest.mark.parametrize(("wanted", "tries", "splits"), [
    ("always", True, True), ("always", False, True), ("never", True, False), ("auto", False, False),
])  # fmt: skip
def test_only_auto_holds_trials_where_it_may(wanted: str, tries: bool, splits: bool) -> None:
    splitting = Splitting(wanted, tries)
    splitting.begin_trial(0)
    assert [splitting.at(step) for step in range(TRIAL_STEPS)] == [splits] * TRIAL_STEPS
    assert not hold_trial(splitting, 0, 1.0, 0.5)


def test_trials_are_far_apart_unless_something_changed() -> None:
    splitting = Splitting("auto", tries=True)
    splitting.begin_trial(0)
    hold_trial(splitting, 0, 2.0, 1.0)
    assert splitting.chosen
    splitting.begin_trial(TRIAL_STEPS)
    assert all(splitting.at(step) for step in range(TRIAL_STEPS, 2 * TRIAL_STEPS)), "no trial, so all are split"
    splitting.forget()
    splitting.begin_trial(2 * TRIAL_STEPS)
    assert not splitting.at(2 * TRIAL_STEPS), "a trial begins whole"
    hold_trial(splitting, 2 * TRIAL_STEPS, 1.0, 2.0)
    assert not splitting.chosen
    later = 2 * TRIAL_STEPS + TRIAL_EVERY_STEPS
    splitting.begin_trial(later)
    assert splitting.at(later + BLOCK_STEPS), "its second block is split"


def test_a_change_ends_a_trial_without_an_outcome() -> None:
    splitting = Splitting("auto", tries=True)
    splitting.begin_trial(0)
    for step in range(TRIAL_STEPS):
        if step == TRIAL_STEPS // 2:
            splitting.forget()
        assert splitting.after_step(step + 1, float(step)) is None
    assert not splitting.chosen


def test_a_replayed_run_holds_trials_and_chooses_nothing() -> None:
    """The steps of a trial are part of what a run did, its times are not."""
    splitting, replaying = Splitting("auto", tries=True), Splitting("auto", tries=True, replaying=True)
    for each in (splitting, replaying):
        each.begin_trial(5)
    assert [replaying.at(step) for step in range(5, 5 + TRIAL_STEPS)] == [splitting.at(s) for s in range(5, 5 + TRIAL_STEPS)]
    assert not hold_trial(replaying, 5, 2.0, 1.0)
    assert not replaying.chosen
