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


BLOCK_CELLS = 16
"""Cells of a block: a cache line of 32-bit cells."""

REGION_BLOCKS = 1 << 12
"""The most blocks of a region, in which both blocks of a row lie: 256 KiB. Smaller ones would be filled less evenly."""


OLD_LINES = 4
"""Lines of a sketch of older versions, each of which had at least 1024 cells."""


def sketch_seeds(seed: int, count: int = 1) -> NDArray[np.uint64]:
    """Return seeds of hashes, which take any odd numbers: one for a sketch, one for each line of one of older versions."""
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64) | np.uint64(1)


def has_lines(shape: tuple[int, ...]) -> bool:
    """Return whether counters are those of older versions, which had a line of cells for each of four hashes, not blocks.
    Raises ValueError where they can be neither."""
    blocks = len(shape) == 2 and shape[1] == BLOCK_CELLS
    size = shape[0] if blocks else shape[1] if len(shape) == 2 and shape[0] == OLD_LINES else 0
    if size < 4 or size & (size - 1):
        raise ValueError(f"a sketch must have 2^n blocks of {BLOCK_CELLS} cells, got {shape}")
    return not blocks


def mix(x: Array) -> Array:
    """Scramble 64 bits (the finalizer of MurmurHash3)."""
    x = x ^ (x >> np.uint64(33))
    x = x * np.uint64(0xFF51AFD7ED558CCD)
    x = x ^ (x >> np.uint64(33))
    x = x * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


def find_cells(rows_U: Array, seeds: Seeds, shape: tuple[int, ...]) -> Array:
    """Return the four cells of every row among all cells, (4, U): two in a block with an even number and two in one with an
    odd number, both in the row's region. Where `shape` has lines, the row's cell in each."""
    if has_lines(shape):
        shift = np.uint64(64 - (shape[1].bit_length() - 1))
        columns = (mix(rows_U.astype(np.uint64))[None, :] * np.asarray(seeds)[:, None]) >> shift
        return columns.astype(np.int64) + shape[1] * np.arange(shape[0])[:, None]
    even_blocks = shape[0] // 2
    in_region = min(even_blocks, REGION_BLOCKS // 2)
    bits, within = even_blocks.bit_length() - 1, in_region.bit_length() - 1
    product = mix(rows_U.astype(np.uint64)) * np.asarray(seeds)[0]
    even = (product >> np.uint64(64 - bits)).astype(np.int64)
    other = (product >> np.uint64(64 - bits - within)).astype(np.int64) % in_region
    odd = even // in_region * in_region + other
    places = (product >> np.uint64(52 - bits - within)).astype(np.int64)
    a, b, c, d = places // 512 % 8, 8 + places // 64 % 8, places // 8 % 8, 8 + places % 8
    in_even, in_odd = 2 * even * BLOCK_CELLS, (2 * odd + 1) * BLOCK_CELLS
    return np.stack([in_even + a, in_even + b, in_odd + c, in_odd + d])


def sketch_estimate(counters: Array, rows_U: Array, seeds: Seeds, unit: int, out_U: Array) -> None:
    """Write how many lookups of `unit` every row has to `out_U`: by the least of its counters."""
    cells = find_cells(rows_U, seeds, counters.shape)
    out_U[:] = counters.reshape(-1)[cells].min(axis=0, initial=2**32 - 1) / unit
