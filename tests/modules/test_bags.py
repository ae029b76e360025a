"""Bags joined into a batch: which bags read which table, and the distinct rows of the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from adaptive_rec.batch import TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.kernels import jit
from adaptive_rec.kernels.jit import usable_threads
from adaptive_rec.modules.loop.bags import NO_CALL, BagBatch, Bags, PoolTables
from adaptive_rec.placement import RowSpace

from .cases import failures

SPACE = RowSpace.by_pool(
    tuple(TableSpec(f"t{n}", rows, dim) for n, (rows, dim) in enumerate([(9, 4), (5, 2), (30, 4), (7, 2)]))
)


def drawn(rng: np.random.Generator, tables: list[int], in_turn: bool = True) -> Bags:
    """Some bags of tables of one pool."""
    reader = PoolTables.of(SPACE, tables, [False] * len(tables))
    lengths = rng.integers(0, 4, size=len(tables) * int(rng.integers(0, 6)))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    table_N = np.repeat(np.arange(len(lengths)) % len(tables), lengths)
    ids_N = rng.integers(0, reader.rows_T[table_N]) if len(table_N) else np.empty(0, np.int64)
    bags = reader.bags(ids_N, offsets, torch.float32)
    if in_turn:
        return bags
    return replace(bags, offsets=np.arange(len(ids_N) + 1), in_turn=False)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("in_turn", [True, False])
def test_distinct_rows_and_their_bags(in_turn: bool, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "MIN_LOOKUPS", 0)
    assert failures(range(20), lambda seed: check_distinct_rows(seed, in_turn, threads)) == {}


def check_distinct_rows(seed: int, in_turn: bool, threads: int) -> None:
    rng = np.random.default_rng(seed)
    choices = [[0], [2], [0, 2], [2, 0], [1], [3], [3, 1, 1]]
    parts = [drawn(rng, choices[number]) for number in rng.integers(0, len(choices), size=int(rng.integers(0, 6)))]
    if not in_turn:
        parts.append(drawn(rng, [0, 2], in_turn=False))
    batch = BagBatch.of(SPACE, [(NO_CALL, bags) for bags in parts])
    work = ClassifiedBatch(batch, SPACE, usable_threads(threads))
    expected: dict[int, list[int]] = {}
    for _, bags, first in batch.parts:
        for bag, (low, high) in enumerate(zip(bags.offsets[:-1], bags.offsets[1:], strict=True)):
            for row in bags.row_N[low:high]:
                joint = int(row) + SPACE.pools[bags.pool].first_row
                expected.setdefault(joint, []).append((first + bag) * len(SPACE.pools) + bags.pool)
    ends = work.segments_U1
    found = {
        int(row): sorted(work.segment_bag_N[low:high].tolist())
        for row, low, high in zip(work.distinct_U, ends[:-1], ends[1:], strict=True)
    }
    assert found == {row: sorted(bags) for row, bags in expected.items()}
    assert len(work.distinct_U) == len(found), "each row once"
    pools = [SPACE.pools[pool] for pool in range(len(SPACE.pools))]
    for number, pool in enumerate(pools):
        rows = work.distinct_U[work.pool_range(number)]
        assert ((rows >= pool.first_row) & (rows < pool.end_row)).all()
    first_row_N = np.concatenate(
        [np.full(len(bags.row_N), pools[bags.pool].first_row) for _, bags, _ in batch.parts] or [[]]
    )
    assert (work.distinct_U[work.inverse_N] == batch.ids_N + first_row_N).all()
