"""Kernels of the count-min sketch. They change the caller's arrays; callers check shapes and bounds.

Cormode & Muthukrishnan 2005 (the sketch), Estan & Varghese 2002 (conservative update). `counters` has a line of
`width` 32-bit cells for each of `depth` hashes; width is a power of two, at least 2. A row is scrambled once, and each
line takes the top bits of the product with its own odd seed (multiply-shift). `seeds` is best a tuple: then the compiler knows
the depth. Cells are prefetched. Only the training thread may ask for more than one thread (OpenMP's). Plain twins:
`reference/sketch.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange, set_num_threads

from adaptive_rec.kernels.jit import JIT, JIT_PARALLEL, PARTS_PER_THREAD, worth_waking
from adaptive_rec.kernels.prefetch import prefetch_row

SATURATED = np.uint32(0xFFFFFFFF)
"""The highest count a cell can hold; it stays there."""

AHEAD = 32
"""Rows whose cells are prefetched together. Of 16, 32, 64 and 128 it is the best or near it at all widths."""


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


@njit(inline="always")
def _prefetch_cells(counters, shift, rows_U, start, stop, seeds, mixed):
    """Scramble the rows from `start` to `stop` and prefetch their cells."""
    for u in range(start, stop):
        mixed[u - start] = _mix(np.uint64(rows_U[u]))
        for k in range(len(seeds)):
            prefetch_row(counters[k], np.int64((mixed[u - start] * seeds[k]) >> shift))


@njit(inline="always")
def _lowest(counters, shift, mixed, seeds):
    low = SATURATED
    for k in range(len(seeds)):
        low = min(low, counters[k, np.int64((mixed * seeds[k]) >> shift)])
    return low


@njit(inline="always")
def _raise(counters, shift, mixed, seeds, count):
    """Raise a row's cells to the lowest of them plus `count`, those that are lower."""
    new = np.uint32(min(np.int64(_lowest(counters, shift, mixed, seeds)) + count, np.int64(SATURATED)))
    for k in range(len(seeds)):
        cell = np.int64((mixed * seeds[k]) >> shift)
        counters[k, cell] = max(counters[k, cell], new)


@njit(**JIT)
def sketch_add(counters, rows_U, counts_U, seeds):
    """Count row ``rows_U[u]`` another ``counts_U[u]`` times (if positive), raising only cells that are too low."""
    shift = _shift(counters.shape[1])
    mixed = np.empty(AHEAD, np.uint64)
    for start in range(0, len(rows_U), AHEAD):
        stop = min(start + AHEAD, len(rows_U))
        _prefetch_cells(counters, shift, rows_U, start, stop, seeds, mixed)
        for u in range(start, stop):
            if counts_U[u] > 0:
                _raise(counters, shift, mixed[u - start], seeds, min(counts_U[u], np.int64(SATURATED)))


@njit(**JIT)
def sketch_observe(counters, rows_U, segments_U1, source_U, unit, seeds, out):
    """Count a batch's distinct rows, ``segments_U1[u + 1] - segments_U1[u]`` lookups of `unit` each for row ``rows_U[u]``.

    Write the cold ones (``source_U[u] < 0``) to `out`, at least as long as `rows_U`; return how many they are.
    """
    shift = _shift(counters.shape[1])
    mixed = np.empty(AHEAD, np.uint64)
    cold = 0
    for start in range(0, len(rows_U), AHEAD):
        stop = min(start + AHEAD, len(rows_U))
        _prefetch_cells(counters, shift, rows_U, start, stop, seeds, mixed)
        for u in range(start, stop):
            # Overwritten by the next row if this one is hot: a branch would often be guessed wrong.
            out[cold] = rows_U[u]
            cold += source_U[u] < 0
            _raise(counters, shift, mixed[u - start], seeds, (segments_U1[u + 1] - segments_U1[u]) * unit)
    return cold


def sketch_estimate(counters, rows_U, seeds, unit, out_U, threads=1):
    """Read how many lookups of `unit` each row has: in its lowest cell, never fewer than were added since the last decay.

    `out_U`: float64. `unit`: a power of two, so that the result is exact.
    """
    arrays = counters, rows_U, seeds, unit, out_U
    if worth_waking(threads, len(rows_U)) == 1:
        _estimate_range(0, len(rows_U), *arrays)
    else:
        set_num_threads(threads)
        _estimate_parts(threads * PARTS_PER_THREAD, *arrays)


@njit(**JIT_PARALLEL)
def _estimate_parts(parts, counters, rows_U, seeds, unit, out_U):
    rows = len(rows_U)
    for p in prange(parts):
        _estimate_range(rows * p // parts, rows * (p + 1) // parts, counters, rows_U, seeds, unit, out_U)


@njit(**JIT)
def _estimate_range(first, end, counters, rows_U, seeds, unit, out_U):
    shift = _shift(counters.shape[1])
    mixed = np.empty(AHEAD, np.uint64)
    for start in range(first, end, AHEAD):
        stop = min(start + AHEAD, end)
        _prefetch_cells(counters, shift, rows_U, start, stop, seeds, mixed)
        for u in range(start, stop):
            out_U[u] = _lowest(counters, shift, mixed[u - start], seeds) / unit


def sketch_decay(counters, factor, seed, threads=1):
    """Multiply all cells by `factor` (0 to 1), rounded up or down at random so that the mean is right.

    Integers of 32 fraction bits and a random number made from the cell's place: exact, so every machine agrees.
    """
    cells = counters.reshape(-1)
    if worth_waking(threads, len(cells)) == 1:
        _decay_range(0, len(cells), cells, factor, seed)
    else:
        set_num_threads(threads)
        _decay_parts(threads * PARTS_PER_THREAD, cells, factor, seed)


@njit(**JIT_PARALLEL)
def _decay_parts(parts, cells, factor, seed):
    for p in prange(parts):
        _decay_range(len(cells) * p // parts, len(cells) * (p + 1) // parts, cells, factor, seed)


@njit(**JIT)
def _decay_range(first, end, cells, factor, seed):
    scale = np.uint64(factor * 4294967296.0 + 0.5)
    start = _mix(np.uint64(seed))
    for cell in range(first, end):
        random = _mix(start + np.uint64(cell)) >> np.uint64(32)
        cells[cell] = (np.uint64(cells[cell]) * scale + random) >> np.uint64(32)
