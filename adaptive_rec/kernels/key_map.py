"""A map from the raw keys of tables to their rows: one hash table with linear probing for all tables.

A slot has a key, as two words of 32 bits, and 1 and its joint row; 0 where nothing stands. The row shows which table the key is
of, so equal keys of several tables stand apart. Joint rows number the rows of all tables, one table after the other. Two flags
say who sees a key: steps that were made do not see a `NEW` one, batches that are taken ahead of them do not see a `LEAVING` one.
With both flags a slot is free. A key that leaves and is admitted again has two slots for a while.

The highest bits of a key's hash are its slot, so slots are in the order of hashes, however many they are. Keys of a batch are
looked up in blocks, whose slots are prefetched together. The plain twin, with a dict, is in `reference/key_map.py`.
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

MOST_ROWS = (1 << 30) - 1
"""Limit of the joint rows of all tables that are read by raw keys: 1 and a row has 30 bits."""

LOW, HIGH, ROW, WORDS = 0, 1, 2, 3
"""Words of a slot, and how many there are."""

NEW, LEAVING = 1 << 31, 1 << 30
"""Flags beside the row of a slot: its key is of a batch whose step was not made yet; it is not of later batches."""
_FREE = NEW | LEAVING


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
def _shift(slots):
    """Return by how many bits a hash is moved to be a slot."""
    bits = 0
    while 1 << bits < len(slots):
        bits += 1
    return np.uint64(64 - bits)


@njit(**JIT_INLINE)
def _next(slots, slot):
    return (slot + 1) & (len(slots) - 1)


@njit(**JIT_INLINE)
def _number(word):
    """Return the joint row of a slot's last word, and 1; 0 where nothing stands."""
    return np.int64(word & np.uint32(LEAVING - 1))


@njit(**JIT_INLINE)
def _find(slots, slot, key, first, end, hidden, flags):
    """Return the slot, from a key's own one on, that has the key for a joint row from `first` to `end`, with these of the hidden
    flags; -1 where none has."""
    low, high = np.uint32(np.uint64(key) & np.uint64(0xFFFFFFFF)), np.uint32(np.uint64(key) >> np.uint64(32))
    while True:
        word = slots[slot, ROW]
        if word == 0:
            return -1
        if slots[slot, LOW] == low and slots[slot, HIGH] == high:
            if first < _number(word) <= end and np.int64(word) & hidden == flags:
                return slot
        slot = _next(slots, slot)


@njit(**JIT_INLINE)
def _put(slots, slot, key, word):
    """Put a key into the first free slot from its own one on."""
    while slots[slot, ROW] and np.int64(slots[slot, ROW]) & _FREE != _FREE:
        slot = _next(slots, slot)
    slots[slot, LOW] = np.uint32(np.uint64(key) & np.uint64(0xFFFFFFFF))
    slots[slot, HIGH] = np.uint32(np.uint64(key) >> np.uint64(32))
    slots[slot, ROW] = np.uint32(word)


@njit(**JIT)
def find_ids(slots, tables, keys, hidden, id_N, unknown_N, table_N):
    """Set the id of each key within its table. A key without a row, or with the hidden flag, gets a shared one, and is listed
    with its table. Returns how many are listed."""
    features, shift = len(keys.table_F), _shift(slots)
    mixed, table_of = np.empty(AHEAD, np.uint64), np.empty(AHEAD, np.int64)
    unknown, bag = 0, 0
    for start in range(0, len(keys.key_N), AHEAD):
        count = min(AHEAD, len(keys.key_N) - start)
        for k in range(count):
            while keys.offsets[bag + 1] <= start + k:
                bag += 1
            table_of[k] = keys.table_F[bag % features]
            mixed[k] = scrambled(keys.key_N[start + k], tables.salt_T[table_of[k]])
            prefetch_row(slots, np.int64(mixed[k] >> shift))
        for k in range(count):
            n, t = start + k, table_of[k]
            first, end = tables.first_T1[t], tables.first_T1[t + 1]
            slot = _find(slots, np.int64(mixed[k] >> shift), keys.key_N[n], first, end, hidden, 0)
            if slot >= 0:
                id_N[n] = _number(slots[slot, ROW]) - 1 - first
            else:
                id_N[n] = np.int64((mixed[k] >> np.uint64(32)) % np.uint64(tables.shared_T[t]))
                unknown_N[unknown], table_N[unknown] = n, t
                unknown += 1
    return unknown


