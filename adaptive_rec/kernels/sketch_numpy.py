"""Estimates of a count-min sketch in NumPy, for processes that do not load Numba: the sidecar."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Seeds = Array | tuple[np.uint64, ...]


UNIT = 16
"""What one lookup adds to a cell. The fraction bits keep decay fair to rare rows: the lowest of four cells that are
rounded at random is biased downwards, and by less the finer the cells are."""


def sketch_seeds(seed: int, depth: int) -> NDArray[np.uint64]:
    """Return the seed of each line's hash, which takes any odd numbers."""
    return np.random.default_rng(seed).integers(0, 2**64, depth, dtype=np.uint64) | np.uint64(1)


def mix(x: Array) -> Array:
    """Scramble 64 bits (the finalizer of MurmurHash3)."""
    x = x ^ (x >> np.uint64(33))
    x = x * np.uint64(0xFF51AFD7ED558CCD)
    x = x ^ (x >> np.uint64(33))
    x = x * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


def find_cells(rows_U: Array, seeds: Seeds, width: int) -> Array:
    """Return the cell of every row in every line, (depth, U)."""
    shift = np.uint64(64 - (width.bit_length() - 1))
    return ((mix(rows_U.astype(np.uint64))[None, :] * np.asarray(seeds)[:, None]) >> shift).astype(np.int64)


def sketch_estimate(counters: Array, rows_U: Array, seeds: Seeds, unit: int, out_U: Array) -> None:
    """Write how many lookups of `unit` every row has to `out_U`: by the least of its counters, one in each line."""
    lines = np.arange(len(counters))[:, None]
    out_U[:] = counters[lines, find_cells(rows_U, seeds, counters.shape[1])].min(axis=0, initial=2**32 - 1) / unit
