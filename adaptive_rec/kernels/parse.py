"""These kernels parse Criteo TSV rows from bytes, and number the values of a column. Plain twins: `reference/parse.py`.

A row is label, integers, hexadecimal categories, separated by tabs and ended by LF or CRLF. An empty integer or
category is a missing one and reads as 0.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from adaptive_rec.kernels.jit import JIT, JIT_PART

FINE, COLUMNS, LABEL, INTEGER, INTEGER_RANGE, CATEGORY, CATEGORY_RANGE = range(7)
"""Faults of a row; a wrong number of columns is reported before any other."""

TAB, LF, CR, MINUS, DIGIT_0 = 9, 10, 13, 45, 48
INT32_MAX = (1 << 31) - 1
HEX_DIGITS = 8
HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
NO_DIGIT = 16
DIGITS = np.full(256, NO_DIGIT, dtype=np.int64)
"""Value of each byte as a hexadecimal digit: a table, as a branch on letters would often be guessed wrong."""
DIGITS[np.frombuffer(b"0123456789", dtype=np.uint8)] = range(10)
DIGITS[np.frombuffer(b"abcdef", dtype=np.uint8)] = DIGITS[np.frombuffer(b"ABCDEF", dtype=np.uint8)] = range(10, 16)


@njit(**JIT)
def parse_rows(
    data: NDArray[np.uint8],
    start: int,
    labels_B: NDArray[np.float32],
    ints_BX: NDArray[np.int32],
    values_BF: NDArray[np.uint32],
) -> tuple[int, int, int, int]:
    """Parse rows from byte `start` until the outputs are full, the data ends, or a row is malformed.

    `data` must end with a line feed. Returns (rows parsed, byte after them, fault, faulty column). Output rows
    after those parsed are undefined.
    """
    position, row, end = start, 0, len(data)
    while position < end and row < len(labels_B):
        fault, column, after = _parse_row(data, position, row, labels_B, ints_BX, values_BF)
        if fault != FINE:
            if _columns(data, position) != 1 + ints_BX.shape[1] + values_BF.shape[1]:
                fault, column = COLUMNS, 0
            return row, position, fault, column
        position = after
        row += 1
    return row, position, FINE, 0


@njit(**JIT_PART)
def _parse_row(
    data: NDArray[np.uint8],
    p: int,
    row: int,
    labels_B: NDArray[np.float32],
    ints_BX: NDArray[np.int32],
    values_BF: NDArray[np.uint32],
) -> tuple[int, int, int]:
    """Parse one row from byte `p`; returns (fault, column, byte after the row)."""
    if (data[p] != DIGIT_0 and data[p] != DIGIT_0 + 1) or data[p + 1] != TAB:
        return LABEL, 0, p
    labels_B[row] = data[p] - DIGIT_0
    p += 1
    for x in range(ints_BX.shape[1]):
        fault, p, ints_BX[row, x] = _integer(data, p + 1)
        if fault != FINE or data[p] != TAB:
            return (INTEGER if data[p] != TAB else fault), 1 + x, p
    last = values_BF.shape[1] - 1
    for f in range(last + 1):
        fault, p, values_BF[row, f] = _category(data, p + 1)
        if f == last and data[p] == CR and data[p + 1] == LF:
            p += 1
        if fault != FINE or data[p] != (LF if f == last else TAB):
            return (CATEGORY if data[p] != (LF if f == last else TAB) else fault), 1 + ints_BX.shape[1] + f, p
    return FINE, 0, p + 1


@njit(**JIT_PART)
def _integer(data: NDArray[np.uint8], p: int) -> tuple[int, int, int]:
    """Read an integer of 32 bits or nothing from byte `p`; returns (fault, byte after it, value)."""
    negative = data[p] == MINUS
    if negative:
        p += 1
    first, value, fault = p, 0, FINE
    while DIGIT_0 <= data[p] < DIGIT_0 + 10:
        value = value * 10 + (data[p] - DIGIT_0)
        if value > INT32_MAX:
            fault, value = INTEGER_RANGE, INT32_MAX
        p += 1
    if negative and p == first:
        fault = INTEGER
    return fault, p, (-value if negative else value)


@njit(**JIT_PART)
def _category(data: NDArray[np.uint8], p: int) -> tuple[int, int, int]:
    """Read up to eight hexadecimal digits from byte `p`; returns (fault, byte after them, value)."""
    first, value = p, 0
    digit = DIGITS[data[p]]
    while digit != NO_DIGIT:
        value = ((value << 4) | digit) & 0xFFFFFFFF
        p += 1
        digit = DIGITS[data[p]]
    return (FINE if p - first <= HEX_DIGITS else CATEGORY_RANGE), p, value


@njit(**JIT_PART)
def _columns(data: NDArray[np.uint8], p: int) -> int:
    """Count the columns of the line that starts at byte `p`."""
    columns = 1
    while data[p] != LF:
        if data[p] == TAB:
            columns += 1
        p += 1
    return columns


@njit(**JIT)
def number_values(values_N: NDArray[np.uint32], slots: NDArray[np.int32], ids_N: NDArray[np.int32]) -> int:
    """Number the distinct values in order of first occurrence; returns how many there are.

    `slots` is scratch: -1 everywhere, a power of two of them, more than there are distinct values.
    It holds the place where a value stood first, in a hash table with linear probing.
    """
    mask = len(slots) - 1
    distinct = 0
    for n in range(len(values_N)):
        slot = np.int64((np.uint64(values_N[n]) * HASH_FACTOR) >> np.uint64(32)) & mask
        while slots[slot] >= 0 and values_N[slots[slot]] != values_N[n]:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = n
            ids_N[n] = distinct
            distinct += 1
        else:
            ids_N[n] = ids_N[slots[slot]]
    return distinct
