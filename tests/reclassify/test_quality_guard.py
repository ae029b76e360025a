"""The guard: progressive validation on samples that are never skipped, and how the policy adaptive uses it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.live.telemetry import Event
from adaptive_rec.policies.adaptive import Adaptive
from adaptive_rec.policy import QualityView, Verdict
from adaptive_rec.reclassify.quality_guard import QualityGuard
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.pipeline import Pipeline
from adaptive_rec.saved import Saved

KNOBS = Knobs(keep_probability=0.4)


class Late(Fetched):
    """Losses that do not arrive before they are waited for."""

    def is_here(self) -> bool:
        return False


@pytest.mark.parametrize("kind", [Fetched, Late])
def test_a_window_has_mean_and_standard_error_of_the_guards_samples(kind: Any) -> None:
    random, guard, seen = np.random.default_rng(1), QualityGuard(), []
    for size in range(1, 30):
        losses, lines = random.random(size), np.flatnonzero(random.random(size) < 0.3)
        guard.add(kind(losses), lines)
        seen.append(losses[lines])
    values = np.concatenate(seen)
    view = guard.end_window(KNOBS)
    assert view.samples == len(values)
    assert view.logloss == pytest.approx(values.mean())
    assert view.standard_error == pytest.approx(values.std(ddof=1) / math.sqrt(len(values)))
    assert guard.end_window(KNOBS).samples == 0, "a window begins with nothing"


def test_a_window_of_one_sample_or_none_changes_nothing() -> None:
    guard = QualityGuard()
    guard.add(Fetched(np.array([1.0])), np.array([0]))
    assert math.isinf(guard.end_window(KNOBS).standard_error)
    assert Adaptive().judge_quality(QualityView(KNOBS, 0, math.nan, math.inf)) is None


SIGMA = 0.5
NEEDED = 2 * (1.645 * SIGMA / (KNOBS.guard_max_logloss_increase / 2)) ** 2
"""Guard samples of a block, written out: its noise is half the limit."""

WINDOW = int(NEEDED / 10) + 1
"""Guard samples of a judgement: ten make a block."""

LIMIT = KNOBS.guard_max_logloss_increase


def judge(policy: Adaptive, logloss: float, samples: int = WINDOW, knobs: Knobs = KNOBS) -> Verdict | None:
    return policy.judge_quality(QualityView(knobs, samples, logloss, SIGMA / math.sqrt(samples)))


def settled() -> Adaptive:
    """Return a policy after so many level windows that it skips as much as the knob allows."""
    policy = Adaptive()
    for _ in range(26):
        judge(policy, 0.5)
    assert policy.chance(KNOBS) == KNOBS.keep_probability
    return policy


def test_nothing_is_skipped_before_two_blocks_of_samples_are_there() -> None:
    policy, chances = Adaptive(), []
    for _ in range(40):
        judge(policy, 0.5)
        chances.append(policy.chance(KNOBS))
    first = next(number for number, chance in enumerate(chances, 1) if chance < 1)
    assert first * WINDOW >= 2 * NEEDED
    assert first == 20
    assert chances[19:29] == sorted(chances[19:29], reverse=True), "the chance comes down step by step"
    assert chances[28] == KNOBS.keep_probability
    assert set(chances[29:39]) == {1.0}, "the next block shows what skipping held back"
    assert chances[39] < 1


def test_the_first_judgement_reports_how_many_samples_it_takes() -> None:
    policy, shown = Adaptive(), []
    for _ in range(15):
        shown.append(judge(policy, 0.5))
    assert shown[0] is not None
    assert shown[0].keep_probability == 1
    left = (2 * NEEDED - WINDOW) / (KNOBS.guard_ratio * (1 - KNOBS.probe_ratio))
    assert f"for at least about {left / 1e6:.1f} M samples" in shown[0].reason
    assert shown[1:] == [None] * 14, "once"
    never = Adaptive().judge_quality(QualityView(KNOBS.changed({"guard_max_logloss_increase": 0}), 100, 0.5, 0.05))
    assert never is not None
    assert "no number of samples" in never.reason


@pytest.mark.parametrize("keep", [0.001, 0.5, 0.98, 0.999])
def test_whatever_the_knob_nothing_is_skipped_before_and_as_much_as_it_says_after(keep: float) -> None:
    policy, knobs, chances = Adaptive(), KNOBS.changed({"keep_probability": keep}), []
    for _ in range(28):
        judge(policy, 0.5, knobs=knobs)
        chances.append(policy.chance(knobs))
    assert chances[:19] == [1.0] * 19
    assert chances[19] < 1
    assert chances[-1] == keep


@pytest.mark.parametrize("limit", [0.0, 5e-324, 1e-300])
def test_a_limit_of_about_nothing_lets_nothing_be_skipped(limit: float) -> None:
    policy, knobs = Adaptive(), KNOBS.changed({"guard_max_logloss_increase": limit})
    for _ in range(100):
        judge(policy, 0.5, 10**6, knobs)
    assert policy.chance(knobs) == 1


@pytest.mark.parametrize("change", [-1.0, 1.0])
def test_a_fall_or_a_rise_that_noise_hides_is_not_level(change: float) -> None:
    """The loss moves by the limit in a block, a fiftieth of a window's noise at a time."""
    policy, first, skips = Adaptive(), [], 0
    small = WINDOW // 100
    for number in range(10_000):
        judge(policy, 0.5 + change * 1.5 * LIMIT * number * small / NEEDED, small)
        skips += policy.chance(KNOBS) < 1
        first.append(policy.chance(KNOBS))
    assert skips == 0
    assert 1.5 * LIMIT * small / NEEDED < 0.001 * SIGMA / math.sqrt(small)


