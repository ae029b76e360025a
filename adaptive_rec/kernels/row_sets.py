"""Sets of rows: as bits, to look up many rows among many others without sorting either, and as rising rows that are changed in
place. The plain twins are NumPy's `isin`, `unique`, `setdiff1d` and `union1d`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT
from adaptive_rec.kernels.prefetch import prefetch_row

_LOW6 = 63
_AHEAD = 24
"""Rows ahead whose bits are prefetched."""
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
"""Each power of two times this has other top six bits (Leiserson, Prokop & Randall 1998)."""
_BIT_OF = np.zeros(64, dtype=np.int64)
_BIT_OF[[(int(_DE_BRUIJN) << bit) % 2**64 >> 58 for bit in range(64)]] = np.arange(64)


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


def distinct_rows(rows):
    """Return the distinct ones of some rows, rising. Takes a bit of memory for each row from the lowest to the highest."""
    if not len(rows):
        return rows.copy()
    first, last = int(rows.min()), int(rows.max())
    bits = np.zeros((last - first) // 64 + 1, dtype=np.uint64)
    distinct = np.empty(_mark_new(rows, first, bits), dtype=np.int64)
    _list(bits, first, distinct)
    return distinct


@njit(**JIT)
def _mark_new(rows, first, bits):
    marked = 0
    for n in range(len(rows)):
        if n + _AHEAD < len(rows):
            prefetch_row(bits, (rows[n + _AHEAD] - first) >> 6)
        place = rows[n] - first
        bit = np.uint64(1) << np.uint64(place & _LOW6)
        marked += bits[place >> 6] & bit == 0
        bits[place >> 6] |= bit
    return marked


@njit(**JIT)
def _list(bits, first, out):
    n = 0
    for word in range(len(bits)):
        left = bits[word]
        while left:
            lowest = left & (~left + np.uint64(1))
            out[n] = first + 64 * word + _BIT_OF[(lowest * _DE_BRUIJN) >> np.uint64(58)]
            n += 1
            left ^= lowest


@njit(**JIT)
def keep_cold(rows_U, source_U, out):
    """Write the rows that are cold (``source_U[u] < 0``) to `out`, at least as long as `rows_U`. Return how many they are."""
    cold = 0
    for u in range(len(rows_U)):
        # Overwritten by the next row if this one is hot: a branch would often be guessed wrong.
        out[cold] = rows_U[u]
        cold += source_U[u] < 0
    return cold


@njit(**JIT)
def are_without_value(slot_N, empty_S, found_N):
    """Set which rows have no value in memory: those without a slot (negative), and those whose slot is empty or beyond the
    last."""
    slots = len(empty_S)
    for n in range(len(slot_N)):
        if n + _AHEAD < len(slot_N) and 0 <= slot_N[n + _AHEAD] < slots:
            prefetch_row(empty_S, slot_N[n + _AHEAD])
        found_N[n] = not 0 <= slot_N[n] < slots or empty_S[slot_N[n]]


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
