"""The host tier: its memory, its initial rows, and positions beyond 32 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding import host
from adaptive_rec.embedding.cold.memory import InMemory
from adaptive_rec.embedding.device import DeviceTier, row_bytes
from adaptive_rec.embedding.first_values import FreshRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.optimizer import RULES, RowRule
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.embedding.row_types import as_array, as_tensor
from adaptive_rec.kernels.aligned import zeros
from adaptive_rec.placement import Migration, RowSpace
from tests.kernels.reference.rows16 import widened
from tests.stores import cpu_store

TABLES = (TableSpec("a", 300, 4), TableSpec("b", 5, 3), TableSpec("c", 1000, 4))
SPACE = RowSpace.of(TABLES, tuple(FeatureSpec(table.name, i) for i, table in enumerate(TABLES)))
KEPT = {"float32": np.float32, "bf16": np.uint16, "fp16": np.int16}
precisions = pytest.mark.parametrize("row_precision", KEPT)


def rule_of(name: str = "rowwise_adagrad", row_precision: str = "float32") -> RowRule:
    return RowRule(RULES[name], 1e-8, 0.9, 0.999, row_precision)


def home(space: RowSpace, rule: RowRule, seed: int, dtype: Any) -> Any:
    """Arrays of drawn rows."""
    return InMemory(RowIndex(space), [rule] * len(space.pools), dtype, FreshRows(seed, space.tables)).types


@precisions
def test_rows_start_within_the_bound_of_their_own_table(row_precision: str) -> None:
    tier = home(SPACE, rule_of(row_precision=row_precision), 1, np.float32)
    for index, table in enumerate(TABLES):
        pool, first, end = SPACE.table_range(index)
        rows = widened(tier.weights[pool][first:end])
        bound = 1 / np.sqrt(table.rows)
        assert 0.6 * bound < np.abs(rows).max() <= bound * (1 + 2.0**-8)
        assert not tier.state[pool][first:end].any()
    assert [part.dtype for part in tier.weights] == [KEPT[row_precision]] * 2
    assert [part.dtype for part in tier.state] == [np.float32] * 2


def test_rows_are_a_matter_of_the_seed_alone() -> None:
    def rows(seed: int) -> Any:
        return np.concatenate([part.ravel() for part in home(SPACE, rule_of(), seed, np.float32).weights])

    np.testing.assert_array_equal(rows(1), rows(1))
    assert (rows(1) != rows(2)).mean() > 0.99


@pytest.mark.parametrize(
    ("rule", "row_precision", "dtype", "expected"),
    [
        ("rowwise_adagrad", "float32", np.float32, 16 * 4 + 4 + 4 + 2),
        ("rowwise_adagrad", "bf16", np.float32, 16 * 2 + 4 + 4 + 2),
        ("sgd", "fp16", np.float32, 16 * 2 + 4 + 2),
        ("lazy_adam", "bf16", np.float32, 16 * 2 + 32 * 4 + 4 + 2),
        ("adagrad", "float32", np.float64, 16 * 8 + 16 * 8 + 4 + 2),
    ],
)
def test_what_a_row_costs_is_known_to_the_byte(rule: str, row_precision: str, dtype: Any, expected: int) -> None:
    """Weights, optimizer state, the slot array of 4 bytes a row and two flags, which the store makes."""
    space = RowSpace.of((TableSpec("t", 100, 16),), (FeatureSpec("t", 0),))
    row_rule = rule_of(rule, row_precision)
    tier = home(space, row_rule, 1, dtype)
    assert tier.weights[0].nbytes + tier.state[0].nbytes + 100 * host.SLOT_BYTES == 100 * expected
    assert row_rule.bytes_per_row(16, np.dtype(dtype).itemsize) + host.SLOT_BYTES == expected


@precisions
@pytest.mark.parametrize("rule", RULES)
def test_a_device_tier_is_as_large_as_its_row_bytes_say(rule: str, row_precision: str) -> None:
    row_rule = rule_of(rule, row_precision)
    tier = DeviceTier(SPACE, row_rule, torch.float32, torch.device("cpu"), [10, 20], monitored=True)
    for pool, bytes_per_row in enumerate(row_bytes(SPACE, row_rule, 4, monitored=True)):
        monitor = tier.monitors[pool]
        parts = tier.weights[pool], tier.state[pool], monitor.record_HR, monitor.touches_H
        assert sum(part.nbytes for part in parts) == bytes_per_row * tier.capacities[pool]
        assert as_array(tier.weights[pool]).dtype == KEPT[row_precision]
        assert tier.state[pool].dtype == torch.float32


@pytest.mark.parametrize("shape", [(0, 16), (3, 0), (1, 1), (7, 3), (200_000, 16)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint16, np.int16])
def test_arrays_of_rows_begin_on_a_cache_line(shape: tuple[int, int], dtype: Any) -> None:
    arrays = [zeros(shape, dtype) for _ in range(5)]
    assert all(array.ctypes.data % 64 == 0 or not array.size for array in arrays)
    assert all((array.shape, array.dtype, array.any()) == (shape, np.dtype(dtype), False) for array in arrays)
    arrays[0][:] = 1
    assert not arrays[1].any()


def test_rows_of_both_tiers_begin_on_a_cache_line() -> None:
    tier = home(SPACE, rule_of(), 1, np.float32)
    device = DeviceTier(SPACE, rule_of(), torch.float32, torch.device("cpu"), [10, 20], monitored=False)
    for part in (*tier.weights, *tier.state, *(as_array(part) for part in (*device.weights, *device.state))):
        assert part.ctypes.data % 64 == 0


def test_patterns_and_numbers_share_their_memory() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        numbers = torch.tensor([[1.5, -0.25]], dtype=dtype)
        patterns = as_array(numbers)
        np.testing.assert_array_equal(widened(patterns), [[1.5, -0.25]])
        patterns[0, 0] = patterns[0, 1]
        assert numbers.tolist() == [[-0.25, -0.25]]
        assert as_tensor(patterns).dtype == dtype
        assert as_tensor(patterns).data_ptr() == numbers.data_ptr()


def test_no_position_is_limited_to_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """140 M rows of dim 16: the last components lie beyond 2^31. Memory that is never written takes no space."""
    rows, dim = 140_000_000, 16
    monkeypatch.setattr(FreshRows, "fill", lambda first, table, weights_RD: None)
    space = RowSpace.of((TableSpec("t", rows, dim),), (FeatureSpec("t", 0),))
    rule = rule_of("sgd", "bf16")
    store = cpu_store(space, rule, 1, torch.float32, 4 * 32, False)
    ids = np.array([0, rows - 1, 5_782_271, (1 << 32) // dim // 2], dtype=np.int64)  # the third: the second modulo 2^31
    assert (ids[1] * dim) % (1 << 31) == ids[2] * dim
    numbers = np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)
    weights = as_tensor(store.cold.types.weights[0])
    for row, number in zip(ids.tolist(), numbers.tolist(), strict=True):
        weights[row] = number
    store.migrate(Migration(promote=ids[:2], demote=ids[:0]))
    for step in (1, 2):
        work = ClassifiedBatch(Batch(np.zeros((4, 1), np.float32), ids, np.arange(5), np.zeros(4, np.float32)), space)
        store.batches.take(work)
        parts = (torch.empty(shape) for shape in ((4, 1), (4,), (4,)))
        dense, labels, scale = parts
        micro = MicroBatch(dense, [torch.empty((4, 1, dim))], labels, scale, 4)
        store.batches.gather(work, np.arange(4), np.ones(4), micro)
        np.testing.assert_array_equal(micro.pooled[0][:, 0], np.repeat(numbers[:, None], dim, axis=1))
        update = RowUpdate([torch.full((4, 1, dim), 0.5)], np.arange(4), None, 1.0, step, False)
        store.batches.apply(work, update)
        numbers -= 0.5
        store.migrate(Migration(promote=ids[2:], demote=ids[:2]) if step == 1 else Migration(ids[:0], ids[2:]))
    for row, number in zip(ids.tolist(), numbers.tolist(), strict=True):
        assert (weights[row] == number).all()
        assert not weights[row - 1 if row else 1].any()
