"""Worlds for policies: batches drawn by a seed over a few small tables."""

from __future__ import annotations

import numpy as np

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec

World = tuple[list[Batch], tuple[TableSpec, ...], tuple[FeatureSpec, ...]]


def world(
    shapes: list[tuple[int, int]], readers: list[tuple[int, str]], longest_bag: int = 1, batches: int = 20
) -> World:
    """Make batches of skewed ids, the last one smaller. Bags hold one id, or none up to `longest_bag`."""
    random = np.random.default_rng(9)
    tables = tuple(TableSpec(f"T{i}", rows, dim) for i, (rows, dim) in enumerate(shapes))
    features = tuple(FeatureSpec(f"F{i}", table, pooling) for i, (table, pooling) in enumerate(readers))  # type: ignore[arg-type]
    made = []
    for number in range(batches):
        size = 16 if number + 1 < batches else 3
        bags = size * len(features)
        lengths = np.ones(bags, np.int64) if longest_bag == 1 else random.integers(0, longest_bag + 1, bags)
        limits = np.repeat([tables[f.table].rows for _ in range(size) for f in features], lengths)
        ids = (random.random(len(limits)) ** 3 * limits).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        labels = (random.random(size) < 0.4).astype(np.float32)
        made.append(Batch(random.normal(size=(size, 2)).astype(np.float32), ids, offsets, labels))
    return made, tables, features


def all_rows_once() -> World:
    """Make batches in which no row occurs twice, so that no row becomes popular in time."""
    dense, labels = np.zeros((16, 2), np.float32), np.ones(16, np.float32)
    batches = [Batch.one_hot(dense, ids_B[:, None], labels) for ids_B in np.arange(320).reshape(20, 16)]
    return batches, (TableSpec("T", 320, 4),), (FeatureSpec("F", 0),)


def nothing_looked_up() -> World:
    """Make some batches of empty bags only: all their samples are popular, as they look up no cold row."""
    batches, tables, features = world([(20, 4)], [(0, "mean")])
    empty = [Batch(b.dense_BX, b.ids_N[:0], np.zeros(b.size + 1, np.int64), b.labels_B) for b in batches]
    return [b if k % 3 else e for k, (b, e) in enumerate(zip(batches, empty, strict=True))], tables, features


WORLDS = {
    "bags with empty ones and mixed dims": world(
        [(50, 4), (30, 2), (20, 4), (5, 3)],
        [(0, "sum"), (1, "mean"), (2, "mean"), (0, "mean"), (3, "sum")],
        longest_bag=3,
    ),
    "one table": world([(30, 4)], [(0, "sum")]),
    "one row": world([(1, 4)], [(0, "sum")]),
    "pool no feature reads": world([(9, 4), (30, 3), (9, 2)], [(0, "sum"), (2, "sum")]),
    "no row comes back": all_rows_once(),
    "nothing looked up": nothing_looked_up(),
}