@njit(**JIT)
def mark_rows(first_T1, table_F, offsets, id_N, mark, mark_R):
    """Set the mark of each joint row that a batch looks up. `first_T1`: the first joint row of each table; `id_N`: the ids of the
    lookups, bag by bag."""
    features = len(table_F)
    for bag in range(len(offsets) - 1):
        first = first_T1[table_F[bag % features]]
        for n in range(offsets[bag], offsets[bag + 1]):
            mark_R[first + id_N[n]] = mark


@njit(**JIT)
def scramble(tables, key_C, table_C, name_C):
    """Set a number for each key of a table, by which a sketch counts it."""
    for c in range(len(key_C)):
        name_C[c] = np.int64(scrambled(key_C[c], tables.salt_T[table_C[c]]))


@njit(**JIT)
def add_keys(slots, tables, key_C, table_C, row_C, flags):
    """Add keys of tables with a flag, or none. There must be room."""
    shift = _shift(slots)
    for c in range(len(key_C)):
        slot = np.int64(scrambled(key_C[c], tables.salt_T[table_C[c]]) >> shift)
        _put(slots, slot, key_C[c], np.int64(row_C[c] + 1) | flags)


@njit(**JIT)
def change_flags(slots, tables, key_C, table_C, before, after):
    """Change the flags of keys of tables that have the flags `before`; each must be there."""
    shift = _shift(slots)
    for c in range(len(key_C)):
        t = table_C[c]
        own = np.int64(scrambled(key_C[c], tables.salt_T[t]) >> shift)
        slot = _find(slots, own, key_C[c], tables.first_T1[t], tables.first_T1[t + 1], _FREE, before)
        slots[slot, ROW] = np.uint32(_number(slots[slot, ROW]) | after)


@njit(**JIT)
def move_slots(slots, tables, hidden, others):
    """Copy the keys without a hidden flag into other, empty slots with room for them; without any flag where some are hidden.
    Returns how many they are."""
    shift, moved = _shift(others), 0
    for place in range(len(slots)):
        word = np.int64(slots[place, ROW])
        if word == 0 or word & _FREE == _FREE or word & hidden:
            continue
        row = _number(slots[place, ROW])
        table = np.searchsorted(tables.first_T1, row - 1, side="right") - 1
        key = _key(slots, place)
        _put(others, np.int64(scrambled(key, tables.salt_T[table]) >> shift), key, row if hidden else word)
        moved += 1
    return moved


@njit(**JIT_INLINE)
def _key(slots, place):
    return np.int64(np.uint64(slots[place, LOW]) | np.uint64(slots[place, HIGH]) << np.uint64(32))


@njit(**JIT)
def list_keys(slots, hidden, first, key_R, has_R):
    """Set the key of each row of some joint rows from `first` on, and that it has one; keys with the hidden flag are left out."""
    for place in range(len(slots)):
        word = np.int64(slots[place, ROW])
        row = _number(slots[place, ROW]) - 1 - first
        if word & hidden == 0 and 0 <= row < len(key_R):
            key_R[row], has_R[row] = _key(slots, place), True


@njit(**JIT)
def list_part(slots, tables, low, high, wanted_T):
    """Return the keys without a flag of the wanted tables whose hash is at least `low` and at most `high`, with their tables and
    joint rows. Their order depends on how many slots there are, and on when each key came."""
    shift, mask = _shift(slots), len(slots) - 1
    first, end = np.int64(low >> shift), np.int64(high >> shift)
    while end - first < len(slots) and slots[end & mask, ROW]:
        end += 1
    key_C, table_C, row_C = np.empty(end - first, np.int64), np.empty(end - first, np.int64), np.empty(end - first, np.int64)
    found = 0
    for place in range(first, end):
        word = slots[place & mask, ROW]
        if word == 0 or np.int64(word) & _FREE:
            continue
        table = np.searchsorted(tables.first_T1, _number(word) - 1, side="right") - 1
        key = _key(slots, place & mask)
        if wanted_T[table] and low <= scrambled(key, tables.salt_T[table]) <= high:
            key_C[found], table_C[found], row_C[found] = key, table, _number(word) - 1
            found += 1
    return key_C[:found], table_C[:found], row_C[:found]
