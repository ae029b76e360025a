"""Starting values of embedding rows. Each is a hash of its place, so threads and chunks change nothing.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), whose n-th
number can be computed without those before it. The plain twin is in `reference/fill.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT
from adaptive_rec.kernels.rows16 import NEAREST, write

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
DRAWN_BITS = 24
"""Random bits of each value: float32 holds them exactly."""


@njit(inline="always")
def mixed(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(inline="always")
def _value(half, scale):
    return np.float32(np.int32(half) >> np.int32(32 - DRAWN_BITS)) * scale


@njit(**JIT)
def fill_uniform(seed, table, bound, first_row, weights_RD):
    """Set rows to values uniform in [-bound, bound), each a function of seed, table, row and component only.

    The chunk begins at row `first_row` of its table. Components ``j`` and ``j + ceil(D / 2)`` are the halves of one 64-bit
    draw. Values are computed in float32 for every row precision, so that all runs start from the same values.
    """
    key, scale = _table_key(seed, table), _scale(bound)
    for r in range(len(weights_RD)):
        _fill_row(key, scale, first_row + r, weights_RD, r)


@njit(**JIT)
def fill_rows(seed, table, bound, row_R, weights_RD):
    """Set rows as `fill_uniform` does, those of the table whose numbers are `row_R`."""
    key, scale = _table_key(seed, table), _scale(bound)
    for r in range(len(row_R)):
        _fill_row(key, scale, row_R[r], weights_RD, r)


@njit(inline="always")
def _table_key(seed, table):
    return mixed(mixed(np.uint64(seed) + GOLDEN) + np.uint64(table) * GOLDEN)


@njit(inline="always")
def _scale(bound):
    return np.float32(bound / 2 ** (DRAWN_BITS - 1))


@njit(inline="always")
def _fill_row(key, scale, row, weights_RD, r):
    dim = weights_RD.shape[1]
    low = (dim + 1) // 2
    high = dim - low
    row_key = key + np.uint64(row * low) * GOLDEN
    for j in range(high):
        draw = mixed(row_key + np.uint64(j + 1) * GOLDEN)
        write(weights_RD, r, j, _value(draw & np.uint64(0xFFFFFFFF), scale), NEAREST)
        write(weights_RD, r, low + j, _value(draw >> np.uint64(32), scale), NEAREST)
    if high < low:
        draw = mixed(row_key + np.uint64(low) * GOLDEN)
        write(weights_RD, r, high, _value(draw & np.uint64(0xFFFFFFFF), scale), NEAREST)