def test_a_rise_calls_skipping_off_at_once_and_says_why() -> None:
    policy = settled()
    verdict = judge(policy, 0.52)
    assert verdict is not None
    assert verdict.keep_probability == policy.chance(KNOBS) == 1
    assert "rose by 0.0200 from 0.5000" in verdict.reason
    for _ in range(15):
        judge(policy, 0.52)
        assert policy.chance(KNOBS) == 1, "two blocks have to be shown level again"
    for _ in range(10):
        judge(policy, 0.52)
    assert policy.chance(KNOBS) < 1


@pytest.mark.parametrize("change", [-1.2, 1.2])
def test_a_small_change_calls_skipping_off_before_it_has_cost_the_limit_over_a_block(change: float) -> None:
    policy, windows = Adaptive(), 0
    for _ in range(20):
        judge(policy, 0.5)
    while policy.chance(KNOBS) < 1:
        judge(policy, 0.5 + change * LIMIT)
        windows += 1
    assert windows <= 5
    judge(policy, 0.5)
    assert policy.chance(KNOBS) == 1


def test_a_change_that_only_several_blocks_add_up_to_is_seen() -> None:
    policy, skipped = Adaptive(), []
    for block in range(30):
        for _ in range(10):
            judge(policy, 0.5 - 0.3 * LIMIT * block)
            skipped.append(policy.chance(KNOBS) < 1)
    assert np.mean(skipped) < 0.35, "less than the half that a level loss allows"


def test_a_lower_limit_ends_skipping_at_the_next_judgement() -> None:
    policy = settled()
    lower = KNOBS.changed({"guard_max_logloss_increase": LIMIT / 10})
    assert judge(policy, 0.5, knobs=lower) is not None
    assert policy.chance(lower) == 1


def simulate(seed: int, per_block: float, extra: float = 0.0) -> list[bool]:
    """Judge 300 noisy windows of a loss that moves by `per_block` limits in a block. Whether samples were skipped after each.

    With `extra`, each window is harder or easier than the others, by as many of its standard errors."""
    random, policy, skips = np.random.default_rng(seed), Adaptive(), []
    for number in range(300):
        noise = SIGMA / math.sqrt(WINDOW) * math.hypot(1, extra) * random.standard_normal()
        judge(policy, 0.5 + per_block * LIMIT * number * WINDOW / NEEDED + noise)
        skips.append(policy.chance(KNOBS) < 1)
    return skips


