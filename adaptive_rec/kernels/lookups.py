"""Kernels for the lookups of the user's own training loop: rows and sources of bags, and counts by table.

They fill the caller's arrays. Plain twins stand in `reference/lookups.py`. Shapes: see the legend in
`adaptive_rec.batch`; L is the number of bags, T that of the tables they read in turn: bag ``i`` is one of table ``i % T``.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT
from adaptive_rec.kernels.prefetch import prefetch_row

_ROWS_AHEAD = 24


@njit(**JIT)
def are_bounds(offsets_L1, lookups):
    """Return whether these are the bounds of bags with at most `lookups` lookups: they begin at 0 and never fall."""
    last = np.int64(0)
    rising = len(offsets_L1) > 0 and offsets_L1[0] == 0
    for offset in offsets_L1:
        rising &= offset >= last
        last = offset
    return rising and last <= lookups


@njit(**JIT)
def number_rows(ids_N, offsets_L1, first_row_T, rows_T, row_N):
    """Number the row of each lookup. Returns the first lookup whose id lies outside its table, or -1."""
    tables = len(rows_T)
    for bag in range(len(offsets_L1) - 1):
        t = bag % tables
        first, rows = first_row_T[t], np.uint64(rows_T[t])
        for n in range(offsets_L1[bag], offsets_L1[bag + 1]):
            if np.uint64(ids_N[n]) >= rows:  # a negative id is a large number
                return n
            row_N[n] = first + ids_N[n]
    return -1


@njit(**JIT)
def find_features(length_FB, first_F1):
    """Number each feature's first lookup, where lookups stand feature by feature, and count all of them.

    Returns the shortest length, at most 1, and the longest, at least 1.
    """
    first_F1[0] = 0
    shortest, longest = np.int64(1), np.int64(1)
    for f in range(len(length_FB)):
        lookups = np.int64(0)
        for length in length_FB[f]:
            shortest, longest = min(shortest, length), max(longest, length)
            lookups += length
        first_F1[f + 1] = first_F1[f] + lookups
    return shortest, longest


@njit(**JIT)
def number_jagged_rows(ids_N, length_FB, one_hot, first_F1, feature_T, first_row_T, rows_T, row_M, offsets_L1):
    """Number the rows of some features' lookups sample by sample, and find the ends of their bags; feature ``feature_T[t]`` reads
    table ``t``. `one_hot` says that all lengths are 1. Returns the first of these lookups whose id lies outside its table, with
    the id in place of the row, or -1."""
    samples, tables = length_FB.shape[1], len(feature_T)
    next_T = np.empty(tables, dtype=np.int64)
    for t in range(tables):
        next_T[t] = first_F1[feature_T[t]]
    offsets_L1[0] = 0
    m = 0
    for b in range(samples):
        for t in range(tables):
            first, rows = first_row_T[t], np.uint64(rows_T[t])
            begin, lookups = (next_T[t] + b, 1) if one_hot else (next_T[t], length_FB[feature_T[t], b])
            for n in range(begin, begin + lookups):
                if np.uint64(ids_N[n]) >= rows:
                    row_M[m] = ids_N[n]
                    offsets_L1[b * tables + t + 1 :] = len(row_M)
                    return m
                row_M[m] = first + ids_N[n]
                m += 1
            if not one_hot:
                next_T[t] += lookups
            offsets_L1[b * tables + t + 1] = m
    return -1


@njit(**JIT)
def find_row_sources(row_N, slot_of_row, source_N):
    """Find the source of each lookup's row: the slot of a hot one, ``~row`` of a cold one. All are of one pool."""
    for n in range(len(row_N)):
        if n + _ROWS_AHEAD < len(row_N):
            prefetch_row(slot_of_row, row_N[n + _ROWS_AHEAD])
        slot = slot_of_row[row_N[n]]
        source_N[n] = slot if slot >= 0 else ~row_N[n]


@njit(**JIT)
def count_by_table(distinct_U, segments_U1, source_U, first_row_T, lookups_T, hot_lookups_T):
    """Add a batch's lookups, and those of hot rows, to the counts of their tables. `first_row_T` is ascending."""
    low, end = 0, np.int64(-1)
    for u in range(len(distinct_U)):
        row = distinct_U[u]
        if row < first_row_T[low] or row >= end:  # of another table than the row before
            low, high = 0, len(first_row_T)
            while high - low > 1:
                middle = (low + high) // 2
                if first_row_T[middle] <= row:
                    low = middle
                else:
                    high = middle
            end = first_row_T[high] if high < len(first_row_T) else np.int64(np.iinfo(np.int64).max)
        count = segments_U1[u + 1] - segments_U1[u]
        lookups_T[low] += count
        if source_U[u] >= 0:
            hot_lookups_T[low] += count
