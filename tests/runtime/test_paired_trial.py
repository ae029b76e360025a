"""Trials beside a run, which stays as it is: the twins, what they train, and how a trial ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.embedding.twin import TwinRows
from adaptive_rec.policy.skipping import kept_samples
from adaptive_rec.runtime import paired_trial, skipping_guard
from adaptive_rec.runtime.skipping_guard import SkippingGuard
from tests.doubles.late_streams import LateStreams
from tests.runtime.test_skipping_guard import NEVER, WHOLE, assert_equal, build, texts


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


def test_a_trial_ends_where_it_would_harm_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    short = "run.steps=24"
    whole = build(WHOLE, short)
    texts(whole)
    with monkeypatch.context() as patch:
        patch.setattr(HotRows, "free_bytes", lambda hot: 1000)
        runtime = build(NEVER, short)
        assert "memory for a trial must be" in texts(runtime)[0]
        assert_equal(runtime, whole)
    with monkeypatch.context() as patch:
        patch.setattr(TwinRows, "gather", _fail)
        runtime = build(NEVER, short)
        assert "memory is short (none is left)" in texts(runtime)[0]
        assert_equal(runtime, whole)
    with monkeypatch.context() as patch:
        patch.setattr(paired_trial.Twin, "differences", lambda twin: np.full(12, np.nan))
        runtime = build(NEVER, short)
        assert "are not finite" in texts(runtime)[0]
        assert_equal(runtime, whole)


def _fail(*_: object) -> None:
    raise MemoryError("none is left")


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
