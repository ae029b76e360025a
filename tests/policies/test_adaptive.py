"""Decisions of the policy adaptive: shares of the budget, stale rows, and how much skipping the guard allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import load_config
from adaptive_rec.live.telemetry import Event
from adaptive_rec.policies.adaptive import NOTICEABLE, SETTLED, Adaptive
from adaptive_rec.policy import AccessView, MovementView
from adaptive_rec.runtime.assemble import assemble
from tests.matrix import always, grid, only
from tests.policies import planted

KNOBS = Knobs()


def view(hot: Any, candidates: Any, capacity: int) -> AccessView:
    """Build the view of one pool's rows by their scores."""
    return AccessView(
        step=0, knobs=KNOBS, all_rows=range(1000), capacity_rows=capacity,
        candidate_rows=np.arange(len(candidates)), candidate_scores=np.asarray(candidates, dtype=np.float64),
        hot_rows=np.arange(len(hot)), hot_scores=np.asarray(hot, dtype=np.float64),
    )  # fmt: skip


def share_plainly(scores: list[list[float]], row_bytes: list[int], budget: int) -> list[int]:
    """Give slots row by row, the most looked up first, until the next one does not fit."""
    ranked = sorted(((-score, pool) for pool, part in enumerate(scores) for score in part), key=lambda one: one)
    slots, left = [0] * len(scores), budget
    for _, pool in ranked:
        if row_bytes[pool] > left:
            break
        slots[pool] += 1
        left -= row_bytes[pool]
    return slots


