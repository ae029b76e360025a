"""The guard of skipping: trials beside a run, which stays as it is, and what follows from their prices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.embedding.twin import TwinRows
from adaptive_rec.live.telemetry import Event
from adaptive_rec.offline.compare.statistics import t_quantile
from adaptive_rec.policy.skipping import kept_samples
from adaptive_rec.runtime import paired_trial, skipping_guard
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.runtime.skipping_guard import SkippingGuard
from adaptive_rec.runtime.stretches import Stretches
from adaptive_rec.saved import Saved
from adaptive_rec.tracking.price import Pooled, Price, price_of, t_bound
from tests.doubles.late_streams import LateStreams

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


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("run.split=always", "optimizer.embedding=lazy_adam", "knobs.action=freeze"),
        ("run.row_precision=bf16", "data.synthetic.lookups_per_feature=2", "knobs.clip_norm=0.1", "knobs.action=drop"),
        ("data.ids=raw", "knobs.evict_ratio=0.2", "data.table_rows=[80,60,40]"),
        ("run.host_memory=1MiB",),
    ],
)
def test_a_run_is_bit_equal_to_one_without_trials(changes: tuple[str, ...], tmp_path: Path) -> None:
    """Rows move while trials last: a window ends every few steps."""
    runs = []
    for name, limit in (("whole", WHOLE), ("tried", NEVER)):
        disk = (f"run.disk={tmp_path / name}",) if "run.host_memory=1MiB" in changes else ()
        runtime = build(*changes, *disk, limit)
        found = texts(runtime)
        runs.append(runtime)
    assert sum("a trial of" in text and "costs" in text for text in found) >= 2, found
    assert_equal(*runs)


def test_a_run_on_a_device_is_bit_equal_too() -> None:
    runs = []
    for limit in (WHOLE, NEVER):
        runtime = build(limit, "run.split=always", "run.steps=24", streams=LateStreams(seed=3))
        found = texts(runtime)
        runs.append(runtime)
    assert any("costs" in text for text in found)
    assert_equal(*runs)


def test_a_twin_is_what_the_run_would_be_had_it_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are hot and no window ends in the trial, so that twin and run could only differ by what they train."""
    all_hot = (
        "run.precision=float64", "knobs.hot_budget_bytes=4MiB", "knobs.reclassify_every=14", "run.steps=26",
        "data.table_rows=[30,20,10]", "optimizer.dense=SGD", "optimizer.embedding=sgd",
    )  # fmt: skip
    twin_at: dict[int, Any] = {}
    step_done = SkippingGuard.step_done

    def seen(guard: SkippingGuard, left_out: bool) -> None:
        if (trial := guard.trial) is not None:
            twin = trial.twins[0]
            at = guard._state.step - trial.began
            twin_at[at] = [each.clone() for each in (*twin.dense.model.state_dict().values(), *twin.rows._copy.weights)]
            twin_at[-1] = trial.began
        step_done(guard, left_out)

    monkeypatch.setattr(SkippingGuard, "step_done", seen)
    assert texts(build(NEVER, *all_hot))
    began = twin_at[-1]
    monkeypatch.setattr(SkippingGuard, "_trial_is_due", lambda guard: False)
    monkeypatch.setattr(SkippingGuard, "_stretch_lasts", lambda guard: began <= guard._state.step < began + 8)
    skips = build(NEVER, *all_hot)
    for _ in skips.run():
        if (at := skips.step_number - began) in twin_at and 0 < at <= 10:
            own = [*skips.dense.model.state_dict().values(), *skips.store.hot.tier.weights]
            for mine, theirs in zip(twin_at[at], own, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)
    assert skips.state.counts()["samples_trained"] < skips.state.counts()["samples_seen"]


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