@pytest.mark.parametrize("extra", [0.0, 2.0])
@pytest.mark.parametrize("per_block", [-1.0, 1.0, -2.0])
def test_a_loss_that_moves_by_the_limit_in_a_block_is_found_level_in_one_block_of_twenty(
    per_block: float, extra: float
) -> None:
    """29 comparisons a run, each with a chance of 5 % at most; one lets a block of ten windows skip."""
    skips = np.array([simulate(seed, per_block, extra) for seed in range(100)])
    starts = (~skips[:, :-1] & skips[:, 1:]).sum()
    assert starts <= 0.05 * 29 * 100
    assert skips.mean() < 0.05
    assert per_block != -2.0 or not skips.any()


def test_on_noise_alone_a_good_part_of_a_long_run_skips() -> None:
    skips = np.array([simulate(seed, 0.0) for seed in range(40)])
    assert skips.any(axis=1).all()
    assert 0.3 < skips.mean() < 0.5
    rough = np.array([simulate(seed, 0.0, 2.0) for seed in range(40)])
    assert 0 < rough.mean() < skips.mean(), "where windows differ by more than noise the guard takes more of them"


def test_a_loss_that_is_not_a_number_calls_skipping_off_and_is_forgotten() -> None:
    policy, guard = settled(), QualityGuard()
    guard.add(Fetched(np.array([0.5, np.nan, 0.4])), np.array([0, 1, 2]))
    verdict = policy.judge_quality(guard.end_window(KNOBS))
    assert verdict is not None
    assert "no finite number" in verdict.reason
    for _ in range(26):
        judge(policy, 0.5)
    assert policy.chance(KNOBS) == KNOBS.keep_probability
    assert judge(policy, 0.6) is not None, "the guard still works"


@pytest.mark.parametrize("windows", [0, 1, 5, 15, 23, 32, 45])
def test_the_state_goes_on_bit_by_bit(windows: int) -> None:
    random, policy, again = np.random.default_rng(windows), Adaptive(), Adaptive()
    losses = 0.5 + SIGMA / math.sqrt(WINDOW) * random.standard_normal(60)
    for loss in losses[:windows]:
        judge(policy, loss)
    found = Saved(json.loads(json.dumps(policy.state())))
    again.set_state(found)
    found.finish()
    for loss in losses[windows:]:
        assert judge(again, loss) == judge(policy, loss)
        assert again.state() == policy.state()


def test_a_state_of_the_guard_of_0_1_0_is_read_and_begins_anew() -> None:
    level = {"mean": 0.5, "mean_error": 0.01, "lowest": 0.49, "lowest_error": 0.01}
    old = Saved({"correction": 0.1, "at_knob": True, "keep": 0.0, "wait": 12, "quiet": 30, "level": level})
    policy = Adaptive()
    policy.set_state(old)
    old.finish()
    assert policy.chance(KNOBS) == 1, "what the old guard let skip was not shown"
    assert policy.state() == {**Adaptive().state(), "correction": 0.1}


def test_a_policy_that_takes_over_is_first_judged_after_a_whole_window() -> None:
    runtime = assemble(load_config(None, {}, [*PLANTED, "knobs.policy=hotline", "run.steps=90"]))
    for _ in runtime.run():
        pass
    policy = Adaptive()
    runtime.reclassifier.change_policy(policy, 90, runtime.knobs)
    guard = runtime.reclassifier.guard
    guard.add(Fetched(np.array([0.5, 0.6])), np.array([0, 1]))
    every = runtime.knobs.reclassify_every
    assert [step for step in range(91, 91 + every) if runtime.reclassifier.end_tick(step, runtime.knobs)] == [
        90 + every
    ]
    assert guard.end_window(KNOBS).samples == 2, "the window starts with the policy"


