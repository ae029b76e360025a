"""Sets of rows: as bits, to look up many rows among many others without sorting either, and as rising rows that are changed in
place. The plain twins are NumPy's `isin`, `setdiff1d` and `union1d`.
"""

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


@njit(**JIT)
def drop_rows(rows, count, dropped):
    """Take the rows `dropped` out of ``rows[:count]``, in place; both rise. Return how many stay."""
    d = kept = 0
    for n in range(count):
        while d < len(dropped) and dropped[d] < rows[n]:
            d += 1
        rows[kept] = rows[n]
        kept += d == len(dropped) or dropped[d] != rows[n]
    return kept


@njit(**JIT)
def merge_rows(rows, count, added):
    """Put the rows `added` in their places among ``rows[:count]``, in place; both rise and are distinct. Return how many there
    are then: `rows` has room for all. A row that is there already stays alone. `added` is overwritten."""
    n = new = 0
    for a in range(len(added)):
        while n < count and rows[n] < added[a]:
            n += 1
        added[new] = added[a]
        new += n == count or rows[n] != added[a]
    n, place = count, count + new
    for a in range(new - 1, -1, -1):
        while n > 0 and rows[n - 1] > added[a]:
            n -= 1
            place -= 1
            rows[place] = rows[n]
        place -= 1
        rows[place] = added[a]
    return count + new
