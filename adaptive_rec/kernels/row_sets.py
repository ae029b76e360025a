"""Sets of rows as bits: to look up many rows among many others without sorting either. The plain twin is `numpy.isin`."""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT

_LOW6 = 63


def are_in(rows, others):
    """Return which of some rows are among others. Takes a bit of memory for each row from the lowest to the highest of these."""
    if not len(rows) or not len(others):
        return np.zeros(len(rows), dtype=np.bool_)
    first, last = int(others.min()), int(others.max())
    bits = np.zeros((last - first) // 64 + 1, dtype=np.uint64)
    _mark(others, first, bits)
    found = np.empty(len(rows), dtype=np.bool_)
    _find(rows, first, last, bits, found)
    return found


@njit(**JIT)
def _mark(rows, first, bits):
    for row in rows:
        place = row - first
        bits[place >> 6] |= np.uint64(1) << np.uint64(place & _LOW6)


@njit(**JIT)
def _find(rows, first, last, bits, found):
    for n in range(len(rows)):
        place = rows[n] - first
        found[n] = first <= rows[n] <= last and (bits[place >> 6] >> np.uint64(place & _LOW6)) & np.uint64(1) != 0
