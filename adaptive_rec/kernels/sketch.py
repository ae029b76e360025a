"""Kernels of the count-min sketch. They change the caller's arrays; callers check shapes and bounds.

Cormode & Muthukrishnan 2005 (the sketch), Estan & Varghese 2002 (conservative update); cells in blocks after Putze, Sanders &
Singler 2007 (blocked Bloom filters). `counters` are blocks of 16 cells of 32 bits, a cache line each; their number is a power of
two, at least 4. A row has four cells: two in a block with an even number, one in each half of it, and two in a block with an odd
number. So a row costs two misses of the cache, not four. With all four in one block it would cost one, but then too many rows
share all of them.

A region is a stretch of up to REGION_BLOCKS blocks. Both blocks of a row lie in one region, so threads that take regions of their
own never meet, and each raises cells in the order of the batch: any number of threads gives the same counts. A row is scrambled
once, and the top bits of its product with the odd `seed` say its cells. Blocks are prefetched. Only the training thread may ask
for more than one thread (OpenMP's). Plain twins: `reference/sketch.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange, set_num_threads

from adaptive_rec.kernels.jit import JIT, JIT_PARALLEL, PARTS_PER_THREAD, worth_waking
from adaptive_rec.kernels.prefetch import prefetch_row
from adaptive_rec.kernels.sketch_numpy import REGION_BLOCKS

SATURATED = np.uint32(0xFFFFFFFF)
"""The highest count a cell can hold; it stays there."""

AHEAD = 32
"""Rows whose blocks are prefetched together. Of 16, 32 and 64 it is the best or near it at all sizes. Where a batch is counted
or rows are estimated, they come while those before them are raised or read, which takes three quarters of the time."""

CHUNK = 1024
"""Rows of which a thread picks its own at a time."""


@njit(inline="always")
def _mix(x):
    """Scramble 64 bits (the finalizer of MurmurHash3): all input bits reach all output bits."""
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


@njit(inline="always")
def _bits(counters):
    """Return the bits of a row's product that number its even block, and how many of these do not number its region."""
    bits, within = -1, -1
    blocks = len(counters)
    while blocks > 1:
        bits += 1
        within += blocks <= REGION_BLOCKS
        blocks >>= 1
    return np.uint64(bits), np.uint64(within)


@njit(inline="always")
def _blocks(product, bits, within):
    """Return a row's even block and its odd one."""
    even = np.int64(product >> (np.uint64(64) - bits))
    inside = (np.int64(1) << np.int64(within)) - 1
    odd = (even & ~inside) | (np.int64(product >> (np.uint64(64) - bits - within)) & inside)
    return 2 * even, 2 * odd + 1


@njit(inline="always")
def _places(product, bits, within):
    """Return the places in their blocks of a row's cells, two in each."""
    places = np.int64(product >> (np.uint64(52) - bits - within))
    return (places >> 9) & 7, 8 + ((places >> 6) & 7), (places >> 3) & 7, 8 + (places & 7)


@njit(inline="always")
def _prefetch(counters, products, start, stop, bits, within):
    for u in range(start, stop):
        even, odd = _blocks(products[u], bits, within)
        prefetch_row(counters, even)
        prefetch_row(counters, odd)


@njit(inline="always")
def _raise(counters, product, bits, within, count):
    """Raise a row's cells to the lowest of them plus `count`, those that are lower."""
    even, odd = _blocks(product, bits, within)
    a, b, c, d = _places(product, bits, within)
    in_a, in_b, in_c, in_d = counters[even, a], counters[even, b], counters[odd, c], counters[odd, d]
    low = np.int64(min(min(in_a, in_b), min(in_c, in_d)))
    new = np.uint32(min(low + count, np.int64(SATURATED)))
    counters[even, a], counters[even, b] = max(in_a, new), max(in_b, new)
    counters[odd, c], counters[odd, d] = max(in_c, new), max(in_d, new)


@njit(**JIT)
def sketch_add(counters, rows_U, counts_U, seed):
    """Count row ``rows_U[u]`` another ``counts_U[u]`` times (if positive), raising only cells that are too low."""
    bits, within = _bits(counters)
    products = np.empty(AHEAD, np.uint64)
    for start in range(0, len(rows_U), AHEAD):
        rows = min(AHEAD, len(rows_U) - start)
        for u in range(rows):
            products[u] = _mix(np.uint64(rows_U[start + u])) * seed
        _prefetch(counters, products, 0, rows, bits, within)
        for u in range(rows):
            if counts_U[start + u] > 0:
                _raise(counters, products[u], bits, within, min(counts_U[start + u], np.int64(SATURATED)))


