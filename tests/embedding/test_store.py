"""Both stores against tables held in plain arrays: rows are gathered, updated and moved between tiers in random order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.device import row_bytes, split_budget
from adaptive_rec.embedding.optimizer import RULES, RowRule
from adaptive_rec.embedding.placement_state import placement_state, saved_traffic, set_placement, set_slots, set_traffic
from adaptive_rec.embedding.records import MicroBatch, RowUpdate, Traffic
from adaptive_rec.embedding.staged.cuda_streams import CudaStreams
from adaptive_rec.embedding.staged.path import StagedPath
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.placement import Migration, RowSpace
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.saved import Saved
from tests.doubles import host_kernels
from tests.doubles.late_streams import LateStreams
from tests.kernels.reference import step as reference
from tests.matrix import always, each, grid
from tests.stores import cpu_store, device_store

NONE = np.empty(0, dtype=np.int64)
LR = 0.05
STAGED = ["late", pytest.param("cuda", marks=pytest.mark.gpu)]

TABLES = (TableSpec("A", 11, 2), TableSpec("B", 7, 3), TableSpec("C", 5, 2))
FEATURES = (FeatureSpec("a", 0), FeatureSpec("b", 1, "mean"), FeatureSpec("b again", 1), FeatureSpec("c", 2, "mean"))
SHAPES = {
    "mixed": (TABLES, FEATURES),
    "one table": ((TableSpec("A", 9, 3),), (FeatureSpec("a", 0),)),
    "one row": ((TableSpec("A", 1, 2),), (FeatureSpec("a", 0, "mean"),)),
    "unread pool between": (
        (TableSpec("A", 6, 2), TableSpec("unread", 4, 3), TableSpec("B", 5, 4)),
        (FeatureSpec("a", 0), FeatureSpec("b", 2)),
    ),
}


KINDS = ["direct", *STAGED, "in_place", pytest.param("in_place_cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make_store(
    kind: str, shape: str = "mixed", rule: str = "adagrad", budget_bytes: int = 0, monitored: bool = False
) -> Any:
    space = RowSpace.of(*SHAPES[shape])
    row_rule = RowRule(RULES[rule], 1e-8, 0.9, 0.999)
    if kind == "direct":
        return cpu_store(space, row_rule, 1, torch.float64, budget_bytes, monitored)
    streams = CudaStreams(torch.device("cuda")) if kind.endswith("cuda") else LateStreams(seed=2)
    cold_rows = "in_place" if kind.startswith("in_place") else "staged"
    return device_store(space, row_rule, 1, torch.float64, streams, budget_bytes, monitored, cold_rows=cold_rows)


def random_batch(space: RowSpace, random: np.random.Generator, samples: int = 6) -> Batch:
    lengths = random.integers(0, 4, size=samples * len(space.features))
    ids = (random.random(lengths.sum()) * np.repeat(np.tile(space.rows_F, samples), lengths)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Batch(np.zeros((samples, 1), np.float32), ids, offsets, np.zeros(samples, np.float32))


def random_migration(store: EmbeddingStore, random: np.random.Generator) -> Migration:
    """Demote about half of the hot rows, then promote random cold rows into some of the free slots."""
    hot = np.flatnonzero(store.index.placement.slot_of_row >= 0)
    demote = hot[random.random(len(hot)) < 0.5]
    promote = []
    for pool, spec in enumerate(store.space.pools):
        staying = np.setdiff1d(store.hot.tier.row_of_slot[pool], demote)
        free = store.hot.tier.capacities[pool] - np.count_nonzero(staying >= 0)
        cold = np.setdiff1d(np.arange(spec.first_row, spec.end_row), hot)
        promote.append(random.permutation(cold)[: random.integers(0, free + 1)])
    return Migration(np.concatenate(promote), demote)


def export(store: EmbeddingStore) -> list[np.ndarray]:
    return [part for table in range(len(store.space.tables)) for part in store.contents.export(table)]


def assert_same(mine: list[Any], other: list[Any], exact: bool = True) -> None:
    for a, b in zip(mine, other, strict=True):
        assert not np.isnan(a).any()
        np.testing.assert_allclose(a, b, rtol=0, atol=0 if exact else 1e-12)


@dataclass
class Step:
    work: ClassifiedBatch
    pooled: list[torch.Tensor]


def prepare(store: EmbeddingStore, batch: Batch) -> ClassifiedBatch:
    work = ClassifiedBatch(batch, store.space)
    store.path.classify(work)
    store.batches.stage(work)
    return work


def buffers(store: EmbeddingStore, lines: int) -> MicroBatch:
    """Return buffers filled with NaN, as if used before."""
    shapes = [(lines, len(pool.features), pool.dim) for pool in store.space.pools]
    dense, labels, scale, *pooled = (
        torch.full(shape, torch.nan, dtype=torch.float64, device=store.torch_device)
        for shape in ((lines, 1), (lines,), (lines,), *shapes)
    )
    return MicroBatch(dense, pooled, labels, scale, lines)


def train(
    store: EmbeddingStore, work: ClassifiedBatch, step: int, random: np.random.Generator, freeze: float = 0.2
) -> tuple[Any, Any, Any]:
    """Gather and update as a step does; some samples are skipped, some rows frozen. Returns (samples, vectors, update).

    The vectors are those of the gather once `store.settle` has returned: the device may be late.
    """
    store.batches.take(work)
    samples = np.flatnonzero(random.random(work.batch.size) < 0.8)
    if not len(samples):
        samples = np.array([0])
    padding = int(random.integers(0, 3)) if isinstance(store.path, StagedPath) else 0
    micro = buffers(store, len(samples) + padding)
    store.batches.gather(work, samples, np.full(len(samples), 0.5), micro)
    vectors: list[Any] = []
    store.hot.launch(lambda: vectors.extend(part.cpu().numpy().copy() for part in micro.pooled))
    gradients = [torch.from_numpy(random.normal(size=tuple(part.shape))).to(part.device) for part in micro.pooled]
    position_B = np.full(work.batch.size, -1, dtype=np.int64)
    position_B[samples] = np.arange(len(samples))
    frozen_U = random.random(len(work.distinct_U)) < freeze
    update = RowUpdate(gradients, position_B, frozen_U, LR, step, measure=bool(step % 2))
    store.batches.apply(work, update)
    return samples, vectors, update


class PlainTables:
    """Rows in one dict, which a store must equal, whatever the tiers of its rows."""

    def __init__(self, store: EmbeddingStore) -> None:
        self.rule = store.rule
        self.space = store.space
        self.rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for index in range(len(self.space.tables)):
            weights, state = store.contents.export(index)
            first = int(self.space.table_first_row[index])
            self.rows |= {first + i: (weights[i].copy(), state[i].copy()) for i in range(len(weights))}

    def bag(self, batch: Batch, sample: int, feature: int) -> list[int]:
        bag = sample * len(self.space.features) + feature
        return [
            int(self.space.feature_first_row[feature] + i)
            for i in batch.ids_N[batch.offsets[bag] : batch.offsets[bag + 1]]
        ]

    def divisor(self, feature: int, bag: list[int]) -> int:
        return max(1, len(bag)) if self.space.mean_F[feature] else 1

    def pooled(self, batch: Batch, samples: Any, pool: int) -> np.ndarray:
        spec = self.space.pools[pool]
        out = np.zeros((len(samples), len(spec.features), spec.dim))
        for line, sample in enumerate(samples):
            for column, feature in enumerate(spec.features):
                bag = self.bag(batch, sample, feature)
                out[line, column] = sum((self.rows[row][0] for row in bag), np.zeros(spec.dim)) / self.divisor(
                    feature, bag
                )
        return out

    def apply(self, work: ClassifiedBatch, samples: Any, update: RowUpdate) -> None:
        sums: dict[int, np.ndarray] = {}
        gradients = [part.cpu().numpy() for part in update.gradients]
        for line, sample in enumerate(samples):
            for feature in range(len(self.space.features)):
                pool, column = self.space.pool_of_feature[feature], self.space.column_of_feature[feature]
                bag = self.bag(work.batch, sample, feature)
                for row in bag:
                    part = gradients[pool][line, column] / self.divisor(feature, bag)
                    sums[row] = sums.get(row, 0) + part
        assert update.frozen_U is not None
        frozen = set(work.distinct_U[update.frozen_U].tolist())
        for row, gradient in sums.items():
            if row not in frozen:
                rule = self.rule
                hyper = rule.at(update.step, LR)
                reference.apply_row(rule.code, hyper, *self.rows[row], gradient)

    def export(self) -> list[np.ndarray]:
        parts = []
        for first, table in zip(self.space.table_first_row.tolist(), self.space.tables, strict=True):
            for part in (0, 1):
                parts.append(np.array([self.rows[row][part] for row in range(first, first + table.rows)]))
        return parts


def slots_for(store: EmbeddingStore, rows: int) -> list[int]:
    """Slots of each pool within a budget for about so many rows."""
    return split_budget(store.space, store.hot.row_bytes(), rows * max(store.hot.row_bytes()))


@grid(kind=KINDS, shape=list(SHAPES), rule=list(RULES), seed=range(3))
def test_any_order_of_steps_moves_and_resizes_equals_plain_tables(kind: str, shape: str, rule: str, seed: int) -> None:
    """Batches are staged up to three ahead, so placement and rows change between staging and use."""
    random = np.random.default_rng([seed, 17])
    store = make_store(kind, shape, rule, monitored=bool(seed % 2))
    store.resize(slots_for(store, int(random.integers(0, 20))), NONE)
    plain = PlainTables(store)
    ahead: list[ClassifiedBatch] = []
    gathered = []
    for step in range(1, 41):
        while len(ahead) < random.integers(1, 4):
            ahead.append(prepare(store, random_batch(store.space, random)))
        work = ahead.pop(0)
        samples, vectors, update = train(store, work, step, random)
        pools = range(len(store.space.pools))
        gathered.append((vectors, [plain.pooled(work.batch, samples, pool) for pool in pools]))
        plain.apply(work, samples, update)
        if random.random() < 0.4:
            store.migrate(random_migration(store, random))
        if random.random() < 0.1:
            store.resize(slots_for(store, int(random.integers(0, 20))), random.permutation(store.space.rows))
    assert store.index.placement.version > 3
    assert_same(export(store), plain.export(), exact=False)
    for vectors, expected in gathered:
        for mine, theirs in zip(vectors, expected, strict=True):
            np.testing.assert_allclose(mine[: len(theirs)], theirs, rtol=0, atol=1e-12)
            assert not mine[len(theirs) :].any(), "padding is zero"


def test_only_the_copy_in_a_rows_own_tier_is_ever_read(kind: str) -> None:
    """The home of every hot row and every free slot are poisoned: training on and reading out must not notice."""
    stores = [make_store(kind, rule="lazy_adam", monitored=True) for _ in range(2)]
    for store in stores:
        store.resize(slots_for(store, 12), NONE)
    for step in range(1, 31):
        for store, poisoned in zip(stores, (False, True), strict=True):
            random = np.random.default_rng([step, 5])
            if step % 3 == 1:
                store.migrate(random_migration(store, random))
            if poisoned:
                poison(store)
            train(store, prepare(store, random_batch(store.space, random)), step, random)
    clean, dirty = stores
    assert dirty.hot.tier.hot_rows > 0
    assert_same(export(dirty), export(clean))


def poison(store: EmbeddingStore) -> None:
    store.settle()
    for pool, spec in enumerate(store.space.pools):
        row_of_slot = store.hot.tier.row_of_slot[pool]
        for tier in (store.cold.types.weights, store.cold.types.state):
            tier[pool][row_of_slot[row_of_slot >= 0] - spec.first_row] = np.nan
        for hot in (store.hot.tier.weights, store.hot.tier.state):
            hot[pool][torch.from_numpy(np.flatnonzero(row_of_slot < 0))] = torch.nan


def trained_store(kind: str, rule: str = "lazy_adam", shape: str = "mixed") -> Any:
    """A store whose rows and optimizer state all differ from their start."""
    store = make_store(kind, shape, rule)
    random = np.random.default_rng(8)
    for step in range(1, 9):
        train(store, prepare(store, random_batch(store.space, random)), step, random)
    return store


@grid(always, each, kind=KINDS, rule=list(RULES))
def test_a_migration_changes_no_value(kind: str, rule: str) -> None:
    store = trained_store(kind, rule)
    store.resize(slots_for(store, 14), NONE)
    before = export(store)
    random = np.random.default_rng(6)
    for _ in range(12):
        store.migrate(random_migration(store, random))
        assert_same(export(store), before)
        assert_tiers_agree(store)
    assert store.index.traffic.migrated_rows > 20


def assert_tiers_agree(store: EmbeddingStore) -> None:
    """The row -> slot array and the slots' rows say the same."""
    pairs = []
    for pool, spec in enumerate(store.space.pools):
        slot_of_row = store.index.placement.slot_of_row[spec.first_row : spec.end_row]
        hot = np.flatnonzero(slot_of_row >= 0)
        assert store.hot.tier.row_of_slot[pool][slot_of_row[hot]].tolist() == (hot + spec.first_row).tolist()
        pairs.append(len(hot))
    assert sum(pairs) == store.hot.tier.hot_rows