def test_a_twin_keeps_its_rows_where_the_run_has_not_read_its_own_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart a twin has its values of rows that the run has on the disk alone until a batch looks them up."""
    runtime = build(NEVER, "run.steps=10")
    list(runtime.run())
    guard, store = runtime.guard, runtime.store
    assert guard is not None
    assert guard.trial is not None
    rows = guard.trial.twins[0].rows
    rows.follow()
    monkeypatch.setattr(store.hot, "absent", lambda pool, slot_N: np.ones(len(slot_N), dtype=np.bool_))
    rows._version -= 1  # a window has ended
    rows.follow()
    assert [len(slots) for slots in rows._absent] == [0, 0]


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


def test_a_trial_ends_where_it_would_harm_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build(WHOLE)
    texts(whole)
    with monkeypatch.context() as patch:
        patch.setattr(HotRows, "free_bytes", lambda hot: 1000)
        runtime = build(NEVER)
        assert "memory for a trial must be" in texts(runtime)[0]
        assert_equal(runtime, whole)
    with monkeypatch.context() as patch:
        patch.setattr(TwinRows, "gather", _fail)
        runtime = build(NEVER)
        assert "memory is short (none is left)" in texts(runtime)[0]
        assert_equal(runtime, whole)
    with monkeypatch.context() as patch:
        patch.setattr(paired_trial.Twin, "differences", lambda twin: np.full(12, np.nan))
        runtime = build(NEVER)
        assert "are not finite" in texts(runtime)[0]
        assert_equal(runtime, whole)


def _fail(*_: object) -> None:
    raise MemoryError("none is left")


def test_a_trial_waits_for_rows_that_have_settled() -> None:
    runtime = build(NEVER, "knobs.stale_threshold=0.0")
    found = [(each.step, each.text) for each in runtime.run() if isinstance(each, Event) and each.kind == "guard"]
    assert found == [(4, "no hot row has settled yet, so nothing would be skipped: the trial waits")]


def test_as_much_is_skipped_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skipping_guard, "CHANCE_EVERY", 1)
    plans = list[Any]()
    train = paired_trial.PairedTrial.train

    def seen(trial: Any, step: int, work: Any, two: Any, *rest: Any) -> None:
        plans.append((work, two))
        train(trial, step, work, two, *rest)

    monkeypatch.setattr(paired_trial.PairedTrial, "train", seen)
    differ = 0
    for action in ("subsample", "drop", "freeze"):
        runtime = build(NEVER, f"knobs.action={action}", "run.steps=24")
        assert "as much at random costs" in texts(runtime)[0]
        for work, (plan, chance) in plans:
            size = work.batch.size
            kept, also = (kept_samples(each, size) for each in (plan, chance))
            assert kept.sum() == also.sum()
            assert work.popular_B[~also].all()
            if plan.weight_B is not None:
                assert chance.weight_B is not None
                np.testing.assert_allclose(np.sort(plan.weight_B[kept]), np.sort(chance.weight_B[also]))
            if plan.frozen_U is not None:
                assert plan.frozen_U.sum() == chance.frozen_U.sum()
                differ += int((plan.frozen_U != chance.frozen_U).any())
            differ += int((kept != also).any())
        plans.clear()
    assert differ


# Prices --------------------------------------------------------------------------------------------------------------


def test_a_price_is_of_block_means() -> None:
    dice, pooled = np.random.default_rng(5), Pooled()
    first, second = (dice.normal(1e-3, 2e-3, 120) for _ in range(2))
    price_of(first, 80, pooled, 5, 10, None)
    price = price_of(second, 80, pooled, 5, 10, first)
    within = [part.reshape(-1, 8).mean(axis=1) for each in (first, second) for part in (each[40:80], each[104:120])]
    variance = sum(((part - part.mean()) ** 2).sum() for part in within) / 10
    assert (price.during, price.after) == (pytest.approx(second[40:80].mean()), pytest.approx(second[104:].mean()))
    assert price.error_during == pytest.approx(np.sqrt(variance / 5))
    assert price.error_after == pytest.approx(np.sqrt(variance / 2))
    assert (price.chance, price.chance_after) == (pytest.approx(first[40:80].mean()), pytest.approx(first[104:].mean()))
    assert price.quantile == pytest.approx(t_quantile(0.95, 10), rel=1e-3)
    assert Price.of(Saved(price.state(), "price")) == price


def test_the_quantile_is_students() -> None:
    for freedom in (3, 4, 5, 8, 20, 100):
        assert t_bound(freedom) == pytest.approx(t_quantile(0.95, freedom), rel=5e-3)


def test_a_bound_covers_the_truth() -> None:
    dice, missed = np.random.default_rng(7), 0
    for _ in range(400):
        price = price_of(dice.normal(2e-3, 3e-3, 120), 80, Pooled(), 5, 10, None)
        missed += price.during + price.quantile * price.error_during < 2e-3
    assert missed < 0.09 * 400, "5 % were wanted"
