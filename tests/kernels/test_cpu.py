"""Every embedding kernel against its plain twin, against the torch form of the update rules, and against torch.optim."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.model import OptimizerConfig
from adaptive_rec.embedding.optimizer import RowRule, schedule
from adaptive_rec.errors import DataError
from adaptive_rec.kernels import classify, finite_rows, jit, pooling, row_update
from adaptive_rec.kernels.jit import usable_threads
from adaptive_rec.kernels.update_rules import MOMENTUM, NAMED_RULES, RMSPROP, ROWWISE_ADAGRAD
from adaptive_rec.placement import RowSpace
from tests.kernels.examples import few_or_many
from tests.kernels.reference import step as reference
from tests.matrix import Case, always, each, grid, pairwise

FEW, MANY = 20, 60
DTYPES = [np.float32, np.float64]
DENSE_RULES = {
    "momentum": RowRule(MOMENTUM, 0.0, 0.9, 0.0, decay=0.1, dampening=0.2),
    "Nesterov's momentum": RowRule(MOMENTUM, 0.0, 0.9, 0.0, nesterov=True),
    "RMSprop": RowRule(RMSPROP, 1e-3, 0.0, 0.9, decay=0.1),
    "RMSprop, momentum": RowRule(RMSPROP, 1e-3, 0.9, 0.9),
    "RMSprop, centered": RowRule(RMSPROP, 0.5, 0.9, 0.9, centered=True),
}
ROW_RULES = {name: RowRule(rule.code, 1e-8, 0.9, 0.999) for name, rule in NAMED_RULES.items()} | DENSE_RULES
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
        self.one_hot = bool(classify.is_one_hot(batch.offsets, batch.lookups))
        self.source_U = np.empty(len(self.distinct_U), dtype=np.int64)
        rows = self.distinct_U, self.pool_ends, space.pool_first_row
        classify.find_sources(*rows, self.slot_of_row, True, self.source_U)
        self.source_N = self.source_U[self.inverse_N]

    def pool_range(self, pool: int) -> slice:
        return slice(int(self.pool_ends[pool - 1]) if pool else 0, int(self.pool_ends[pool]))

    def tiers(self, pool: int, width: int, dtype: Any) -> list[Any]:
        """Hot rows, hot state, cold rows, cold state; states are not negative, as sums of squares are not."""
        spec = self.space.pools[pool]
        shapes = [(spec.rows, spec.dim), (spec.rows, width), (spec.rows, spec.dim), (spec.rows, width)]
        return [np.abs(self.random.normal(size=shape)).astype(dtype) for shape in shapes]


def distinct_by_kernel(space: RowSpace, batch: Batch) -> tuple[Any, Any, Any, Any, Any]:
    work = ClassifiedBatch(batch, space)
    return work.distinct_U, work.inverse_N, work.segments_U1, work.segment_bag_N, work.pool_ends


@st.composite
def worlds(draw: Any, dims: Sequence[int] = (1, 2, 4)) -> World:
    """Up to four tables of up to three dims, some shared, some unread; bags of 0 to 3 ids or all of one, sums and means."""
    shapes = draw(st.lists(st.tuples(st.integers(1, 6), st.sampled_from(dims)), min_size=1, max_size=4))
    tables = tuple(TableSpec(f"T{i}", rows, dim) for i, (rows, dim) in enumerate(shapes))
    readers = draw(
        st.lists(st.tuples(st.integers(0, len(tables) - 1), st.sampled_from(["sum", "mean"])), min_size=1, max_size=5)
    )
    features = tuple(FeatureSpec(f"F{i}", table, pooling) for i, (table, pooling) in enumerate(readers))
    samples = draw(st.integers(1, 5))
    bags = samples * len(features)
    longest = draw(st.sampled_from([1, 3]))
    lengths = draw(st.lists(st.integers(longest == 1, longest), min_size=bags, max_size=bags))
    seed = draw(st.integers(0, 1 << 16))
    random = np.random.default_rng(seed)
    limits = np.repeat([tables[feature.table].rows for _ in range(samples) for feature in features], lengths)
    ids = (random.random(len(limits)) * limits).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    batch = Batch(np.zeros((samples, 1), np.float32), ids, offsets, np.zeros(samples, np.float32))
    return World(RowSpace.of(tables, features), batch, seed + 1)


@few_or_many(
    FEW,
    MANY,
    some=st.lists(st.integers(0, 6), max_size=8),
    lookups=st.integers(0, 6),
    dtype=st.sampled_from([np.int32, np.int64]),
)
def test_rises_says_whether_offsets_rise_from_0_to_the_lookups(some: list[int], lookups: int, dtype: type) -> None:
    for numbers in (some, [0, *sorted(some), lookups]):
        expected = bool(numbers) and numbers[0] == 0 and numbers[-1] == lookups and numbers == sorted(numbers)
        assert bool(classify.rises(np.array(numbers, dtype), lookups)) == expected


@pytest.mark.parametrize("parts", [1, 2])
@few_or_many(FEW, MANY, world=worlds())
def test_find_distinct_equals_its_twin(parts: int, world: World) -> None:
    space, batch = world.space, world.batch
    if usable_threads(parts) < parts:
        pytest.skip("needs two cores and Numba with OpenMP")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "MIN_LOOKUPS", 0)
        work = ClassifiedBatch(batch, space, parts)
    distinct, inverse, bags, pool_ends = reference.find_distinct(
        batch.ids_N, batch.offsets, space.feature_order, space.pool_of_feature, space.feature_first_row
    )
    assert work.distinct_U.tolist() == distinct.tolist()
    assert work.inverse_N.tolist() == inverse.tolist()
    ends = work.segments_U1.tolist()
    assert [work.segment_bag_N[low:high].tolist() for low, high in zip(ends[:-1], ends[1:], strict=True)] == bags
    for pool in np.unique(space.pool_of_feature):
        assert work.pool_ends[pool] == pool_ends[pool]
    assert work.pool_ends.tolist() == np.maximum.accumulate(work.pool_ends).tolist()
    assert work.pool_ends[-1] == len(distinct)


def segments(world: World) -> list[tuple[int, int]]:
    return list(zip(world.segments_U1[:-1].tolist(), world.segments_U1[1:].tolist(), strict=True))


@grid(wrong=[-1, -(1 << 40), 3, 1 << 40], lookup=[0, 2, 5], parts=[1, 2])
def test_an_id_outside_its_table_is_refused(
    wrong: int, lookup: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = RowSpace.of((TableSpec("A", 3, 2), TableSpec("B", 3, 4)), (FeatureSpec("a", 0), FeatureSpec("b", 1)))
    batch = Batch.one_hot(np.zeros((3, 1), np.float32), np.zeros((3, 2), np.int64), np.zeros(3, np.float32))
    batch.ids_N[lookup] = wrong
    monkeypatch.setattr(jit, "MIN_LOOKUPS", 0)
    with pytest.raises(DataError, match=rf"ids of table {'AB'[lookup % 2]} .* got {wrong} \(sample {lookup // 2} "):
        ClassifiedBatch(batch, space, usable_threads(parts))


@few_or_many(FEW, MANY, world=worlds())
def test_find_sources_equals_its_twin(world: World) -> None:
    rows = world.distinct_U, world.pool_ends, world.space.pool_first_row
    assert world.source_U.tolist() == reference.find_sources(*rows, world.slot_of_row).tolist()
    cold_R, source_U = np.full_like(world.slot_of_row, -1), np.empty_like(world.source_U)
    classify.find_sources(*rows, cold_R, False, source_U)
    assert source_U.tolist() == reference.find_sources(*rows, cold_R).tolist()


@few_or_many(FEW, MANY, world=worlds())
def test_spread_sources_equals_its_twin(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "MIN_LOOKUPS", 0)
        for threads in (1, usable_threads(2)):
            spread_equals_its_twin(world, threads)


def spread_equals_its_twin(world: World, threads: int) -> None:
    source_N, popular_B = np.full(world.batch.lookups, 77), np.empty(world.batch.size, dtype=np.bool_)
    lookups_F, hot_F = np.full(world.features, -7), np.full(world.features, -7)
    batch = world.batch
    classify.spread_sources(
        world.source_U,
        world.inverse_N,
        batch.offsets,
        world.one_hot,
        world.features,
        source_N,
        popular_B,
        lookups_F,
        hot_F,
        threads,
    )
    twins = reference.spread_sources(world.source_U, world.inverse_N, batch.offsets, world.features)
    mine = (source_N, popular_B, lookups_F, hot_F)
    assert [part.tolist() for part in mine] == [part.tolist() for part in twins]


@few_or_many(FEW, MANY, world=worlds())
def test_one_hot_means_one_id_in_every_bag(world: World) -> None:
    assert world.one_hot == bool(np.all(np.diff(world.batch.offsets) == 1))


@few_or_many(FEW, MANY, world=worlds())
def test_count_flagged_equals_its_twin(world: World) -> None:
    flag_U = world.random.random(len(world.distinct_U)) < 0.5
    count_B = np.empty(world.batch.size, dtype=np.int64)
    classify.count_flagged(flag_U, world.inverse_N, world.batch.offsets, world.features, count_B)
    assert (
        count_B.tolist()
        == reference.count_flagged(flag_U, world.inverse_N, world.batch.offsets, world.features).tolist()
    )


@pytest.fixture
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """On one thread, and cut into parts for two."""
    if usable_threads(request.param) < request.param:
        pytest.skip("needs two cores and Numba with OpenMP")
    monkeypatch.setattr(jit, "MIN_LOOKUPS", 0)
    return int(request.param)


THREADS = [1, 2]
COMBINATIONS = [*itertools.product(DTYPES, THREADS)]


def combined(cases: Sequence[Case]) -> list[Case]:
    """Choose each rule once, with the combinations of type and threads in turn."""
    chosen = {rule: COMBINATIONS[number % len(COMBINATIONS)] for number, rule in enumerate(ROW_RULES)}
    return [case for case in cases if (case["dtype"], case["threads"]) == chosen[case["rule"]]]


@grid(always, pairwise, ["threads"], dtype=DTYPES, threads=THREADS)
@few_or_many(FEW, MANY, world=worlds(), padding=st.integers(0, 2))
def test_gather_pooled_equals_its_twin(dtype: Any, threads: int, world: World, padding: int) -> None:
    """For any samples, in any order: a micro-batch need not be sorted. Padding lines are zero."""
    check_gathered(dtype, threads, world, padding)


def check_gathered(dtype: Any, threads: int, world: World, padding: int) -> None:
    chosen = world.random.permutation(world.batch.size)[: world.random.integers(1, world.batch.size + 1)]
    chosen = np.concatenate([chosen, np.full(padding, -1)])
    for pool, spec in enumerate(world.space.pools):
        hot, _, cold, _ = world.tiers(pool, 0, dtype)
        out = np.full((len(chosen), len(spec.features), spec.dim), np.nan, dtype=dtype)
        pooling.gather_pooled(
            chosen, spec.features, world.features, world.batch.offsets, world.one_hot, world.source_N, world.space.mean_F,
            hot, cold, out, threads=threads,
        )  # fmt: skip
        twin = reference.gather_pooled(
            chosen, spec.features, world.features, world.batch.offsets, world.source_N, world.space.mean_F, hot, cold
        )
        np.testing.assert_allclose(out, twin, rtol=EXACTNESS[dtype], atol=EXACTNESS[dtype])


@grid(always, combined, ["threads"], dtype=DTYPES, rule=list(ROW_RULES), threads=THREADS)
@few_or_many(10, 25, world=worlds(), step=st.integers(1, 2000), everyone=st.booleans())
def test_update_rows_equals_its_twin(
    dtype: Any, rule: str, threads: int, world: World, step: int, everyone: bool
) -> None:
    """With skipped samples and frozen rows, or with every sample on its own line."""
    check_updated(dtype, rule, threads, world, step, everyone)


def check_updated(dtype: Any, rule: str, threads: int, world: World, step: int, everyone: bool) -> None:
    row_rule, space, batch = ROW_RULES[rule], world.space, world.batch
    code = row_rule.code
    hyper = row_rule.at(step, 0.05, seed=1)
    kept = np.ones(batch.size, np.bool_) if everyone else world.random.random(batch.size) < 0.6
    position_B = np.full(batch.size, -1, dtype=np.int64)
    lines = np.count_nonzero(kept)
    position_B[kept] = np.arange(lines) if everyone else world.random.permutation(lines)
    in_place = everyone and len(space.pools) == 1 and not space.mean_F.any()
    for pool, spec in enumerate(space.pools):
        span = world.pool_range(pool)
        source_U, frozen_U = world.source_U[span], world.random.random(span.stop - span.start) < 0.3
        grad_STD = world.random.normal(size=(lines, len(spec.features), spec.dim)).astype(dtype)
        tiers = world.tiers(pool, row_rule.state_width(spec.dim), dtype)
        before, twins = [tier.copy() for tier in tiers], [tier.copy() for tier in tiers]
        changed = [np.zeros(space.rows, np.bool_) for _ in range(2)]
        for flags in changed:
            flags[others := np.setdiff1d(np.arange(space.rows), world.distinct_U)[::2]] = True
        before_changed = len(others)
        counts = row_update.update_rows(
            code, hyper, row_update.RowSegments(span.start, world.segments_U1, world.segment_bag_N),
            row_update.GradientPlaces(
                world.features, batch.offsets, space.column_of_feature, space.mean_F, position_B, in_place
            ),
            grad_STD, row_update.PoolRows(frozen_U, world.distinct_U[span], source_U, changed[0]),
            row_update.TierArrays(*tiers), threads=threads,
        )  # fmt: skip
        bags_U = [world.segment_bag_N[low:high].tolist() for low, high in segments(world)[span]]
        expected = reference.update_rows(
            code, hyper, bags_U, world.features, batch.offsets, space.column_of_feature, space.mean_F, position_B, grad_STD,
            frozen_U, world.distinct_U[span], source_U, changed[1], *twins,
        )  # fmt: skip
        assert counts == expected
        assert np.array_equal(*changed)
        assert np.count_nonzero(changed[0]) == before_changed + expected[1]
        for mine, twin in zip(tiers, twins, strict=True):
            np.testing.assert_allclose(mine, twin, rtol=EXACTNESS[dtype], atol=10 * EXACTNESS[dtype])
        untouched = frozen_U | np.array(
            [np.all(position_B[np.array(bags) // world.features] < 0) for bags in bags_U], bool
        )
        for tier, old, rows in zip(tiers, before, [source_U, source_U, ~source_U, ~source_U], strict=True):
            still = np.setdiff1d(np.arange(len(tier)), rows[~untouched & (rows >= 0)])
            assert np.array_equal(tier[still], old[still]), "what is frozen, skipped or in the other tier must not move"


@grid(always, each, dtype=DTYPES)
@few_or_many(10, 25, world=worlds())
def test_find_infinite_row_equals_its_twin(dtype: Any, world: World) -> None:
    """All gradients are finite, most rows' sums are not, or one gradient is not."""
    space, batch, most = world.space, world.batch, np.finfo(dtype).max
    position_B = np.where(world.random.random(batch.size) < 0.8, np.arange(batch.size), -1)
    for pool, spec in enumerate(space.pools):
        span = world.pool_range(pool)
        small = world.random.uniform(-1, 1, size=(batch.size, len(spec.features), spec.dim)).astype(dtype)
        one = small.copy()
        one[world.random.integers(batch.size), :1, -1] = world.random.choice([np.nan, np.inf])
        bags_U = [world.segment_bag_N[low:high].tolist() for low, high in segments(world)[span]]
        columns = space.column_of_feature, space.mean_F, position_B
        golden = np.full_like(small, 0.618034 * most)  # no sum of shares of it is so near to the limit that rounding decides
        for grad_STD in (small, one, small * (most / 2), golden):
            found = finite_rows.find_infinite_row(
                row_update.RowSegments(span.start, world.segments_U1, world.segment_bag_N),
                row_update.GradientPlaces(world.features, batch.offsets, *columns, in_place=False), grad_STD,
                span.stop - span.start,
            )  # fmt: skip
            assert found == reference.find_infinite_row(bags_U, world.features, batch.offsets, *columns, grad_STD)
            assert grad_STD is not small or found == -1