@njit(**JIT)
def sketch_observe(counters, rows_U, segments_U1, unit, seed, first_region, end_region):
    """Count those of a batch's distinct rows that lie in some regions of the sketch, in the batch's order.

    Row ``rows_U[u]`` has ``segments_U1[u + 1] - segments_U1[u]`` lookups of `unit` each.
    """
    bits, within = _bits(counters)
    first, pairs = np.int64(first_region) << np.int64(within), np.int64(end_region - first_region) << np.int64(within)
    shift = np.uint64(64) - bits
    products, chosen, places = np.empty(CHUNK, np.uint64), np.empty(CHUNK, np.uint64), np.empty(CHUNK, np.int64)
    for start in range(0, len(rows_U), CHUNK):
        rows = min(CHUNK, len(rows_U) - start)
        for u in range(rows):
            products[u] = _mix(np.uint64(rows_U[start + u])) * seed
        some = 0
        for u in range(rows):
            # Overwritten by the next row if this one lies elsewhere: a branch would often be guessed wrong.
            chosen[some], places[some] = products[u], start + u
            some += np.uint64(np.int64(products[u] >> shift) - first) < np.uint64(pairs)
        _prefetch(counters, chosen, 0, min(AHEAD, some), bits, within)
        for begin in range(0, some, AHEAD):
            end = min(begin + AHEAD, some)
            _prefetch(counters, chosen, end, min(end + AHEAD, some), bits, within)
            for k in range(begin, end):
                u = places[k]
                _raise(counters, chosen[k], bits, within, (segments_U1[u + 1] - segments_U1[u]) * unit)


def sketch_estimate(counters, rows_U, seed, unit, out_U, threads=1):
    """Read how many lookups of `unit` each row has: in its lowest cell, never fewer than were added since the last decay.

    `out_U`: float64. `unit`: a power of two, so that the result is exact.
    """
    arrays = counters, rows_U, seed, unit, out_U
    if worth_waking(threads, len(rows_U)) == 1:
        estimate_range(0, len(rows_U), *arrays)
    else:
        set_num_threads(threads)
        _estimate_parts(threads * PARTS_PER_THREAD, *arrays)


@njit(**JIT_PARALLEL)
def _estimate_parts(parts, counters, rows_U, seed, unit, out_U):
    rows = len(rows_U)
    for p in prange(parts):
        estimate_range(rows * p // parts, rows * (p + 1) // parts, counters, rows_U, seed, unit, out_U)


@njit(**JIT)
def estimate_range(first, end, counters, rows_U, seed, unit, out_U):
    """Do what `sketch_estimate` does for the rows from `first` to `end`."""
    bits, within = _bits(counters)
    products_2A = np.empty((2, AHEAD), np.uint64)
    _hash_ahead(counters, rows_U, first, end, seed, bits, within, products_2A[0])
    now = 0
    for start in range(first, end, AHEAD):
        _hash_ahead(counters, rows_U, start + AHEAD, end, seed, bits, within, products_2A[1 - now])
        products = products_2A[now]
        for u in range(min(AHEAD, end - start)):
            even, odd = _blocks(products[u], bits, within)
            a, b, c, d = _places(products[u], bits, within)
            low = min(min(counters[even, a], counters[even, b]), min(counters[odd, c], counters[odd, d]))
            out_U[start + u] = low / unit
        now = 1 - now


@njit(inline="always")
def _hash_ahead(counters, rows_U, start, end, seed, bits, within, products_A):
    """Set the products of up to AHEAD rows from `start` on, and have their blocks prefetched."""
    rows = max(0, min(AHEAD, end - start))
    for u in range(rows):
        products_A[u] = _mix(np.uint64(rows_U[start + u])) * seed
    _prefetch(counters, products_A, 0, rows, bits, within)


@njit(**JIT)
def sketch_decay(counters, factor, seed, first, end):
    """Multiply the cells from `first` to `end`, counted through all blocks, by `factor` (0 to 1), rounded up or down at random so
    that the mean is right.

    Integers of 32 fraction bits and a random number made from the cell's place: exact, so every machine agrees.
    """
    cells = counters.reshape(-1)[first:end]  # indexed from 0: a place that might be negative keeps the loop off vectors
    scale = np.uint64(factor * 4294967296.0 + 0.5)
    start = _mix(np.uint64(seed)) + np.uint64(first)
    for cell in range(len(cells)):
        random = _mix(start + np.uint64(cell)) >> np.uint64(32)
        cells[cell] = (np.uint64(cells[cell]) * scale + random) >> np.uint64(32)