@given(seed=st.integers(0, 2**32 - 1), pools=st.integers(2, 4))
def test_the_budget_goes_to_the_rows_that_are_looked_up_most(seed: int, pools: int) -> None:
    random = np.random.default_rng(seed)
    scores = [random.permutation(1000)[: random.integers(1, 30)].astype(float).tolist() for _ in range(pools)]
    row_bytes = random.integers(10, 100, pools).tolist()
    budget = int(0.6 * sum(len(part) * size for part, size in zip(scores, row_bytes, strict=True)))
    cut = [len(part) // 2 for part in scores]
    views = [
        view(part[:half], part[half:], 10**6) for part, half in zip(scores, cut, strict=True)
    ]  # present: too large
    found = Adaptive().share_budget(views, row_bytes, budget)
    assert found is not None
    assert sum(slots * size for slots, size in zip(found, row_bytes, strict=True)) <= budget
    ties = len({score for part in scores for score in part}) < sum(map(len, scores))
    assert ties or found == share_plainly(scores, row_bytes, budget)


def test_shares_stay_where_others_save_hardly_more() -> None:
    even = [view(np.full(10, 5.0), np.full(10, 5.0), 10), view(np.full(10, 5.0), np.full(10, 5.0), 10)]
    assert Adaptive().share_budget(even, [8, 8], 160) == [10, 10]
    first = 5 * (1 + 3 * NOTICEABLE)
    uneven = [view(np.full(10, first), np.full(10, first), 10), view(np.full(10, 5.0), np.full(10, 5.0), 10)]
    assert Adaptive().share_budget(uneven, [8, 8], 160) == [20, 0]


def test_a_larger_budget_is_used_though_the_shares_saved_would_hardly_change() -> None:
    steep = [view(1000.0 / np.arange(1, 101) ** 3, 1e-6 / np.arange(1, 400), 100) for _ in range(2)]
    assert Adaptive().share_budget(steep, [10, 10], 2000) == [100, 100]
    found = Adaptive().share_budget(steep, [10, 10], 4000)
    assert found is not None
    assert sum(found) == 400


def test_one_pool_or_too_few_known_rows_leave_the_shares_to_the_runtime() -> None:
    assert Adaptive().share_budget([view([1, 2], [3], 2)], [8], 16) is None
    assert Adaptive().share_budget([view([1, 2], [3], 2), view([], [1], 2)], [8, 8], 1000) is None


def movement(*numbers: float) -> MovementView:
    nothing = np.empty(0)
    knobs = KNOBS.changed({"stale_metric": "signal_to_noise"})
    return MovementView(
        knobs, np.zeros(len(numbers), dtype=bool), np.array(numbers), np.full(len(numbers), 9), nothing,
        np.zeros(1, dtype=np.int64), 0.0,
    )  # fmt: skip


def test_rows_below_the_settled_ratio_are_stale_be_they_many_or_few() -> None:
    for numbers in ([1.0, 1.2, 0.9], [1.0, 4.0, np.inf], [3.0, 5.0]):
        judged = Adaptive().find_stale(movement(*numbers))
        assert judged.stale_H.tolist() == [number < SETTLED for number in numbers]


def test_marks_meet_the_target_though_the_run_skips_in_stretches_alone() -> None:
    """A hundred samples of one row each, one row more popular than the next; the run itself skipped nothing in any window."""
    knobs = KNOBS.changed({"target_skip_ratio": 0.2, "action": "drop", "probe_ratio": 0.0625})
    policy, stale_H, marked = Adaptive(), np.zeros(100, dtype=bool), []
    movement_H, rows_L = np.arange(1.0, 101.0), np.arange(100)
    for _ in range(12):
        samples = movement_H[rows_L], np.arange(101), 0.0, stale_H[rows_L]
        stale_H = policy.find_stale(MovementView(knobs, stale_H, movement_H, np.ones(100, dtype=np.int64), *samples)).stale_H
        marked.append(stale_H.sum() * (1 - knobs.probe_ratio) / 100)
    assert max(marked) <= 0.23
    assert marked[-1] == pytest.approx(0.2, abs=0.02)


class Unread:
    def __array__(self, *args: Any, **options: Any) -> Any:
        raise AssertionError("the stale lookups of samples are read though the policy says otherwise")


@grid(
    action=["freeze", "drop", "subsample"], metric=["signal_to_noise", "popularity"], threshold=["search", 0.5], target=[0.0, 0.2]
)
def test_stale_lookups_of_samples_are_read_only_where_the_policy_says_so(
    action: str, metric: str, threshold: float | str, target: float
) -> None:
    changes = {"action": action, "stale_metric": metric, "stale_threshold": threshold, "target_skip_ratio": target}
    knobs, policy, stale_H = KNOBS.changed(changes), Adaptive(), np.ones(4, dtype=bool)
    rows = np.arange(4.0), np.ones(4, dtype=np.int64), np.arange(4.0), np.arange(5), 0.0
    lists = policy.reads_stale_lookups(knobs)
    assert lists is (action != "freeze" and metric == "popularity" and threshold == "search" and target > 0)
    policy.find_stale(MovementView(knobs, stale_H, *rows, stale_H if lists else Unread()))  # type: ignore[arg-type]


@pytest.mark.parametrize(("policy", "wanted"), [("slipstream", False), ("adaptive", True)])
def test_a_window_lists_the_stale_lookups_of_samples_only_for_who_reads_them(build: Any, policy: str, wanted: bool) -> None:
    runtime, seen = build(policy, "knobs.action=drop", "knobs.stale_metric=max_abs", "knobs.target_skip_ratio=0.2"), []
    judge = runtime.state.policy.find_stale
    runtime.state.policy.find_stale = lambda view: seen.append(view) or judge(view)
    list(runtime.run())
    assert sum(len(view.sample_movement_L) for view in seen) > 0
    assert all(len(view.sample_stale_L) == wanted * len(view.sample_movement_L) for view in seen)


MIXED = (
    "data.table_rows=[4000,4000,400]", "model.table_dims=[16,4,8]", "model.embedding_dim=8", "model.bottom_mlp=[8]",
    "model.top_mlp=[8]", "data.dense_features=2", "data.synthetic.samples=24000", "data.synthetic.test_samples=500",
    "run.batch_size=256", "run.steps=0", "run.threads=1", "run.device=cpu", "knobs.hot_budget_bytes=40000",
    "knobs.reclassify_every=20", "knobs.probe_ratio=0.3",
)  # fmt: skip


SHORT_TRIALS = ("knobs.guard_ratio=1.0", "policy.trial_steps=8", "knobs.guard_max_logloss_increase=10.0")


@grid(always, only("freeze"), action=["subsample", "freeze", "drop"])
def test_a_run_over_pools_of_mixed_dims_keeps_its_budget_and_is_repeatable(action: str) -> None:
    found = []
    for _ in range(2):
        runtime = assemble(load_config(None, {}, [*MIXED, *SHORT_TRIALS, "knobs.policy=adaptive", f"knobs.action={action}"]))
        events = [(report.step, report.kind, report.text) for report in runtime.run() if isinstance(report, Event)]
        assert runtime.store.hot.bytes <= 40_000
        found.append((events, float(runtime.dense.loss_sum), runtime.state.counts()["samples_trained"]))
    assert found[0] == found[1]
    assert any(kind == "guard" and "a trial of 8 steps" in text for _, kind, text in found[0][0])


def session_log(rows: int) -> tuple[list[Batch], tuple[TableSpec, ...], tuple[FeatureSpec, ...]]:
    """Return batches of 256 rows of a log of sessions, items and positions, with new items day after day."""
    log = replace(planted.SESSIONS, rows=rows)
    columns = planted.columns(log, seed=3)
    ids_BF = np.stack([columns[name] for name in ("session", "item", "position")], axis=1).astype(np.int64)
    dense_BX, labels_B = columns["place"][:, None].astype(np.float32), columns["clicked"].astype(np.float32)
    parts = [slice(first, first + 256) for first in range(0, rows, 256)]
    sizes = (("session", log.visitors), ("item", log.items), ("position", planted.POSITIONS))
    return (
        [Batch.one_hot(dense_BX[part], ids_BF[part], labels_B[part]) for part in parts],
        tuple(TableSpec(name, rows, 8) for name, rows in sizes),
        tuple(FeatureSpec(name, table) for table, (name, _) in enumerate(sizes)),
    )


def test_on_a_log_of_new_items_day_after_day_nothing_is_skipped_before_a_trial(memory_source: Any) -> None:
    """A log on which the guard of 0.1.0 took the noise of a falling loss for a level one, and skipped."""
    settings = (
        "model.embedding_dim=8", "model.bottom_mlp=[8]", "model.top_mlp=[16]", "run.batch_size=256", "run.steps=0",
        "run.threads=1", "run.device=cpu", "knobs.policy=adaptive", "knobs.hot_budget_bytes=1000000",
        "knobs.reclassify_every=50",
    )  # fmt: skip
    world = session_log(50_000)
    runtime = assemble(load_config(None, {}, list(settings)), memory_source(*world, held_out=world[0][:2]))
    events = [report for report in runtime.run() if isinstance(report, Event) and report.kind == "guard"]
    counts = runtime.state.counts()
    assert counts["samples_seen"] == counts["samples_trained"] == 50_000
    assert counts["samples_popular"] > 0.4 * 50_000, "there would be something to skip"
    assert not events, "a first trial takes 1,280 steps"