@grid(always, each, kind=KINDS, rows=[0, 1, 3, 9, 30, 1000])
def test_another_budget_keeps_every_value_and_is_never_exceeded(kind: str, rows: int) -> None:
    store = trained_store(kind)
    store.resize(slots_for(store, 8), np.arange(store.space.rows))
    before, hot_before = export(store), set(np.flatnonzero(store.index.placement.slot_of_row >= 0).tolist())
    ranked = np.random.default_rng(2).permutation(store.space.rows)
    moved = store.resize(slots_for(store, rows), ranked)

    assert_same(export(store), before)
    assert_tiers_agree(store)
    assert store.hot.tier.capacities == slots_for(store, rows)
    assert store.hot.bytes <= rows * max(store.hot.row_bytes())
    hot = set(np.flatnonzero(store.index.placement.slot_of_row >= 0).tolist())
    assert set(moved.promote.tolist()) == hot - hot_before
    assert set(moved.demote.tolist()) == hot_before - hot
    for pool, spec in enumerate(store.space.pools):
        best = [row for row in ranked if spec.first_row <= row < spec.end_row][: store.hot.tier.capacities[pool]]
        assert set(best) == {row for row in hot if spec.first_row <= row < spec.end_row}, "the best ranked rows are hot"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_budget_for_everything_that_is_read_holds_every_row_that_is_read(kind: str, shape: str) -> None:
    store = make_store(kind, shape, monitored=True)
    budget = sum(pool.rows * size for pool, size in zip(store.space.pools, store.hot.row_bytes(), strict=True))
    for larger in (budget, 10 * budget):
        store.resize(split_budget(store.space, store.hot.row_bytes(), larger), np.arange(store.space.rows))
        for pool, capacity in zip(store.space.pools, store.hot.tier.capacities, strict=True):
            assert capacity == (pool.rows if len(pool.features) else 0)


