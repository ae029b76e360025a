"""Count-min sketch kernels: arrays in, the caller's arrays changed. Callers check shapes and bounds.

Cormode & Muthukrishnan 2005 (the sketch), Estan & Varghese 2002 (conservative update). `counters` has a line of
`width` 32-bit cells for each of `depth` hashes; width is a power of two, at least 2. A row is scrambled once, and each
line takes the top bits of the product with its own odd seed (multiply-shift). Plain twins: `reference_sketch.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT

SATURATED = np.uint32(0xFFFFFFFF)
"""The highest count a cell can hold; it stays there."""


@njit(inline="always")
def _mix(x):
    """Scramble 64 bits (the finalizer of MurmurHash3): all input bits reach all output bits."""
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


@njit(inline="always")
def _shift(width):
    """How far a 64-bit product is shifted so that a cell number of `width` is left."""
    shift = np.uint64(64)
    while width > 1:
        shift -= np.uint64(1)
        width >>= 1
    return shift


@njit(**JIT)
def sketch_add(counters, rows_U, counts_U, seeds):
    """Count row ``rows_U[u]`` another ``counts_U[u]`` times (if positive), raising only cells that are too low."""
    depth, width = counters.shape
    shift = _shift(width)
    for u in range(len(rows_U)):
        count = counts_U[u]
        if count <= 0:
            continue
        mixed = _mix(np.uint64(rows_U[u]))
        low = SATURATED
        for k in range(depth):
            low = min(low, counters[k, (mixed * seeds[k]) >> shift])
        new = np.uint32(min(np.int64(low) + min(count, np.int64(SATURATED)), np.int64(SATURATED)))
        for k in range(depth):
            cell = (mixed * seeds[k]) >> shift
            counters[k, cell] = max(counters[k, cell], new)


@njit(**JIT)
def sketch_estimate(counters, rows_U, seeds, out_U):
    """Read the count of each row: the lowest of its cells, never less than was added since the last decay."""
    depth, width = counters.shape
    shift = _shift(width)
    for u in range(len(rows_U)):
        mixed = _mix(np.uint64(rows_U[u]))
        low = SATURATED
        for k in range(depth):
            low = min(low, counters[k, (mixed * seeds[k]) >> shift])
        out_U[u] = low


@njit(**JIT)
def sketch_decay(counters, factor, seed):
    """Multiply all cells by `factor` (0 to 1), rounded up or down at random so that the mean is right.

    Integers of 32 fraction bits and a random number made from the cell's place: exact, so every machine agrees.
    """
    depth, width = counters.shape
    scale = np.uint64(factor * 4294967296.0 + 0.5)
    start = _mix(np.uint64(seed))
    for k in range(depth):
        for cell in range(width):
            random = _mix(start + np.uint64(k * width + cell)) >> np.uint64(32)
            counters[k, cell] = (np.uint64(counters[k, cell]) * scale + random) >> np.uint64(32)