@grid(always, each, dtype=DTYPES, rule=list(ROW_RULES))
@few_or_many(10, 25, world=worlds(), step=st.integers(1, 2000))
def test_apply_rows_equals_its_twin(dtype: Any, rule: str, world: World, step: int) -> None:
    check_applied(dtype, rule, world, step)


def check_applied(dtype: Any, rule: str, world: World, step: int) -> None:
    row_rule = ROW_RULES[rule]
    code = row_rule.code
    for pool, spec in enumerate(world.space.pools):
        source_U = world.source_U[world.pool_range(pool)]
        grad_UD = world.random.normal(size=(len(source_U), spec.dim)).astype(dtype)
        active_U = world.random.random(len(source_U)) < 0.7
        tiers = world.tiers(pool, row_rule.state_width(spec.dim), dtype)
        before, twins = [tier.copy() for tier in tiers], [tier.copy() for tier in tiers]
        hyper = row_rule.at(step, 0.05)
        row_update.apply_rows(code, hyper, source_U, grad_UD.copy(), active_U, row_update.TierArrays(*tiers))
        reference.apply_rows(code, hyper, source_U, grad_UD, active_U, *twins)
        for mine, twin in zip(tiers, twins, strict=True):
            np.testing.assert_allclose(mine, twin, rtol=EXACTNESS[dtype], atol=EXACTNESS[dtype])
        moved_hot, moved_cold = np.unique(source_U[active_U & (source_U >= 0)]), ~source_U[active_U & (source_U < 0)]
        for tier, old, moved in zip(tiers, before, [moved_hot, moved_hot, moved_cold, moved_cold], strict=True):
            still = np.setdiff1d(np.arange(len(tier)), moved)
            assert np.array_equal(tier[still], old[still]), (
                "a row that is not active, or in the other tier, must not move"
            )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", ROW_RULES)
