"""A map from the raw keys of tables to their rows: one hash table with linear probing for all tables.

A slot has a key, as two words of 32 bits, and 1 and its joint row; 0 where nothing stands. The row shows which table the key is
of, so equal keys of several tables stand apart. Joint rows number the rows of all tables, one table after the other. Keys of a
batch are looked up in blocks, whose slots are prefetched together. The plain twin, with a dict, is in `reference/key_map.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT, JIT_INLINE
from adaptive_rec.kernels.prefetch import prefetch_row
from adaptive_rec.kernels.synthetic import mix64

AHEAD = 32
"""Keys whose slots are prefetched together."""

MOST_ROWS = (1 << 31) - 1
"""Limit of the joint rows of all tables that are read by raw keys: 1 and a row has 32 bits."""

LOW, HIGH, ROW, WORDS = 0, 1, 2, 3
"""Words of a slot, and how many there are."""


class KeyTables(NamedTuple):
    """The tables that keys are of (T)."""

    salt_T: np.ndarray
    """A number for each table that its keys are scrambled with."""
    first_T1: np.ndarray
    """The first joint row of each table, and the end of the last one."""
    shared_T: np.ndarray
    """How many rows each table has, its first ones, that keys without a row of their own share."""


class Keys(NamedTuple):
    """Keys of a batch in sample-major order (N), the bounds of its bags, and the table of each feature (F)."""

    key_N: np.ndarray
    offsets: np.ndarray
    table_F: np.ndarray


@njit(**JIT_INLINE)
def scrambled(key, salt):
    """The hash of a key of a table."""
    return mix64(np.uint64(key) ^ salt)


@njit(**JIT_INLINE)
def _place(slots, mixed, key, first, end):
    """Return the slot of a key, or the empty one where its search ends."""
    mask = np.uint64(len(slots) - 1)
    low, high = np.uint32(np.uint64(key) & np.uint64(0xFFFFFFFF)), np.uint32(np.uint64(key) >> np.uint64(32))
    slot = np.int64(mixed & mask)
    while True:
        number = np.int64(slots[slot, ROW])
        if number == 0:
            return slot
        if slots[slot, LOW] == low and slots[slot, HIGH] == high and first < number <= end:
            return slot
        slot = np.int64(np.uint64(slot + 1) & mask)


@njit(**JIT_INLINE)
def _put(slots, slot, key, row):
    slots[slot, LOW] = np.uint32(np.uint64(key) & np.uint64(0xFFFFFFFF))
    slots[slot, HIGH] = np.uint32(np.uint64(key) >> np.uint64(32))
    slots[slot, ROW] = np.uint32(row + 1)


@njit(**JIT)
def find_ids(slots, tables, keys, limit_T, id_N, unknown_N, table_N):
    """Set the id of each key within its table. A key without a row, or whose joint row is not below its table's limit, gets a
    shared one, and is listed with its table. Returns how many are listed."""
    features = len(keys.table_F)
    mixed, table_of = np.empty(AHEAD, np.uint64), np.empty(AHEAD, np.int64)
    unknown, bag = 0, 0
    for start in range(0, len(keys.key_N), AHEAD):
        count = min(AHEAD, len(keys.key_N) - start)
        for k in range(count):
            while keys.offsets[bag + 1] <= start + k:
                bag += 1
            table_of[k] = keys.table_F[bag % features]
            mixed[k] = scrambled(keys.key_N[start + k], tables.salt_T[table_of[k]])
            prefetch_row(slots, np.int64(mixed[k] & np.uint64(len(slots) - 1)))
        for k in range(count):
            n, t = start + k, table_of[k]
            first, end = tables.first_T1[t], tables.first_T1[t + 1]
            row = np.int64(slots[_place(slots, mixed[k], keys.key_N[n], first, end), ROW]) - 1
            if 0 <= row < limit_T[t]:
                id_N[n] = row - first
            else:
                id_N[n] = np.int64((mixed[k] >> np.uint64(32)) % np.uint64(tables.shared_T[t]))
                unknown_N[unknown], table_N[unknown] = n, t
                unknown += 1
    return unknown


@njit(**JIT)
def scramble(tables, key_C, table_C, name_C):
    """Set a number for each key of a table, by which a sketch counts it."""
    for c in range(len(key_C)):
        name_C[c] = np.int64(scrambled(key_C[c], tables.salt_T[table_C[c]]))


@njit(**JIT)
def add_keys(slots, tables, key_C, table_C, row_C):
    """Add keys of tables, none of which has a row yet. There must be room."""
    for c in range(len(key_C)):
        t = table_C[c]
        mixed = scrambled(key_C[c], tables.salt_T[t])
        slot = _place(slots, mixed, key_C[c], tables.first_T1[t], tables.first_T1[t + 1])
        _put(slots, slot, key_C[c], row_C[c])


@njit(**JIT)
def move_slots(slots, tables, limit_T, others):
    """Copy the entries whose joint rows are below their table's limit into other, empty slots with room for them. Returns how
    many they are."""
    mask, moved = np.uint64(len(others) - 1), 0
    for place in range(len(slots)):
        row = np.int64(slots[place, ROW]) - 1
        table = np.searchsorted(tables.first_T1, row, side="right") - 1
        if row < 0 or row >= limit_T[table]:
            continue
        key = np.uint64(slots[place, LOW]) | np.uint64(slots[place, HIGH]) << np.uint64(32)
        slot = np.int64(mix64(key ^ tables.salt_T[table]) & mask)
        while others[slot, ROW]:
            slot = np.int64(np.uint64(slot + 1) & mask)
        others[slot] = slots[place]
        moved += 1
    return moved


@njit(**JIT)
def list_keys(slots, key_R, first):
    """Set the key of each row of some joint rows from `first` on."""
    for place in range(len(slots)):
        row = np.int64(slots[place, ROW]) - 1 - first
        if 0 <= row < len(key_R):
            key_R[row] = np.int64(np.uint64(slots[place, LOW]) | np.uint64(slots[place, HIGH]) << np.uint64(32))