def test_a_repeated_step_counts_its_guard_samples_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = assemble(
        load_config(None, {}, [*PLANTED, "knobs.policy=adaptive", "run.steps=30", "knobs.probe_ratio=0.01"])
    )
    seen: list[int] = []
    runtime.reclassifier.begin(0, runtime.knobs)
    monkeypatch.setattr(QualityGuard, "add", lambda guard, losses, lines: seen.append(len(lines)))
    work = next(iter(Pipeline(runtime.batches(), runtime.store, lambda: 0, runtime.times)))
    runtime.store.batches.take(work)
    plan = runtime.steps.plan(work, probe=False)
    runtime.steps.execute(work, plan)
    runtime.steps.execute(work, plan)
    assert len(runtime.steps._held) == len(plan.micro_batches)
    assert seen == [], "the guard gets the losses after the step"


PLANTED = (
    "data.table_rows=[20000,5000,2000,500]", "data.dense_features=4", "data.synthetic.samples=500000",
    "data.synthetic.test_samples=100000", "data.synthetic.popular_ratio=0.8", "data.synthetic.head_ratio=0.01",
    "data.synthetic.teacher_scale=1.5", "data.synthetic.teacher_jump_at=250000", "model.embedding_dim=8",
    "model.bottom_mlp=[16]", "model.top_mlp=[16]", "run.batch_size=512", "run.steps=0", "run.threads=1", "run.device=cpu",
    "run.seed=2", "knobs.hot_budget_bytes=100000", "knobs.reclassify_every=50", "knobs.probe_ratio=0.1",
    "knobs.stale_threshold=1e9", "knobs.alpha=0.5", "knobs.keep_probability=0.3", "knobs.stale_metric=signal_to_noise",
)  # fmt: skip
"""A threshold that makes every popular row stale for ever, and a teacher that changes at sample 250,000."""

JUMP_STEP = 250_000 // 512

LOOSE = ("knobs.guard_max_logloss_increase=0.04", "knobs.guard_ratio=0.5")
"""A guard that can find a loss level before the teacher changes."""


SHORT = (
    "data.table_rows=[3000,1000,500,200]", "data.synthetic.samples=130000", "data.synthetic.test_samples=20000",
    "data.synthetic.teacher_jump_at=100000", "knobs.reclassify_every=15", "knobs.guard_ratio=0.9",
)  # fmt: skip
"""A teacher that changes at sample 100,000, before which a guard of more samples finds the loss level, in smaller tables."""


def train_planted(*settings: str) -> tuple[float, list[Event]]:
    """Return the held-out logloss after the last step, and the guard's events."""
    runtime = assemble(load_config(None, {}, [*PLANTED, *settings]))
    events = [report for report in runtime.run() if isinstance(report, Event) and report.kind == "guard"]
    evaluation = runtime.evaluate()
    assert evaluation is not None
    return evaluation.quality.logloss, events


@pytest.mark.parametrize(
    ("changes", "jump_step", "window"),
    [(SHORT, 100_000 // 512, 15), pytest.param((), JUMP_STEP, 50, marks=pytest.mark.slow)],
    ids=["short", "long"],
)
def test_where_skipping_hurts_the_guard_calls_it_off_and_the_loss_is_that_of_plain_training(
    changes: tuple[str, ...], jump_step: int, window: int
) -> None:
    plain, _ = train_planted("knobs.policy=hybrid", *changes)
    guarded, events = train_planted("knobs.policy=adaptive", *LOOSE, *changes)
    unguarded, _ = train_planted("knobs.policy=slipstream", *changes)

    assert unguarded > plain + 0.003, "skipping hurts on this stream, or the test shows nothing"
    assert guarded < plain + 0.001
    before, after = ([event for event in events if (event.step > jump_step) == late] for late in (False, True))
    assert before[-1].details["keep_probability"] < 1
    assert after[0].details["keep_probability"] == 1
    assert after[0].step <= jump_step + 3 * window, "within three windows"
