"""These kernels classify a batch: they find its distinct rows, where each is, and which samples are popular.

They fill the caller's arrays; callers check shapes. Plain twins stand in `reference/step.py`; `find_distinct` is the twin of
`share_tables`, `find_rows` and `list_bags` together.
Shapes: see the legend in `adaptive_rec.batch`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange, set_num_threads

from adaptive_rec.kernels.jit import JIT, JIT_PARALLEL, JIT_PART, worth_waking
from adaptive_rec.kernels.prefetch import prefetch_row

_ROWS_AHEAD, _BAGS_AHEAD = 64, 32

_SCATTER = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: the high bits of its multiples are spread evenly."""


class TableLookups(NamedTuple):
    """The lookups of a batch table by table; for `tables_T5` and `runs_V3` see `batch.TableReads`."""

    part_T: Any
    """Part of the work that each table belongs to."""
    ids_N: Any
    offsets: Any
    one_hot: bool
    tables_T5: Any
    runs_V3: Any
    first_lookup_T1: Any
    """Number of each table's first lookup."""


class FoundRows(NamedTuple):
    """The distinct rows as `find_rows` leaves them: those of table ``t`` begin at ``first_lookup_T1[t]``."""

    row_N: Any
    count_N: Any
    """Lookups of each row."""
    inverse_N: Any
    """Place of each lookup's row."""
    distinct_T: Any
    """Distinct rows of each table, or ``-1 - n`` where the id of lookup ``n`` lies outside it."""


@njit(**JIT)
def is_one_hot(offsets, lookups):
    """Whether every bag holds exactly one id: bag ``i`` is lookup ``i`` then, and offsets need not be read."""
    if len(offsets) - 1 != lookups:
        return False
    same = True
    for bag in range(len(offsets)):
        same &= offsets[bag] == bag
    return same


@njit(**JIT)
def rises(offsets, lookups):
    """Whether offsets rise from 0 to the number of lookups."""
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != lookups:
        return False
    rising = True
    for bag in range(len(offsets) - 1):
        rising &= offsets[bag] <= offsets[bag + 1]
    return rising


@njit(**JIT)
def share_tables(offsets, one_hot, tables_T5, runs_V3, first_lookup_T1, part_T, parts):
    """Number the lookups table by table, and assign each table to one of `parts` parts of the work, the largest first.

    `first_lookup_T1` becomes the number of each table's first lookup, `part_T` its part. For the rest see `TableLookups`.
    Returns the size of the hash table that the largest table needs, a power of two.
    """
    run = 0
    largest = 0
    first_lookup_T1[0] = 0
    for t in range(len(tables_T5)):
        lookups = 0
        for v in range(run, run + tables_T5[t, 4]):
            first, step, bags = runs_V3[v]
            if one_hot:
                lookups += bags
            else:
                for bag in range(first, first + bags * step, step):
                    lookups += offsets[bag + 1] - offsets[bag]
        run += tables_T5[t, 4]
        first_lookup_T1[t + 1] = first_lookup_T1[t] + lookups
        largest = max(largest, lookups)
    load_P = np.zeros(parts, dtype=np.int64)
    for t in np.argsort(first_lookup_T1[:-1] - first_lookup_T1[1:]):
        part_T[t] = np.argmin(load_P)
        load_P[part_T[t]] += first_lookup_T1[t + 1] - first_lookup_T1[t]
    return 1 << _bits_for(largest)


@njit(**JIT_PART)
def _bits_for(lookups):
    """Return the bits of a place in a hash table for so many keys."""
    bits = 4
    while (1 << bits) < 2 * lookups:
        bits += 1
    return bits


@njit(**JIT)
def find_rows(part, places, lookups, found):
    """Find the distinct rows of one part's tables, and count the lookups of each; fills `found`.

    `places` is scratch for hash tables, one after the other: that of one table should fit a core's first cache.
    """
    part_T, ids_N, offsets, one_hot, tables_T5, runs_V3, first_lookup_T1 = lookups
    row_N, count_N, inverse_N, distinct_T = found
    run = 0
    for t in range(len(tables_T5)):
        first_run, run = run, run + tables_T5[t, 4]
        if part_T[t] != part:
            continue
        first_row, first_id, rows, begin = tables_T5[t, 1], tables_T5[t, 2], tables_T5[t, 3], first_lookup_T1[t]
        bits = _bits_for(first_lookup_T1[t + 1] - begin)
        shift, mask = np.uint64(64 - bits), (1 << bits) - 1
        direct = rows <= mask + 1  # a small table: every id has a place of its own
        places[: rows if direct else mask + 1] = -1
        end = begin
        for v in range(first_run, run):
            first, step, bags = runs_V3[v]
            for bag in range(first, first + bags * step, step):
                start, stop = (bag, bag + 1) if one_hot else (offsets[bag], offsets[bag + 1])
                if one_hot:  # the next lookup of the table is far off: another line each
                    prefetch_row(ids_N, bag + _BAGS_AHEAD * step)
                    prefetch_row(inverse_N, bag + _BAGS_AHEAD * step)
                for n in range(start, stop):
                    number = ids_N[n] - first_id
                    if number < 0 or number >= rows:
                        distinct_T[t] = -1 - n
                        return
                    row = first_row + number
                    h = number if direct else np.int64((np.uint64(number) * _SCATTER) >> shift)
                    u = places[h]
                    while u >= 0 and row_N[u] != row:
                        h = (h + 1) & mask
                        u = places[h]
                    if u < 0:
                        u = np.int32(end)
                        places[h] = u
                        row_N[u] = row
                        count_N[u] = 0
                        end += 1
                    inverse_N[n] = u
                    count_N[u] += 1
        distinct_T[t] = end - begin


