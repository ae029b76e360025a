"""Replays against real runs: the same lookups are hot, the same samples popular, the same rows and bytes move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partialmethod
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.batch import Batch, FeatureSpec, Position, TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.open import open_source
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.memory.rows import hot_row_bytes
from adaptive_rec.offline.forecast import replay as replaying
from adaptive_rec.offline.forecast.lane import Lane, StepCounts, stretch_steps
from adaptive_rec.offline.forecast.placement_store import placement_store
from adaptive_rec.offline.forecast.replay import Ceiling, Replayed, replay
from adaptive_rec.offline.forecast.sources import KeptSource
from adaptive_rec.placement import RowSpace
from adaptive_rec.policies.hotline import Hotline
from adaptive_rec.policy.find import BUILT_IN
from adaptive_rec.runtime.assemble import assemble
from tests.matrix import Case, grid

SETTINGS = [
    "run.device=cpu", "run.threads=1", "run.steps=48", "run.batch_size=64", "knobs.target_skip_ratio=0", "eval.max_samples=64",
    "knobs.prefetch_depth=0", "knobs.reclassify_every=10", "policy.schedule_samples=64", "data.synthetic.drift_ranks=3",
    "model.bottom_mlp=[4]", "model.top_mlp=[4]",
]  # fmt: skip
TWO_POOLS = ["model.table_dims=[8,4,8,4]", "data.synthetic.lookups_per_feature=2"]
BUDGETS = [3000, 16 << 10]
OTHERS = ["hotline", "slipstream", "cdlrm"]


def quiet(what: str, done: int, total: int) -> None:
    assert 0 <= done <= total


def tiny(*settings: str) -> Config:
    return load_config("tiny", {}, [*SETTINGS, *settings])


def replayed(config: Config, policies: Any = BUILT_IN, budgets: Any = BUDGETS) -> Replayed:
    return replay(config, open_source(config), policies, budgets, quiet)


@dataclass
class Real:
    """What a real run counted."""

    steps: int
    lookups: int
    hot_lookups: int
    popular_samples: int
    migrated_rows: int
    promoted_bytes: int
    demoted_bytes: int
    hot_rows: int


def real(config: Config, name: str, budget: int) -> Real:
    knobs = config.knobs.changed({"policy": name, "hot_budget_bytes": budget})
    runtime = assemble(config.model_copy(update={"knobs": knobs}))
    for _ in runtime.run():
        pass
    did, moved = runtime.tally.counters, runtime.store.index.traffic
    bytes_moved = (moved.host_to_device_bytes, moved.device_to_host_bytes)  # on a CPU nothing but migrations travels
    hot_rows = runtime.store.hot.tier.hot_rows
    return Real(
        did.steps, did.lookups, did.lookups_hot, did.samples_popular, moved.migrated_rows, *bytes_moved, hot_rows
    )


def seen(lane: Lane) -> Real:
    t = lane.total
    moved = (t.migrated_rows, t.promoted_bytes, t.demoted_bytes, lane.store.hot.tier.hot_rows)
    return Real(t.steps, t.lookups, t.hot_lookups, t.popular_samples, *moved)


@pytest.fixture(scope="module")
def plain() -> Replayed:
    return replayed(tiny())


NO_BUDGET = ("device_only", "hybrid", "xdl")
"""Policies that ignore the budget, so that one lane is replayed, for the first."""


def in_turn(cases: Sequence[Case]) -> list[Case]:
    """The budgets by turns, a policy each; the first for those that ignore it, and both for one of them."""
    names = [name for name in BUILT_IN if name not in NO_BUDGET]
    turn = {name: BUDGETS[number % len(BUDGETS)] for number, name in enumerate(names)}
    return [case for case in cases if case["budget"] == turn.get(case["name"], BUDGETS[0]) or case["name"] == "hybrid"]


@grid(lambda case: True, in_turn, name=list(BUILT_IN), budget=BUDGETS)
def test_a_replay_equals_the_real_run(name: str, budget: int, plain: Replayed) -> None:
    lane = plain.lanes[name, budget]
    if budget != lane.budget_bytes:
        assert name in NO_BUDGET
        assert plain.lanes[name, BUDGETS[0]] is lane
        assert lane.store.hot.tier.hot_rows in (0, lane.space.rows)
        return
    assert seen(lane) == real(tiny(), name, budget)


@pytest.mark.parametrize("name", ["adaptive", "fae", *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)])
def test_a_replay_equals_the_real_run_with_several_dims_and_bags(name: str) -> None:
    config = tiny(*TWO_POOLS, "run.steps=40")
    assert seen(replayed(config, [name], [4000]).lanes[name, 4000]) == real(config, name, 4000)


def test_skipping_does_not_change_what_is_hot() -> None:
    """Lookups are counted whether their sample is trained or not: a real run that skips has the same hot lookups."""
    config = tiny("knobs.target_skip_ratio=0.4", "knobs.action=drop", "knobs.probe_ratio=0.5")
    made = real(config, "slipstream", 16 << 10)
    assert seen(replayed(config, ["slipstream"], [16 << 10]).lanes["slipstream", 16 << 10]) == made


class Fading(Hotline):
    """A policy of a user: rows with an even number are worth double."""

    name = "fading"

    def place(self, view: Any) -> Any:
        wish = super().place(view)
        return replace(wish, scores=wish.scores * (2 - wish.rows % 2))


def test_a_policy_of_the_user_is_replayed() -> None:
    name = f"{__name__}:Fading"
    config = tiny()
    made = seen(replayed(config, [name, "hotline"], [3000]).lanes[name, 3000])
    assert made == real(config, name, 3000)
    assert made != real(config, "hotline", 3000)


def test_many_lanes_in_several_passes_are_the_same_lanes(plain: Replayed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "LANES_LIMIT_BYTES", 1)
    names = ["hotline", "adaptive"]
    apart = replayed(tiny(), names)
    assert (plain.passes, apart.passes) == (1, len(names) * len(BUDGETS))
    assert {key: seen(lane) for key, lane in apart.lanes.items()} == {
        key: seen(plain.lanes[key]) for key in apart.lanes
    }
    assert apart.ceiling == plain.ceiling


# The ceiling ---------------------------------------------------------------------------------------------------------


def by_hand(config: Config, budget: int) -> float:
    """Windows counted with a dictionary; rows taken by lookups for a byte until one does not fit."""
    source = open_source(config)
    space = RowSpace.of(source.tables, source.features)
    caught = total = 0
    batches = list(replaying.stream(config, source))
    for start in range(0, len(batches), config.knobs.reclassify_every):
        counts: dict[int, int] = {}
        for batch in batches[start : start + config.knobs.reclassify_every]:
            bags = np.repeat(np.arange(len(batch.offsets) - 1), np.diff(batch.offsets))
            for row in (space.feature_first_row[bags % len(space.features)] + batch.ids_N).tolist():
                counts[row] = counts.get(row, 0) + 1
        sizes = hot_row_bytes(config, space, monitored=False)
        size_of = {row: sizes[next(p for p, pool in enumerate(space.pools) if row < pool.end_row)] for row in counts}
        left = budget
        for row in sorted(counts, key=lambda row: (-counts[row] / size_of[row], row)):
            left -= size_of[row]
            if left < 0:
                break
            caught += counts[row]
        total += sum(counts.values())
    return caught / total


@pytest.mark.parametrize("settings", [[], [*TWO_POOLS, "run.steps=25"]])
def test_the_ceiling_is_what_the_best_rows_of_each_window_catch(settings: list[str]) -> None:
    config = tiny(*settings)
    assert replayed(config, ["hybrid"]).ceiling == pytest.approx([by_hand(config, budget) for budget in BUDGETS])


def test_only_the_oracle_reaches_the_ceiling(plain: Replayed) -> None:
    for budget, ceiling in zip(BUDGETS, plain.ceiling, strict=True):
        total = plain.lanes["oracle", budget].total
        assert total.hot_lookups / total.lookups == pytest.approx(ceiling)
        past = plain.lanes["hotline", budget].total
        assert 0.3 * ceiling < past.hot_lookups / past.lookups < ceiling


def test_a_window_that_the_stream_cuts_short_counts() -> None:
    table, feature = TableSpec("t", 4, 2), FeatureSpec("f", 0)
    space = RowSpace.of((table,), (feature,))
    ceiling = Ceiling(space, [8], [0, 8, 32], window_steps=2)
    for ids in ([0, 0, 1], [0, 2, 2], [3, 3, 3]):
        column = np.array(ids).reshape(-1, 1)
        ceiling.step(
            ClassifiedBatch(Batch.one_hot(np.zeros((3, 0), np.float32), column, np.zeros(3, np.float32)), space)
        )
    ceiling.end_window()
    assert (ceiling.lookups, ceiling.caught.tolist()) == (9, [0, 3 + 3, 9])


# Parts ---------------------------------------------------------------------------------------------------------------


def test_stretches_add_up_and_end_where_windows_do(plain: Replayed) -> None:
    lane = plain.lanes["hotline", BUDGETS[1]]
    assert [part.steps for part in lane.stretches] == [2] * 24
    assert lane.first_window.steps == 10
    assert lane.total == sum(lane.stretches[1:], lane.stretches[0])
    assert lane.total.counted_rows < lane.total.rows  # half of the steps are sampled
    assert [stretch_steps(window) for window in (100, 10, 7, 8, 9, 1)] == [20, 2, 7, 2, 3, 1]


def test_repeated_reading_of_the_stream_is_counted(plain: Replayed) -> None:
    reads = {name: plain.lanes[name, BUDGETS[0]].total for name in ("hotline", "cdlrm", "fae", "fae_released")}
    lookups = reads["hotline"].lookups
    assert reads["hotline"].read_lookups == lookups
    assert reads["cdlrm"].read_lookups + reads["cdlrm"].decided_lookups == lookups
    assert reads["fae"].decided_lookups >= 2 * lookups  # the sample, and how many samples are hot
    assert reads["fae"].read_lookups + reads["fae"].decided_lookups == 4 * lookups  # and cold samples, and hot ones
    assert reads["fae_released"].decided_lookups == lookups
    assert reads["fae_released"].read_lookups == 2 * lookups
    assert reads["fae"].evaluated_samples >= 64
    assert reads["fae_released"].evaluated_samples == 0


def test_bytes_over_the_link_are_those_of_the_cold_rows(plain: Replayed) -> None:
    total = plain.lanes["hybrid", BUDGETS[0]].total
    assert (total.hot_rows, total.promoted_bytes, total.migrated_rows) == (0, 0, 0)
    assert total.cold_row_bytes == total.rows * plain.row_bytes[0]
    everything = plain.lanes["device_only", BUDGETS[0]]
    assert everything.total.cold_row_bytes == everything.total.demoted_bytes == 0
    assert everything.total.promoted_bytes == everything.space.rows * plain.row_bytes[0]


def test_the_store_allocates_no_rows_and_refuses_to_read_them() -> None:
    tables = (TableSpec("large", 20_000_000, 128),)
    space = RowSpace.of(tables, (FeatureSpec("f", 0),))
    rule = RowRule(1, 1e-8, 0.9, 0.999)
    store = placement_store(space, rule, torch.float32, 1 << 30, monitored=True)
    assert store.hot.tier.weights == store.hot.tier.state == []
    assert store.hot.bytes <= 1 << 30
    for call in (store.path.gather, store.path.apply):
        with pytest.raises(AssertionError, match="rows without values"):
            call()


def test_counts_of_stretches_add_up() -> None:
    one, two = StepCounts(steps=1, lookups=5, migrated_rows=2), StepCounts(steps=2, lookups=1, hot_lookups=1)
    assert one + two == StepCounts(steps=3, lookups=6, migrated_rows=2, hot_lookups=1)


def same(one: list[Batch], other: list[Batch]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a.position == b.position and np.array_equal(a.ids_N, b.ids_N) for a, b in pairs)


@pytest.mark.parametrize("limit_bytes", [0, 30_000, 1 << 30])
def test_a_stream_that_is_kept_is_the_stream(limit_bytes: int) -> None:
    """Also to readers that take turns, stop early, begin in the middle, and where memory ends half-way."""
    source = open_source(tiny("data.synthetic.samples=1000", "data.epochs=2"))
    kept = KeptSource(source, RowSpace.of(source.tables, source.features), limit_bytes)
    begin, middle = Position(seed=1), Position(1, 1, 300)
    expected = list(source.train_batches(begin, 64))
    first, early = kept.train_batches(begin, 64), kept.train_batches(begin, 64)
    turns = [batch for pair in zip(first, early, strict=False) for batch in pair][:20]
    assert same(turns[::2], expected[:10])
    assert same(turns[1::2], expected[:10])
    for _ in range(2):
        assert same(list(kept.train_batches(begin, 64)), expected)
        assert same(list(kept.train_batches(middle, 50)), list(source.train_batches(middle, 50)))


def test_distinct_rows_are_found_once_where_there_is_room() -> None:
    source = open_source(tiny("data.synthetic.samples=1000"))
    space = RowSpace.of(source.tables, source.features)
    for limit_bytes, again in ((1 << 30, True), (0, False)):
        kept = KeptSource(source, space, limit_bytes)
        batch = next(kept.train_batches(Position(seed=1), 64))
        work = kept.classified(batch)
        kept.keep(work)
        assert (kept.classified(batch) is work) == again
        assert np.array_equal(kept.classified(batch).distinct_U, work.distinct_U)


def test_lanes_are_the_same_where_nothing_is_kept(plain: Replayed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeptSource, "__init__", partialmethod(KeptSource.__init__, limit_bytes=0))
    names = ["hotline", "cdlrm", "fae"]
    anew = replayed(tiny(), names)
    assert {key: seen(lane) for key, lane in anew.lanes.items()} == {key: seen(plain.lanes[key]) for key in anew.lanes}