@few_or_many(3, 8, world=worlds((17, 256, 1000, 1024)), step=st.integers(1, 2000), everyone=st.booleans())
def test_wide_rows_equal_their_twins(dtype: Any, rule: str, world: World, step: int, everyone: bool) -> None:
    for threads in THREADS:
        check_gathered(dtype, threads, world, padding=1)
        check_updated(dtype, rule, threads, world, step, everyone)
    check_applied(dtype, rule, world, step)


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
    row_rule = RowRule(NAMED_RULES[rule].code, 1e-8, 0.9, 0.999)
    weights, state = random.normal(size=(12, 3)), np.zeros((12, row_rule.state_width(3)))
    parameter = torch.nn.Parameter(torch.from_numpy(weights.copy()))
    optimizer = make([parameter])
    for step in range(1, 9):
        rows = random.choice(12, size=5, replace=False)
        grad = random.normal(size=(5, 3))
        row_update.apply_rows(
            row_rule.code, row_update.Hyper(0.05, 1e-8, 0.9, 0.999, step), ~rows, grad, np.ones(5, np.bool_),
            row_update.TierArrays(np.zeros((0, 3)), np.zeros((0, state.shape[1])), weights, state),
        )  # fmt: skip
        places, values = torch.from_numpy(rows)[None], torch.from_numpy(grad)
        parameter.grad = torch.sparse_coo_tensor(places, values, (12, 3), check_invariants=True)
        optimizer.step()
    np.testing.assert_allclose(weights, parameter.detach().numpy(), rtol=1e-12)


def test_rowwise_adagrad_divides_by_the_root_of_the_summed_mean_squares() -> None:
    weights, state = np.zeros((1, 2)), np.zeros((1, 1))
    for grad in ([3.0, 4.0], [0.0, 2.0]):
        row_update.apply_rows(
            ROWWISE_ADAGRAD, row_update.Hyper(1.0, 0.0, 0.0, 0.0, 1), np.array([-1]), np.array([grad]),
            np.ones(1, np.bool_),
            row_update.TierArrays(np.zeros((0, 2)), np.zeros((0, 1)), weights, state),
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
