"""Every embedding kernel against its plain twin, against the torch form of the update rules, and against torch.optim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.config import OptimizerConfig
from adaptive_rec.embedding.optimizer import RULES, RowRule, schedule
from adaptive_rec.kernels import cpu, reference
from adaptive_rec.placement import RowSpace

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
DTYPES = [np.float32, np.float64]
EXACTNESS = {np.float32: 2e-5, np.float64: 1e-12}


class World:
    """A jagged batch, a placement of its rows and both tiers filled with numbers, all drawn from a seed."""

    def __init__(self, space: RowSpace, batch: Batch, seed: int) -> None:
        self.space, self.batch = space, batch
        self.features = len(space.features)
        self.random = np.random.default_rng(seed)
        self.distinct_U, self.inverse_N, self.segments_U1, self.segment_bag_N, self.pool_ends = distinct_by_kernel(
            space, batch
        )
        self.slot_of_row = np.full(space.rows, -1, dtype=np.int32)
        for pool in space.pools:
            hot = np.flatnonzero(self.random.random(pool.rows) < 0.5)
            self.slot_of_row[pool.first_row + hot] = self.random.permutation(len(hot))
        self.source_U, self.popular_B = self.classify()

    def classify(self) -> tuple[Any, Any]:
        source_U = np.empty(len(self.distinct_U), dtype=np.int64)
        popular_B = np.empty(self.batch.size, dtype=np.bool_)
        cpu.classify(
            self.distinct_U, self.pool_ends, self.space.pool_first_row, self.slot_of_row, self.inverse_N, self.batch.offsets,
            self.features, source_U, popular_B,
        )  # fmt: skip
        return source_U, popular_B

    def pool_range(self, pool: int) -> slice:
        return slice(int(self.pool_ends[pool - 1]) if pool else 0, int(self.pool_ends[pool]))

    def tiers(self, pool: int, width: int, dtype: Any) -> list[Any]:
        """Hot rows, hot state, cold rows, cold state; states are not negative, as sums of squares are not."""
        spec = self.space.pools[pool]
        shapes = [(spec.rows, spec.dim), (spec.rows, width), (spec.rows, spec.dim), (spec.rows, width)]
        return [np.abs(self.random.normal(size=shape)).astype(dtype) for shape in shapes]


def distinct_by_kernel(space: RowSpace, batch: Batch) -> tuple[Any, Any, Any, Any, Any]:
    lookups = batch.lookups
    size = 1 << max(4, (2 * lookups).bit_length())
    distinct_N, segments_N1 = np.empty(lookups, dtype=np.int64), np.zeros(lookups + 1, dtype=np.int64)
    inverse_N, bag_N = np.empty(lookups, dtype=np.int32), np.empty(lookups, dtype=np.int32)
    pool_ends = np.zeros(len(space.pools), dtype=np.int64)
    distinct = cpu.find_distinct(
        batch.ids_N, batch.offsets, space.feature_order, space.pool_of_feature, space.feature_first_row, space.rows_F,
        np.full(size, -1, dtype=np.int64), np.empty(size, dtype=np.int32), distinct_N, inverse_N, segments_N1, bag_N, pool_ends,
    )  # fmt: skip
    assert distinct >= 0
    return distinct_N[:distinct], inverse_N, segments_N1[: distinct + 1], bag_N, np.maximum.accumulate(pool_ends)


@st.composite
def worlds(draw: Any) -> World:
    """Up to four tables of up to three dims, some shared, some unread; bags of 0 to 3 ids, sums and means."""
    shapes = draw(st.lists(st.tuples(st.integers(1, 6), st.sampled_from([1, 2, 4])), min_size=1, max_size=4))
    tables = tuple(TableSpec(f"T{i}", rows, dim) for i, (rows, dim) in enumerate(shapes))
    readers = draw(
        st.lists(st.tuples(st.integers(0, len(tables) - 1), st.sampled_from(["sum", "mean"])), min_size=1, max_size=5)
    )
    features = tuple(FeatureSpec(f"F{i}", table, pooling) for i, (table, pooling) in enumerate(readers))
    samples = draw(st.integers(1, 5))
    bags = samples * len(features)
    lengths = draw(st.lists(st.integers(0, 3), min_size=bags, max_size=bags))
    seed = draw(st.integers(0, 1 << 16))
    random = np.random.default_rng(seed)
    limits = np.repeat([tables[feature.table].rows for _ in range(samples) for feature in features], lengths)
    ids = (random.random(len(limits)) * limits).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    batch = Batch(np.zeros((samples, 1), np.float32), ids, offsets, np.zeros(samples, np.float32))
    return World(RowSpace.of(tables, features), batch, seed + 1)


@quick
@given(worlds())
def test_find_distinct_equals_its_twin(world: World) -> None:
    space, batch = world.space, world.batch
    distinct, inverse, bags, pool_ends = reference.find_distinct(
        batch.ids_N, batch.offsets, space.feature_order, space.pool_of_feature, space.feature_first_row
    )
    assert world.distinct_U.tolist() == distinct.tolist()
    assert world.inverse_N.tolist() == inverse.tolist()
    assert [world.segment_bag_N[low:high].tolist() for low, high in segments(world)] == bags
    for pool in np.unique(space.pool_of_feature):
        assert world.pool_ends[pool] == pool_ends[pool]


def segments(world: World) -> list[tuple[int, int]]:
    return list(zip(world.segments_U1[:-1].tolist(), world.segments_U1[1:].tolist(), strict=True))


@pytest.mark.parametrize("wrong", [-1, -(1 << 40), 3, 1 << 40])
@pytest.mark.parametrize("lookup", [0, 2, 5])
def test_find_distinct_reports_the_lookup_of_an_id_outside_its_table(wrong: int, lookup: int) -> None:
    space = RowSpace.of((TableSpec("A", 3, 2), TableSpec("B", 3, 4)), (FeatureSpec("a", 0), FeatureSpec("b", 1)))
    batch = Batch.one_hot(np.zeros((3, 1), np.float32), np.zeros((3, 2), np.int64), np.zeros(3, np.float32))
    ids_N = batch.ids_N.copy()
    ids_N[lookup] = wrong
    found = cpu.find_distinct(
        ids_N, batch.offsets, space.feature_order, space.pool_of_feature, space.feature_first_row, space.rows_F,
        np.full(16, -1, dtype=np.int64), np.empty(16, dtype=np.int32), np.empty(6, dtype=np.int64),
        np.empty(6, dtype=np.int32), np.zeros(7, dtype=np.int64), np.empty(6, dtype=np.int32), np.zeros(2, dtype=np.int64),
    )  # fmt: skip
    assert found == -1 - lookup


@quick
@given(worlds())
def test_classify_equals_its_twin(world: World) -> None:
    source_U, popular_B = reference.classify(
        world.distinct_U, world.pool_ends, world.space.pool_first_row, world.slot_of_row, world.inverse_N,
        world.batch.offsets, world.features,
    )  # fmt: skip
    assert world.source_U.tolist() == source_U.tolist()
    assert world.popular_B.tolist() == popular_B.tolist()


@quick
@given(worlds())
def test_count_by_feature_equals_its_twin(world: World) -> None:
    lookups_F, hot_F = np.full(world.features, -7), np.full(world.features, -7)
    cpu.count_by_feature(world.source_U, world.inverse_N, world.batch.offsets, world.features, lookups_F, hot_F)
    twin = reference.count_by_feature(world.source_U, world.inverse_N, world.batch.offsets, world.features)
    assert [lookups_F.tolist(), hot_F.tolist()] == [counts.tolist() for counts in twin]


@quick
@given(worlds())
def test_count_flagged_equals_its_twin(world: World) -> None:
    flag_U = world.random.random(len(world.distinct_U)) < 0.5
    count_B = np.empty(world.batch.size, dtype=np.int64)
    cpu.count_flagged(flag_U, world.inverse_N, world.batch.offsets, world.features, count_B)
    assert (
        count_B.tolist()
        == reference.count_flagged(flag_U, world.inverse_N, world.batch.offsets, world.features).tolist()
    )


@pytest.mark.parametrize("dtype", DTYPES)
@quick
@given(world=worlds())
def test_gather_pooled_equals_its_twin(dtype: Any, world: World) -> None:
    """For any samples, in any order: a micro-batch need not be sorted."""
    chosen = world.random.permutation(world.batch.size)[: world.random.integers(1, world.batch.size + 1)]
    for pool, spec in enumerate(world.space.pools):
        hot, _, cold, _ = world.tiers(pool, 0, dtype)
        out = np.full((len(chosen), len(spec.features), spec.dim), np.nan, dtype=dtype)
        cpu.gather_pooled(
            chosen, spec.features, world.features, world.batch.offsets, world.inverse_N, world.source_U, world.space.mean_F,
            hot, cold, out,
        )  # fmt: skip
        twin = reference.gather_pooled(
            chosen, spec.features, world.features, world.batch.offsets, world.inverse_N, world.source_U, world.space.mean_F,
            hot, cold,
        )  # fmt: skip
        np.testing.assert_allclose(out, twin, rtol=EXACTNESS[dtype], atol=EXACTNESS[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@quick
@given(world=worlds())
def test_sum_segments_equals_its_twin_with_skipped_samples(dtype: Any, world: World) -> None:
    kept = world.random.random(world.batch.size) < 0.6
    position_B = np.full(world.batch.size, -1, dtype=np.int64)
    position_B[kept] = world.random.permutation(np.count_nonzero(kept))
    for pool, spec in enumerate(world.space.pools):
        span = world.pool_range(pool)
        gradients = world.random.normal(size=(np.count_nonzero(kept), len(spec.features), spec.dim)).astype(dtype)
        grad_UD = np.full((span.stop - span.start, spec.dim), np.nan, dtype=dtype)
        touched_U = np.empty(len(grad_UD), dtype=np.bool_)
        cpu.sum_segments(
            span.start, world.segments_U1, world.segment_bag_N, world.features, world.batch.offsets,
            world.space.column_of_feature, world.space.mean_F, position_B, gradients, grad_UD, touched_U,
        )  # fmt: skip
        bags_U = [world.segment_bag_N[low:high].tolist() for low, high in segments(world)[span]]
        twin, touched = reference.sum_segments(
            bags_U,
            world.features,
            world.batch.offsets,
            world.space.column_of_feature,
            world.space.mean_F,
            position_B,
            gradients,
        )
        assert touched_U.tolist() == touched.tolist()
        np.testing.assert_allclose(grad_UD, twin, rtol=0, atol=EXACTNESS[dtype] * 10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES)
@settings(quick, max_examples=25)
@given(world=worlds(), step=st.integers(1, 2000))
def test_apply_rows_equals_its_twin(dtype: Any, rule: str, world: World, step: int) -> None:
    code = RULES[rule]
    for pool, spec in enumerate(world.space.pools):
        source_U = world.source_U[world.pool_range(pool)]
        grad_UD = world.random.normal(size=(len(source_U), spec.dim)).astype(dtype)
        active_U = world.random.random(len(source_U)) < 0.7
        tiers = world.tiers(pool, RowRule(code, 1e-8, 0.9, 0.999).state_width(spec.dim), dtype)
        before, twins = [tier.copy() for tier in tiers], [tier.copy() for tier in tiers]
        updated = cpu.apply_rows(code, 0.05, 1e-8, 0.9, 0.999, step, source_U, grad_UD, active_U, *tiers)
        expected = reference.apply_rows(code, 0.05, 1e-8, 0.9, 0.999, step, source_U, grad_UD, active_U, *twins)
        assert updated == expected == np.count_nonzero(active_U)
        for mine, twin in zip(tiers, twins, strict=True):
            np.testing.assert_allclose(mine, twin, rtol=EXACTNESS[dtype], atol=EXACTNESS[dtype])
        moved_hot, moved_cold = np.unique(source_U[active_U & (source_U >= 0)]), ~source_U[active_U & (source_U < 0)]
        for tier, old, moved in zip(tiers, before, [moved_hot, moved_hot, moved_cold, moved_cold], strict=True):
            still = np.setdiff1d(np.arange(len(tier)), moved)
            assert np.array_equal(tier[still], old[still]), (
                "a row that is not active, or in the other tier, must not move"
            )


@pytest.mark.parametrize(
    ("rule", "make"),
    [
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.05)),
        ("adagrad", lambda p: torch.optim.Adagrad(p, lr=0.05, eps=1e-8)),
        ("lazy_adam", lambda p: torch.optim.SparseAdam(p, lr=0.05, betas=(0.9, 0.999), eps=1e-8)),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_rules_equal_the_optimizers_of_torch(rule: str, make: Any) -> None:
    """One table, other rows touched in each step; an untouched row must not move, not even under Adam."""
    random = np.random.default_rng(3)
    row_rule = RowRule(RULES[rule], 1e-8, 0.9, 0.999)
    weights, state = random.normal(size=(12, 3)), np.zeros((12, row_rule.state_width(3)))
    parameter = torch.nn.Parameter(torch.from_numpy(weights.copy()))
    optimizer = make([parameter])
    for step in range(1, 9):
        rows = random.choice(12, size=5, replace=False)
        grad = random.normal(size=(5, 3))
        cpu.apply_rows(
            row_rule.code, 0.05, 1e-8, 0.9, 0.999, step, ~rows, grad, np.ones(5, np.bool_), np.zeros((0, 3)),
            np.zeros((0, state.shape[1])), weights, state,
        )  # fmt: skip
        places, values = torch.from_numpy(rows)[None], torch.from_numpy(grad)
        parameter.grad = torch.sparse_coo_tensor(places, values, (12, 3), check_invariants=True)
        optimizer.step()
    np.testing.assert_allclose(weights, parameter.detach().numpy(), rtol=1e-12)


def test_rowwise_adagrad_divides_by_the_root_of_the_summed_mean_squares() -> None:
    weights, state = np.zeros((1, 2)), np.zeros((1, 1))
    for grad in ([3.0, 4.0], [0.0, 2.0]):
        cpu.apply_rows(
            cpu.ROWWISE_ADAGRAD, 1.0, 0.0, 0.0, 0.0, 1, np.array([-1]), np.array([grad]), np.ones(1, np.bool_),
            np.zeros((0, 2)), np.zeros((0, 1)), weights, state,
        )  # fmt: skip
    first, second = np.sqrt(12.5), np.sqrt(12.5 + 2.0)
    np.testing.assert_allclose(weights, [[-3 / first, -4 / first - 2 / second]])
    np.testing.assert_allclose(state, [[14.5]])


def test_learning_rates_warm_up_linearly_then_fall_quadratically_to_zero() -> None:
    config = OptimizerConfig(warmup_steps=4, decay_start=10, decay_steps=5)
    factors = [schedule(config, step) for step in range(17)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:10] == [1.0] * 6
    np.testing.assert_allclose(factors[10:], [1.0, 0.64, 0.36, 0.16, 0.04, 0.0, 0.0], atol=1e-15)


def test_learning_rates_stay_without_a_schedule() -> None:
    assert {schedule(OptimizerConfig(), step) for step in (0, 1, 1000)} == {1.0}