@njit(**JIT)
def list_bags(part, lookups, found, first_distinct_T1, distinct_U, segments_U1, segment_bag_N):
    """Move one part's rows to their places among all distinct rows, and list the bags that touch each.

    `found` is what `find_rows` left; the rows of table ``t`` begin at ``first_distinct_T1[t]``.
    Row ``u`` is touched by bags ``segment_bag_N[segments_U1[u] : segments_U1[u + 1]]``, in the order of the runs.
    """
    part_T, _, offsets, one_hot, tables_T5, runs_V3, first_lookup_T1 = lookups
    row_N, count_N, inverse_N, _ = found
    run = 0
    for t in range(len(tables_T5)):
        first_run, run = run, run + tables_T5[t, 4]
        if part_T[t] != part:
            continue
        begin, shift = first_lookup_T1[t], first_distinct_T1[t] - first_lookup_T1[t]
        filled = begin
        for u in range(first_distinct_T1[t], first_distinct_T1[t + 1]):
            distinct_U[u] = row_N[u - shift]
            segments_U1[u] = filled
            filled += count_N[u - shift]
            count_N[u - shift] = segments_U1[u]  # where its next bag goes
        segments_U1[first_distinct_T1[t + 1]] = filled
        for v in range(first_run, run):
            first, step, bags = runs_V3[v]
            for bag in range(first, first + bags * step, step):
                start, stop = (bag, bag + 1) if one_hot else (offsets[bag], offsets[bag + 1])
                for n in range(start, stop):
                    u = inverse_N[n]
                    inverse_N[n] = u + shift
                    segment_bag_N[count_N[u]] = bag
                    count_N[u] += 1


@njit(**JIT_PARALLEL)
def find_rows_in_parts(places_PH, lookups, found):
    """Run `find_rows` for all parts at once, each with a line of `places_PH`."""
    for part in prange(len(places_PH)):
        find_rows(part, places_PH[part], lookups, found)


@njit(**JIT_PARALLEL)
def list_bags_in_parts(parts, lookups, found, first_distinct_T1, distinct_U, segments_U1, segment_bag_N):
    for part in prange(parts):
        list_bags(part, lookups, found, first_distinct_T1, distinct_U, segments_U1, segment_bag_N)


@njit(**JIT)
def find_sources(distinct_U, pool_ends, pool_first_row, slot_of_row, any_hot, source_U):
    """Find the source of each distinct row: the slot of a hot row, or ``~row`` of a cold one (row within its pool).

    Without `any_hot` no row is hot, and slots, which lie far apart in memory, are not read.
    """
    first = 0
    for pool in range(0 if any_hot else len(pool_ends)):
        for u in range(first, pool_ends[pool]):
            source_U[u] = ~(distinct_U[u] - pool_first_row[pool])
        first = pool_ends[pool]
    if not any_hot:
        return
    pool = 0
    for u in range(len(distinct_U)):
        while u >= pool_ends[pool]:
            pool += 1
        if u + _ROWS_AHEAD < len(distinct_U):
            prefetch_row(slot_of_row, distinct_U[u + _ROWS_AHEAD])
        row = distinct_U[u]
        slot = slot_of_row[row]
        source_U[u] = slot if slot >= 0 else ~(row - pool_first_row[pool])


def spread_sources(
    source_U, inverse_N, offsets, one_hot, features, source_N, popular_B, lookups_F, hot_F, threads=1
):
    """Find the source of each lookup's row and the popular samples; count each feature's lookups, and those of hot rows."""
    arrays = source_U, inverse_N, offsets, one_hot, features, source_N, popular_B
    parts = worth_waking(threads, len(inverse_N))
    count_P2F = np.zeros((parts, 2, features), dtype=np.int64)
    if parts == 1:
        _spread_range(0, len(popular_B), *arrays, count_P2F[0])
    else:
        set_num_threads(threads)
        _spread_parts(*arrays, count_P2F)
    lookups_F[:], hot_F[:] = count_P2F.sum(axis=0)


@njit(**JIT_PARALLEL)
def _spread_parts(source_U, inverse_N, offsets, one_hot, features, source_N, popular_B, count_P2F):
    parts, samples = len(count_P2F), len(popular_B)
    for p in prange(parts):
        first, end = samples * p // parts, samples * (p + 1) // parts
        _spread_range(
            first, end, source_U, inverse_N, offsets, one_hot, features, source_N, popular_B, count_P2F[p]
        )


@njit(**JIT)
def _spread_range(first, end, source_U, inverse_N, offsets, one_hot, features, source_N, popular_B, count_2F):
    for b in range(first, end):
        popular = True
        for f in range(features):
            bag = b * features + f
            start, stop = (bag, bag + 1) if one_hot else (offsets[bag], offsets[bag + 1])
            hot = 0
            for n in range(start, stop):
                source_N[n] = source_U[inverse_N[n]]
                hot += source_N[n] >= 0
            count_2F[0, f] += stop - start
            count_2F[1, f] += hot
            popular &= hot == stop - start
        popular_B[b] = popular


@njit(**JIT)
def count_flagged(flag_U, inverse_N, offsets, features, count_B):
    """Count the lookups of each sample whose distinct row is flagged."""
    for b in range(len(count_B)):
        count = 0
        for n in range(offsets[b * features], offsets[(b + 1) * features]):
            count += flag_U[inverse_N[n]]
        count_B[b] = count
