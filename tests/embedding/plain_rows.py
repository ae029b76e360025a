"""Tables in plain NumPy arrays, without tiers, staging or checkpoints; a store must equal them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.embedding.records import RowUpdate
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.kernels.update_rules import SGD
from tests.kernels.reference.rows16 import dice, narrowed, row_dice, step_dice, widened
from tests.kernels.reference.step import apply_row

Rows = list[tuple[NDArray[Any], NDArray[Any]]]
"""Weights, 16-bit ones as patterns of bits, and optimizer state of each pool."""

TOLERANCE = {np.dtype(np.float64): 1e-11, np.dtype(np.float32): 3e-5}


def rows_of(store: EmbeddingStore) -> Rows:
    """Copies of all that a store holds."""
    found: Rows = []
    for spec, *kept in zip(store.space.pools, store.cold.types.weights, store.cold.types.state, strict=True):
        weights, state = (np.empty((spec.rows, like.shape[1]), like.dtype) for like in kept)
        found.append((weights, state))
    for table in range(len(store.space.tables)):
        pool, low, high = store.space.table_range(table)
        for target, part in zip(found[pool], store.contents.export(table), strict=True):
            target[low:high] = part
    return found


def differences(mine: Rows, other: Rows) -> list[tuple[int, int]]:
    """(pool, row) of those that are not the same bit by bit."""
    return [
        (pool, int(row))
        for pool, pair in enumerate(zip(mine, other, strict=True))
        for row in np.flatnonzero(np.logical_or.reduce([_bits(a) != _bits(b) for a, b in zip(*pair, strict=True)]))
    ]


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    """Something of each row that is equal for equal bits."""
    return np.array([row.tobytes() for row in array], dtype=object)


class PlainRows:
    """With SGD, gradients in multiples of 1/16 and a rate that is a power of two every sum is exact, so a store of any type of
    row equals these to the bit. The other rules' arithmetic may be ordered otherwise: there a tolerance is left."""

    def __init__(self, store: EmbeddingStore) -> None:
        self.space, self.rule, self.seed = store.space, store.rule, store.seed
        self.dtype = store.cold.types.dtype
        self.rows = rows_of(store)
        self.is_exact = self.rule.code == SGD

    def copy(self) -> Rows:
        return [(weights.copy(), state.copy()) for weights, state in self.rows]

    def pooled(self, batch: Batch, samples_S: NDArray[np.int64]) -> list[NDArray[Any]]:
        bag_N, row_N, share_N, pool_N, column_N = self._lookups(batch)
        line_B = np.full(batch.size, -1)
        line_B[samples_S] = np.arange(len(samples_S))
        line_N = line_B[bag_N // len(self.space.features)]
        found = []
        for pool, (spec, (weights, _)) in enumerate(zip(self.space.pools, self.rows, strict=True)):
            out_STD = np.zeros((len(samples_S), len(spec.features), spec.dim), self.dtype)
            of = (pool_N == pool) & (line_N >= 0)
            vectors = widened(weights)[row_N[of] - spec.first_row] * share_N[of, None]
            np.add.at(out_STD, (line_N[of], column_N[of]), vectors.astype(self.dtype))
            found.append(out_STD)
        return found

    def update(self, batch: Batch, update: RowUpdate, frozen_R: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Apply it; the numbers of the rows that it updated."""
        bag_N, row_N, share_N, pool_N, column_N = self._lookups(batch)
        line_N = update.position_B[bag_N // len(self.space.features)]
        updated = []
        for pool, spec in enumerate(self.space.pools):
            of = (pool_N == pool) & (line_N >= 0) & ~frozen_R[row_N]
            sums_RD = np.zeros((spec.rows, spec.dim), self.dtype)
            gradients = update.gradients[pool].numpy()[line_N[of], column_N[of]] * share_N[of, None]
            np.add.at(sums_RD, row_N[of] - spec.first_row, gradients.astype(self.dtype))
            rows = np.unique(row_N[of]) - spec.first_row
            self._apply(pool, rows, sums_RD[rows], update)
            updated.append(rows + spec.first_row)
        return np.concatenate(updated)

    def _lookups(self, batch: Batch) -> tuple[NDArray[Any], ...]:
        """Return each lookup's bag, row, share of the bag's vector, pool, and column in the pool."""
        space = self.space
        length_G = np.diff(batch.offsets)
        bag_N = np.repeat(np.arange(len(length_G)), length_G)
        feature_N = bag_N % len(space.features)
        row_N = space.feature_first_row[feature_N] + batch.ids_N
        share_N = np.where(space.mean_F[feature_N], 1 / length_G[bag_N], 1.0)
        return bag_N, row_N, share_N, space.pool_of_feature[feature_N], space.column_of_feature[feature_N]

    def _apply(self, pool: int, rows: NDArray[np.int64], gradient_UD: NDArray[Any], update: RowUpdate) -> None:
        weights, state = self.rows[pool]
        rule, dim = self.rule, gradient_UD.shape[1]
        values, state_UK = widened(weights[rows]).astype(self.dtype), state[rows]
        hyper = rule.at(update.step, update.lr)
        for value_D, state_K, gradient_D in zip(values, state_UK, gradient_UD, strict=True):
            apply_row(rule.code, hyper, value_D, state_K, gradient_D)
        state[rows] = state_UK
        if weights.dtype == self.dtype:
            weights[rows] = values
            return
        first_row = self.space.pools[pool].first_row
        step_bits = step_dice(self.seed, update.step)
        throws = [[dice(row_dice(step_bits, first_row + int(row)), d) for d in range(dim)] for row in rows]
        weights[rows] = narrowed(values, np.array(throws, np.uint32).reshape(values.shape), weights.dtype)

    def assert_equals(self, found: Rows) -> None:
        """Where a tolerance applies, take the store's values over, so that later comparisons are exact again."""
        if self.is_exact:
            assert not (wrong := differences(found, self.rows)), (
                f"rows (pool, row) differ: {wrong[:9]}, {len(wrong)} in all"
            )
            return
        tolerance = TOLERANCE[self.dtype]
        for pool, pair in enumerate(zip(found, self.rows, strict=True)):
            for mine, plain in zip(*pair, strict=True):
                near = np.isclose(widened(mine), widened(plain), rtol=tolerance, atol=tolerance)
                assert near.all(), f"rows of pool {pool} differ: {np.flatnonzero(~near.all(axis=1))[:9].tolist()}"
        self.rows = found
