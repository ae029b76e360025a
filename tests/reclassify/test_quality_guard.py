"""The guard: progressive validation on samples that are never skipped, and how the policy adaptive uses it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.live.telemetry import Event
from adaptive_rec.policies.adaptive import WAIT, Adaptive
from adaptive_rec.policy import QualityView, Verdict
from adaptive_rec.reclassify.quality_guard import QualityGuard
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.pipeline import Pipeline

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


def judge(policy: Adaptive, logloss: float, error: float = 0.001) -> Verdict | None:
    return policy.judge_quality(QualityView(KNOBS, 1000, logloss, error))


def settled() -> Adaptive:
    """Return a policy after so many level windows that it skips as much as the knob allows."""
    policy = Adaptive()
    for _ in range(12):
        judge(policy, 0.5)
    assert policy.chance(KNOBS) == KNOBS.keep_probability
    return policy


def test_all_is_trained_until_the_loss_is_level() -> None:
    policy = Adaptive()
    for logloss in (0.7, 0.65, 0.6, 0.55):
        assert judge(policy, logloss) is None
        assert policy.chance(KNOBS) == 1
    chances = []
    for _ in range(12):
        judge(policy, 0.55)
        chances.append(policy.chance(KNOBS))
    assert chances == sorted(chances, reverse=True)
    assert chances[-1] == KNOBS.keep_probability


def test_a_rise_beyond_noise_calls_skipping_off_and_says_why() -> None:
    policy = settled()
    verdict = judge(policy, 0.52)
    assert verdict is not None
    assert verdict.keep_probability == policy.chance(KNOBS) == 1
    assert "rose by 0.0200 above 0.5000" in verdict.reason


def test_noise_is_no_rise() -> None:
    policy = settled()
    assert judge(policy, 0.502, error=0.001) is None
    assert judge(policy, 0.52, error=0.02) is None
    assert policy.chance(KNOBS) == KNOBS.keep_probability


def test_each_alarm_lengthens_the_wait() -> None:
    policy, waited = settled(), []
    for logloss in (0.6, 0.7):
        judge(policy, logloss)
        assert policy.chance(KNOBS) == 1
        windows = 0
        while policy.chance(KNOBS) == 1:
            judge(policy, logloss)
            windows += 1
            assert windows < 200, "a level loss must be believed in the end"
        waited.append(windows)
        for _ in range(12):
            judge(policy, logloss)
    assert waited[0] > WAIT
    assert waited[1] > waited[0] + WAIT / 2


def test_on_noise_alone_most_of_a_long_run_skips() -> None:
    random, policy, skips = np.random.default_rng(4), Adaptive(), []
    for _ in range(20_000):
        judge(policy, 0.5 + 0.01 * random.standard_normal(), error=0.01)
        skips.append(policy.chance(KNOBS) < 1)
    assert all(np.mean(part) > 0.8 for part in np.split(np.array(skips), 10))


def test_a_loss_that_is_not_a_number_calls_skipping_off_and_is_forgotten() -> None:
    policy, guard = settled(), QualityGuard()
    guard.add(Fetched(np.array([0.5, np.nan, 0.4])), np.array([0, 1, 2]))
    verdict = policy.judge_quality(guard.end_window(KNOBS))
    assert verdict is not None
    assert "no finite number" in verdict.reason
    for _ in range(40):
        judge(policy, 0.5)
    assert policy.chance(KNOBS) == KNOBS.keep_probability
    assert judge(policy, 0.6) is not None, "the guard still works"


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
    runtime.store.take(work)
    plan = runtime.plan(work, probe=False)
    runtime.execute(work, plan)
    runtime.execute(work, plan)
    assert len(runtime._guarded) == len(plan.micro_batches)
    assert seen == [], "the guard gets the losses after the step"


PLANTED = (
    "data.table_rows=[20000,5000,2000,500]", "data.dense_features=4", "data.synthetic.samples=700000",
    "data.synthetic.test_samples=100000", "data.synthetic.popular_ratio=0.8", "data.synthetic.head_ratio=0.01",
    "data.synthetic.teacher_scale=1.5", "data.synthetic.teacher_jump_at=250000", "model.embedding_dim=8",
    "model.bottom_mlp=[16]", "model.top_mlp=[16]", "run.batch_size=512", "run.steps=0", "run.threads=1", "run.device=cpu",
    "run.seed=2", "knobs.hot_budget_bytes=100000", "knobs.reclassify_every=50", "knobs.probe_ratio=0.1",
    "knobs.stale_threshold=1e9", "knobs.alpha=0.5", "knobs.keep_probability=0.3", "knobs.stale_metric=signal_to_noise",
)  # fmt: skip
"""A threshold that makes every popular row stale for ever, and a teacher that changes at sample 250,000."""

JUMP_STEP = 250_000 // 512


def train_planted(*settings: str) -> tuple[float, list[Event]]:
    """Return the held-out logloss after the last step, and the guard's events."""
    runtime = assemble(load_config(None, {}, [*PLANTED, *settings]))
    events = [report for report in runtime.run() if isinstance(report, Event) and report.kind == "guard"]
    evaluation = runtime.evaluate()
    assert evaluation is not None
    return evaluation.quality.logloss, events


def test_where_skipping_hurts_the_guard_calls_it_off_and_the_loss_is_that_of_plain_training() -> None:
    plain, _ = train_planted("knobs.policy=hybrid")
    guarded, events = train_planted("knobs.policy=adaptive")
    unguarded, _ = train_planted("knobs.policy=adaptive", "knobs.guard_max_logloss_increase=10")

    assert unguarded > plain + 0.003, "skipping hurts on this stream, or the test shows nothing"
    assert guarded < plain + 0.001
    before, after = ([event for event in events if (event.step > JUMP_STEP) == late] for late in (False, True))
    assert before[-1].details["keep_probability"] == 0.3
    assert after[0].details["keep_probability"] == 1
    assert after[0].step <= JUMP_STEP + 3 * 50, "within three windows"
