"""The guard of skipping: stretches, what they spend, and when nothing is skipped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adaptive_rec.config.tree import load_config
from adaptive_rec.live.telemetry import Event
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.runtime.stretches import Stretches
from adaptive_rec.tracking.price import Price

SETTINGS = (
    "data.table_rows=[300,200,40]", "model.table_dims=[8,4,8]", "model.embedding_dim=8", "model.bottom_mlp=[8]",
    "model.top_mlp=[8]", "data.dense_features=2", "data.synthetic.samples=20000", "data.synthetic.test_samples=64",
    "data.synthetic.popular_ratio=0.8", "run.batch_size=64", "run.steps=50", "run.threads=1", "run.device=cpu",
    "knobs.hot_budget_bytes=8000", "knobs.reclassify_every=2", "knobs.probe_ratio=0.4", "knobs.stale_threshold=1e9",
    "knobs.min_probe_touches=1", "knobs.min_touch_ratio=0", "knobs.alpha=0.5", "knobs.policy=adaptive", "knobs.report_every=1",
    "knobs.guard_ratio=1.0", "policy.trial_steps=8",
)  # fmt: skip
WHOLE, NEVER, ALWAYS = (f"knobs.guard_max_logloss_increase={limit}" for limit in (0, 1e-12, 10))


def build(*changes: str, streams: Any = None, options: RunOptions | None = None) -> Runtime:
    return assemble(load_config(None, {}, [*SETTINGS, *changes]), streams=streams, options=options)


def texts(runtime: Runtime) -> list[str]:
    found = [each for each in runtime.run() if isinstance(each, Event) and each.kind == "guard"]
    return [each.text for each in found if "the trial waits" not in each.text]


def values(runtime: Runtime) -> list[NDArray[Any]]:
    """Return the tables, the dense part, its optimizer's state and the sum of the losses."""
    store, tensors = runtime.store, [*runtime.dense.model.state_dict().values(), runtime.dense.loss_sum]
    tensors += [each for state in runtime.dense.optimizer.state.values() for each in state.values() if torch.is_tensor(each)]
    tables = [part for table in range(len(store.space.tables)) for part in store.contents.export(table)]
    return [*tables, *(each.numpy() for each in tensors)]