def test_without_a_budget_nothing_can_be_hot(kind: str) -> None:
    store = make_store(kind, budget_bytes=0, monitored=True)
    assert store.hot.bytes == 0
    assert store.hot.tier.capacities == [0, 0]
    random = np.random.default_rng(1)
    before = export(store)
    train(store, prepare(store, random_batch(store.space, random)), 1, random)
    assert store.hot.tier.hot_rows == 0
    assert any(not np.array_equal(mine, old) for mine, old in zip(export(store), before, strict=True)), (
        "cold rows are trained"
    )


@st.composite
def pools_and_budget(draw: Any) -> tuple[RowSpace, list[int], int]:
    shapes = draw(st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 6)), min_size=1, max_size=6))
    tables = tuple(TableSpec(f"T{i}", rows, dim) for i, (rows, dim) in enumerate(shapes))
    reading = draw(st.lists(st.integers(0, len(tables) - 1), min_size=1, max_size=8))
    space = RowSpace.of(tables, tuple(FeatureSpec(f"F{i}", table) for i, table in enumerate(reading)))
    rule = RowRule(draw(st.sampled_from(list(RULES.values()))), 1e-8, 0.9, 0.999)
    return (
        space,
        row_bytes(space, rule, draw(st.sampled_from([4, 8])), draw(st.booleans())),
        draw(st.integers(0, 200_000)),
    )


