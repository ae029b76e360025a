"""Passes over millions of rows that are ranked when a window ends. They keep the order of what they are given, and make no array
longer than their answer. Only the training thread may ask for more than one thread (OpenMP's). Plain twins:
`reference/ranking.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange, set_num_threads

from adaptive_rec.kernels.jit import JIT, JIT_PARALLEL, PARTS_PER_THREAD, worth_waking


def are_hot(slot_of_row, rows, threads=1):
    """Return which of some rows have a slot, as it is not negative."""
    found = np.empty(len(rows), dtype=np.bool_)
    parts = _parts(threads, len(rows))
    if parts == 1:
        _are_hot_range(0, len(rows), slot_of_row, rows, found)
    else:
        _are_hot_parts(parts, slot_of_row, rows, found)
    return found


def places_between(scores, low, high, threads=1):
    """Return the places, in rising order, of scores from `low` to `high`, both included."""
    parts = _parts(threads, len(scores))
    first_P1 = np.zeros(parts + 1, dtype=np.int64)
    if parts == 1:
        first_P1[1] = _count_range(0, len(scores), scores, low, high)
    else:
        _count_parts(parts, scores, low, high, first_P1)
    np.cumsum(first_P1, out=first_P1)
    places = np.empty(first_P1[-1], dtype=np.int64)
    if parts == 1:
        _places_range(0, scores, low, high, places)
    else:
        _places_parts(parts, scores, low, high, first_P1, places)
    return places


def _parts(threads, rows):
    """Return in how many parts rows are passed over, and have this many threads do it."""
    if worth_waking(threads, rows) == 1:
        return 1
    set_num_threads(threads)
    return threads * PARTS_PER_THREAD


@njit(**JIT_PARALLEL)
def _are_hot_parts(parts, slot_of_row, rows, found):
    for p in prange(parts):
        _are_hot_range(len(rows) * p // parts, len(rows) * (p + 1) // parts, slot_of_row, rows, found)


@njit(**JIT)
def _are_hot_range(first, end, slot_of_row, rows, found):
    for n in range(first, end):
        found[n] = slot_of_row[rows[n]] >= 0


@njit(**JIT_PARALLEL)
def _count_parts(parts, scores, low, high, first_P1):
    for p in prange(parts):
        count = _count_range(len(scores) * p // parts, len(scores) * (p + 1) // parts, scores, low, high)
        first_P1[p + 1] = count


@njit(**JIT)
def _count_range(first, end, scores, low, high):
    count = 0
    for score in scores[first:end]:
        count += (low <= score) & (score <= high)
    return count


@njit(**JIT_PARALLEL)
def _places_parts(parts, scores, low, high, first_P1, places):
    for p in prange(parts):
        _places_range(len(scores) * p // parts, scores, low, high, places[first_P1[p] : first_P1[p + 1]])


@njit(**JIT)
def _places_range(first, scores, low, high, places):
    count, n = 0, first
    while count < len(places):  # without a branch for each score, which would often be guessed wrong
        places[count] = n
        count += (low <= scores[n]) & (scores[n] <= high)
        n += 1
