"""These kernels number the keys of a table in order of first occurrence, in bounded memory. Plain twin: `reference/`.

Keys are spread over partitions by the upper bits of a hash, and one partition at a time is counted in a hash table with
linear probing, which goes over all keys and leaves those of others. `table_S2` has a power of two of slots, 0 where
nothing stands: a key, and a word that is first ``position << COUNT_BITS | count``, then the key's id. The position of a
key's first occurrence is marked in a bitmap; how many marks stand before it is its number, whatever partition it is in.
Key 0 is a missing value and never stands in a table.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT
from adaptive_rec.kernels.prefetch import prefetch_row
from adaptive_rec.kernels.synthetic import mix64

COUNT_BITS = np.uint64(16)
MAX_COUNT = np.uint64((1 << 16) - 1)
"""The highest count; `min_count` may be no higher."""
MISSING_ID, INFREQUENT_ID, FIRST_ID = 0, 1, 2
WORDS_PER_SUM = 8
"""Words of the bitmap for each entry of its running sums."""
AHEAD = 16
"""How many keys ahead slots are prefetched."""
MISSING, ONE = np.uint64(0), np.uint64(1)


@njit(inline="always")
def _partition(mixed, partition_bits):
    return np.int64((mixed >> ONE) >> np.uint64(63 - partition_bits))


@njit(**JIT)
def count_keys(keys_N, start, first_position, partition, partition_bits, table_S2, used, room):
    """Count the partition's keys from `start` on until a new key would need more than `room` slots.

    `keys_N[0]` stands at `first_position`, `used` slots are taken. Returns (where it stopped, slots taken).
    """
    mask = np.uint64(len(table_S2) - 1)
    for n in range(start, len(keys_N)):
        if n + AHEAD < len(keys_N):
            mixed = mix64(np.uint64(keys_N[n + AHEAD]))
            if _partition(mixed, partition_bits) == partition:
                prefetch_row(table_S2, np.int64(mixed & mask))
        key = np.uint64(keys_N[n])
        mixed = mix64(key)
        if key == MISSING or _partition(mixed, partition_bits) != partition:
            continue
        slot = np.int64(mixed & mask)
        while table_S2[slot, 1] and table_S2[slot, 0] != key:
            slot = np.int64(np.uint64(slot + 1) & mask)
        if table_S2[slot, 1]:
            if table_S2[slot, 1] & MAX_COUNT != MAX_COUNT:
                table_S2[slot, 1] += ONE
        else:
            if used == room:
                return n, used
            used += 1
            table_S2[slot, 0] = key
            table_S2[slot, 1] = (np.uint64(first_position + n) << COUNT_BITS) | ONE
    return len(keys_N), used


@njit(**JIT)
def move_table(table_S2, larger_S2):
    """Copy the entries of a table into a larger, empty one."""
    mask = np.uint64(len(larger_S2) - 1)
    for place in range(len(table_S2)):
        if table_S2[place, 1]:
            slot = np.int64(mix64(table_S2[place, 0]) & mask)
            while larger_S2[slot, 1]:
                slot = np.int64(np.uint64(slot + 1) & mask)
            larger_S2[slot, 0] = table_S2[place, 0]
            larger_S2[slot, 1] = table_S2[place, 1]


@njit(**JIT)
def mark_first(table_S2, min_count, marks_W):
    """Set the bit of each key's first position where it occurs `min_count` times; returns how many were set."""
    marked = 0
    for slot in range(len(table_S2)):
        word = table_S2[slot, 1]
        if word and word & MAX_COUNT >= np.uint64(min_count):
            position = word >> COUNT_BITS
            marks_W[np.int64(position >> np.uint64(6))] |= ONE << (position & np.uint64(63))
            marked += 1
    return marked


@njit(inline="always")
def _bits(word):
    """Count the set bits of a word."""
    word -= (word >> ONE) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(**JIT)
def sum_marks(marks_W, sums):
    """Fill with the number of marks before each `WORDS_PER_SUM` words."""
    total = 0
    for w in range(len(marks_W)):
        if w % WORDS_PER_SUM == 0:
            sums[w // WORDS_PER_SUM] = total
        total += _bits(marks_W[w])


@njit(**JIT)
def give_ids(table_S2, min_count, marks_W, sums):
    """Turn the words of a counted table into ids."""
    for slot in range(len(table_S2)):
        word = table_S2[slot, 1]
        if not word:
            continue
        if word & MAX_COUNT < np.uint64(min_count):
            table_S2[slot, 1] = np.uint64(INFREQUENT_ID)
            continue
        position = word >> COUNT_BITS
        last = np.int64(position >> np.uint64(6))
        number = sums[last // WORDS_PER_SUM]
        for w in range(last // WORDS_PER_SUM * WORDS_PER_SUM, last):
            number += _bits(marks_W[w])
        number += _bits(marks_W[last] & ((ONE << (position & np.uint64(63))) - ONE))
        table_S2[slot, 1] = np.uint64(FIRST_ID + number)


@njit(**JIT)
def write_ids(keys_N, partition, partition_bits, table_S2, ids_N):
    """Write the ids of the partition's keys to their places, and those of missing values."""
    mask = np.uint64(len(table_S2) - 1)
    for n in range(len(keys_N)):
        if n + AHEAD < len(keys_N):
            mixed = mix64(np.uint64(keys_N[n + AHEAD]))
            if _partition(mixed, partition_bits) == partition:
                prefetch_row(table_S2, np.int64(mixed & mask))
        key = np.uint64(keys_N[n])
        mixed = mix64(key)
        if key == MISSING:
            ids_N[n] = MISSING_ID
        elif _partition(mixed, partition_bits) == partition:
            slot = np.int64(mixed & mask)
            while table_S2[slot, 0] != key:
                slot = np.int64(np.uint64(slot + 1) & mask)
            ids_N[n] = np.int32(table_S2[slot, 1])