@settings(max_examples=300, deadline=None)
@given(pools_and_budget())
def test_the_pools_share_never_exceeds_the_budget_and_wastes_little(case: tuple[RowSpace, list[int], int]) -> None:
    space, sizes, budget = case
    capacities = split_budget(space, sizes, budget)
    spent = sum(slots * size for slots, size in zip(capacities, sizes, strict=True))
    assert spent <= budget
    assert all(0 <= slots <= pool.rows for slots, pool in zip(capacities, space.pools, strict=True))
    read = [p for p, pool in enumerate(space.pools) if len(pool.features)]
    wanted = sum(space.pools[p].rows * sizes[p] for p in read)
    # Each pool may leave less than one row of its own unused.
    assert spent > min(budget, wanted) - sum(sizes[p] for p in read)


@pytest.mark.parametrize("rule", RULES)
def test_row_bytes_count_everything_that_is_kept_for_a_row_on_the_device(kind: str, rule: str) -> None:
    store = make_store(kind, rule=rule, monitored=True)
    store.resize(slots_for(store, 9), NONE)
    tensors = [*store.hot.tier.weights, *store.hot.tier.state]
    tensors += [tensor for monitor in store.hot.tier.monitors for tensor in (monitor.record_HR, monitor.touches_H)]
    assert store.hot.bytes == sum(tensor.nbytes for tensor in tensors) > 0