def assert_equal(one: Runtime, other: Runtime) -> None:
    for mine, theirs in zip(values(one), values(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_run_skips_in_stretches_until_the_limit_is_spent() -> None:
    runtime = build(ALWAYS, "run.steps=60")
    found = texts(runtime)
    assert found[0].endswith("stretches are skipped")
    assert found[0].startswith("a trial of 8 steps: skipping ")
    assert runtime.state.counts()["samples_trained"] < runtime.state.counts()["samples_seen"]
    assert runtime.guard is not None
    assert runtime.guard.state()["stretch_began"] >= 16
    assert Price(8, 1e-3, 2e-3, 5e-4, 1e-3, 2.0, 1, 2).charge == pytest.approx(3e-3)
    free, stretches = Price(8, -9e-3, -9e-3, 5e-4, 1e-3, 2.0, 1, 2), Stretches()
    assert free.charge == pytest.approx(1e-3), "a negative cost is no credit"
    for step in (0, 12, 24, 36):
        if stretches.may_begin(step, free, limit=2.5e-3):
            stretches.begin(step, free)
            assert stretches.go_on(step + 7, free, limit=2.5e-3)
            assert not stretches.go_on(step + 8, free, limit=2.5e-3), "it is as long as the trial's"
            assert not stretches.may_begin(step + 11, free, limit=2.5e-3), "full steps follow it"
    assert stretches.spent == pytest.approx(2e-3), "what is spent stays within the limit"
    strict = build("knobs.guard_max_logloss_increase=1e-6", "run.steps=60")
    assert all(text.endswith("everything is trained") for text in texts(strict))
    assert strict.state.counts()["samples_trained"] == strict.state.counts()["samples_seen"]


def test_a_price_holds_only_for_the_plan_that_was_tried() -> None:
    runtime = build(ALWAYS, "run.steps=30", "knobs.guard_ratio=0.2")  # a trial from step 28 on
    guard = runtime.guard
    assert guard is not None
    for _ in runtime.run():
        if runtime.step_number == 5:
            guard.price = Price(8, 0, 0, 1e-3, 1e-3, 2.0, 10**6, 10**7)
        if runtime.step_number == 20:
            runtime.mailbox.change_knobs(keep_probability=0.9)
        if runtime.step_number == 22:
            assert guard.price is None


def test_at_a_limit_of_0_a_stretch_and_a_trial_end() -> None:
    runtime, trained, found = build(ALWAYS, "run.steps=40", "knobs.guard_ratio=0.3"), dict[int, int](), list[str]()
    for each in runtime.run():
        counts = runtime.state.counts()
        trained[runtime.step_number] = counts["samples_seen"] - counts["samples_trained"]
        found += [each.text] if isinstance(each, Event) and each.kind == "guard" else []
        if runtime.step_number == 29:
            assert runtime.guard is not None
            runtime.guard.price = Price(40, -1e-3, -1e-3, 1e-6, 1e-6, 2.0, 10**6, 10**7)
        if runtime.step_number == 32:
            runtime.mailbox.change_knobs(guard_max_logloss_increase=0.0)
    assert trained[32] > trained[28]
    assert trained[40] == trained[34]

    runtime = build(ALWAYS, "run.steps=20")
    found = []
    for each in runtime.run():
        found += [each.text] if isinstance(each, Event) and each.kind == "guard" else []
        if runtime.step_number == 8:
            runtime.mailbox.change_knobs(guard_max_logloss_increase=0.0)
    assert found[-1] == "a trial of 8 steps ended: the limit is 0; everything is trained until another one"


def test_a_stretch_skips_at_most_what_the_trial_skipped() -> None:
    runtime, skipped = build(ALWAYS, "run.steps=60", "knobs.guard_ratio=0.1"), dict[int, int]()
    guard = runtime.guard
    assert guard is not None
    for _ in runtime.run():
        counts = runtime.state.counts()
        skipped[runtime.step_number] = counts["samples_seen"] - counts["samples_trained"]
        if runtime.step_number == 20:
            guard.price = Price(60, 0.0, 0.0, 1e-6, 1e-6, 2.0, 40, 10**4)
    most = skipped[46] - skipped[20]
    assert 40 <= most < 40 + 64, "the last step may skip more, of a batch of 64 samples"


def test_samples_of_weight_0_are_not_skipped_and_a_batch_of_them_costs_nothing() -> None:
    runtime, found = build(NEVER, "run.steps=40"), list[Any]()
    train = runtime.steps.make

    def made(work: Any, probe: bool) -> None:
        weights_B = np.zeros(work.batch.size, dtype=np.float32)
        weights_B[: 0 if runtime.step_number == 10 else 8] = 1.0
        object.__setattr__(work.batch, "weights_B", weights_B)
        train(work, probe)

    runtime.steps.make = made  # type: ignore[method-assign]
    found = [each for each in runtime.run() if isinstance(each, Event) and "costs" in each.text]
    assert found, "each trial has a verdict"
    assert found[0].details["seen"] <= 8 * 8


def test_what_was_spent_stays_where_the_policy_changes() -> None:
    runtime, found = build(ALWAYS, "run.steps=20"), list[str]()
    guard = runtime.guard
    assert guard is not None
    guard.stretches.spent, guard._at_random = 0.5, 0.25
    for each in runtime.run():
        found += [each.text] if isinstance(each, Event) and each.kind == "guard" else []
        if runtime.step_number == 8:
            runtime.mailbox.change_knobs(policy="hotline")
        if runtime.step_number == 12:
            runtime.mailbox.change_knobs(policy="adaptive")
    assert guard.stretches.spent == 0.5
    assert np.isnan(guard._at_random), "that is the cost of another plan"
    assert found[-1] == "a trial of 8 steps ended: the policy has changed"


def test_a_trial_waits_for_rows_that_have_settled() -> None:
    runtime = build(NEVER, "knobs.stale_threshold=0.0")
    found = [(each.step, each.text) for each in runtime.run() if isinstance(each, Event) and each.kind == "guard"]
    assert found == [(4, "no hot row has settled yet, so nothing would be skipped: the trial waits")]