@pytest.mark.parametrize("kind", STAGED, indirect=True)
def test_a_staged_batch_sends_each_distinct_cold_row_once_in_each_direction(kind: str) -> None:
    store = make_store(kind)
    store.resize(slots_for(store, 10), np.arange(store.space.rows))
    random = np.random.default_rng(11)
    for step in range(1, 10):
        work = prepare(store, random_batch(store.space, random))
        before = (store.index.traffic.host_to_device_bytes, store.index.traffic.device_to_host_bytes)
        rows_bytes = sum(
            8 * (pool.dim + store.rule.state_width(pool.dim)) * int(np.count_nonzero(~work.hot_U[work.pool_range(p)]))
            for p, pool in enumerate(store.space.pools)
        )
        train(store, work, step, random)
        assert rows_bytes > 0
        assert 0 <= store.index.traffic.device_to_host_bytes - before[1] - rows_bytes < 4 * 256, "rows, state, alignment"
        assert store.index.traffic.host_to_device_bytes - before[0] > rows_bytes, (
            "the arrays of a step travel too"
        )


@pytest.mark.parametrize("kind", ["in_place", pytest.param("in_place_cuda", marks=pytest.mark.gpu)], indirect=True)
def test_rows_in_place_cross_the_bus_twice_and_come_back(kind: str) -> None:
    """Weights for the bags, all of it for the update; back goes what was updated."""
    store = make_store(kind)
    store.resize(slots_for(store, 10), np.arange(store.space.rows))
    random = np.random.default_rng(11)
    for step in range(1, 10):
        work = prepare(store, random_batch(store.space, random))
        before = (store.index.traffic.host_to_device_bytes, store.index.traffic.device_to_host_bytes)
        cold_U = ~work.hot_U
        update = train(store, work, step, random)[2]
        read_U = np.logical_or.reduceat(
            update.position_B[work.segment_bag_N // len(store.space.features)] >= 0, work.segments_U1[:-1]
        )
        weights = updated = 0
        for p, pool in enumerate(store.space.pools):
            span = work.pool_range(p)
            weights += 8 * pool.dim * int(np.count_nonzero(cold_U[span]))
            some = np.count_nonzero((cold_U & read_U & ~update.frozen_U)[span])
            updated += 8 * (pool.dim + store.rule.state_width(pool.dim)) * int(some)
        assert store.index.traffic.device_to_host_bytes - before[1] == updated > 0
        up_bytes = store.index.traffic.host_to_device_bytes - before[0]
        assert weights + updated < up_bytes < weights + updated + 8192, "and the lists"


@pytest.mark.parametrize("kind", STAGED, indirect=True)
def test_a_row_that_an_earlier_batch_holds_is_taken_over_on_the_device(kind: str) -> None:
    """However late the host tier learns of it: here it is poisoned when the second batch is staged."""
    store = make_store(kind, shape="one row")
    plain = PlainTables(store)
    batch = Batch.one_hot(np.zeros((2, 1), np.float32), np.zeros((2, 1), np.int64), np.zeros(2, np.float32))
    first = prepare(store, batch)
    store.cold.types.weights[0][:], store.cold.types.state[0][:] = np.nan, np.nan
    second = prepare(store, batch)
    for step, work in enumerate([first, second], start=1):
        samples, _, update = train(store, work, step, np.random.default_rng(2), freeze=0)
        plain.apply(work, samples, update)
    assert_same(export(store), plain.export(), exact=False)


def test_a_migration_counts_the_bytes_of_rows_and_state(kind: str) -> None:
    store = make_store(kind, rule="rowwise_adagrad")
    store.resize(slots_for(store, 10), NONE)
    rows = np.array([0, 1, 16])  # dim 2, 2 and 3
    store.migrate(Migration(rows, NONE))
    assert store.index.traffic.host_to_device_bytes == 8 * (2 * (2 + 1) + (3 + 1))
    store.migrate(Migration(NONE, rows[:1]))
    assert store.index.traffic.device_to_host_bytes == 8 * (2 + 1)
    assert store.index.traffic.migrated_rows == 4


def test_rows_of_new_ids_that_are_hot_already_are_set_without_a_move_that_counts(kind: str) -> None:
    """How many of them there are by a step depends on how far is read ahead: a run would not equal one that was resumed."""
    ids, cold, hot = np.array([0, 1]), make_store(kind), make_store(kind)
    hot.resize(slots_for(hot, 10), np.arange(hot.space.rows))
    counted, moves = replace(hot.index.traffic), hot.index.placement.moves
    for store in (cold, hot):
        store.contents.draw_rows(0, ids, ids + 7, 5)
        store.contents.finish_draws()
    assert (hot.index.traffic, hot.index.placement.moves) == (counted, moves)
    np.testing.assert_array_equal(hot.contents.export(0)[0][ids], cold.contents.export(0)[0][ids])
    assert (hot.index.slot_of_row[ids] >= 0).all()


def test_a_device_sums_no_gradients_of_frozen_rows() -> None:
    """Only of them: memory for the sums of the others is filled."""
    summed: list[int] = []

    def sum_pieces(*arrays: Any) -> None:
        partial_PD, active_P = arrays[8:]
        pieces = partial_PD[: len(arrays[0]) - 1].fill_(torch.nan)
        host_kernels.sum_pieces(*arrays)
        assert active_P is not None
        assert pieces.isnan().any(dim=1).tolist() == (~active_P).tolist()
        summed.append(int(active_P.sum()))

    space, rule = RowSpace.of(*SHAPES["one table"]), RowRule(RULES["adagrad"], 1e-8, 0.9, 0.999)
    streams = LateStreams(2, SimpleNamespace(**{**vars(host_kernels), "sum_pieces": sum_pieces}))
    store = device_store(space, rule, 1, torch.float64, streams, 1 << 20, False)
    random = np.random.default_rng(3)
    work = prepare(store, random_batch(space, random))
    _, _, update = train(store, work, 1, random, freeze=0.5)
    store.settle()
    touched_rows = int(store.index.traffic.row_updates)
    assert update.frozen_U.any()
    assert summed == [touched_rows], "a row of this batch has one piece"


def test_updates_are_counted_as_made_skipped_and_hot(kind: str) -> None:
    store = make_store(kind)
    store.resize(slots_for(store, 10), np.arange(store.space.rows))
    random = np.random.default_rng(3)
    work = prepare(store, random_batch(store.space, random))
    samples, _, update = train(store, work, 1, random)
    trained = np.zeros(work.batch.size, dtype=bool)
    trained[samples] = True
    features = len(store.space.features)
    touched = np.zeros(len(work.distinct_U), dtype=bool)
    for sample in samples:
        touched[work.inverse_N[work.batch.offsets[sample * features] : work.batch.offsets[(sample + 1) * features]]] = (
            True
        )
    assert store.index.traffic.row_updates == np.count_nonzero(touched & ~update.frozen_U)
    assert store.index.traffic.row_updates_skipped == np.count_nonzero(touched & update.frozen_U) > 0
    assert store.index.traffic.hot_row_updates == np.count_nonzero(touched & work.hot_U & ~update.frozen_U) > 0
    assert store.index.traffic.hot_row_updates <= store.index.traffic.row_updates


def test_counts_of_a_checkpoint_include_skipped_updates_of_hot_rows_as_they_always_did(kind: str) -> None:
    donor, store = make_store(kind), make_store(kind)
    donor.index.set_traffic(Traffic(row_updates=10, row_updates_skipped=3, hot_row_updates=4))
    saved = saved_traffic(donor.index.traffic)
    assert saved["hot_row_updates"] == 7
    set_traffic(store, Saved(saved))
    assert store.index.traffic == donor.index.traffic


def test_tables_come_back_as_they_were_imported(kind: str) -> None:
    donor, store = trained_store(kind), make_store(kind, rule="lazy_adam")
    for table in range(len(TABLES)):
        store.contents.import_rows(table, 0, *donor.contents.export(table))
    assert_same(export(store), export(donor))


@pytest.fixture(autouse=True)
def no_writer_is_left(closed_behind: Callable[[type], None]) -> None:
    """Staged stores keep a thread; close it, and see its errors."""
    closed_behind(StagedPath)


def test_a_micro_batch_of_all_samples_is_filled_in_the_order_of_the_plan() -> None:
    runtime = assemble(load_config("tiny", {}, ["run.device=cpu"]))
    batch = next(iter(runtime.batches()))
    work = ClassifiedBatch(batch, runtime.store.space)
    runtime.store.path.classify(work)
    backwards = np.arange(batch.size)[::-1].copy()
    filled = []
    for samples in (np.arange(batch.size), backwards):
        micro = runtime.dense.evaluation_inputs(batch.size)
        runtime.store.batches.gather(work, samples, np.ones(batch.size), micro)
        filled.append([part.numpy() for part in (micro.dense_SX, micro.labels_S, *micro.pooled)])
    assert not np.array_equal(filled[0][1], filled[1][1])
    for there, back in zip(*filled, strict=True):
        assert np.array_equal(there, back[::-1])


@pytest.mark.parametrize("kind", ["direct", "late"], indirect=True)
def test_records_of_an_earlier_version_are_rounded(kind: str) -> None:
    """They were sums of full precision, then the path and the sum of squares."""
    store, other = (make_store(kind, "one table", monitored=True) for _ in range(2))
    store.resize([4], np.arange(4))
    saved = placement_state(store)
    sums = np.random.default_rng(1).normal(size=(4, 3))
    record = np.concatenate([sums, np.full((4, 1), 9.0), np.arange(4.0)[:, None]], axis=1)
    saved["pools"]["0"]["monitor"] = {"record_HR": record, "touches_H": np.full(4, 5, np.int32)}
    set_slots(other, [4])
    set_placement(other, Saved(saved))
    found = other.hot.movement(0)
    np.testing.assert_allclose(found.max_abs_H, np.abs(sums).max(axis=1), rtol=1 / 63)
    np.testing.assert_allclose(found.net_H, np.linalg.norm(sums, axis=1), rtol=1 / 63)
    assert found.square_H.tolist() == [0, 1, 2, 3]
    assert found.touches_H.tolist() == [5] * 4
    assert other.hot.row_bytes()[0] - other.hot.row_bytes(monitored=False)[0] == 3 + 1 + 8 + 4
