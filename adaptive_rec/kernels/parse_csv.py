"""Parse rows of comma-separated fields, each of a kind that its column has, from bytes. Plain twin: `reference_csv.py`.

There is no quoting. Rows end in LF or CRLF. What a field becomes depends on its kind: the label, the hour as a number, or a
key, which is never 0 unless the field is empty.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT, JIT_PART

SKIP, LABEL, HOUR, HEX, INTEGER = range(5)
"""Kinds of columns."""
FINE, COLUMNS, BAD_LABEL, BAD_HOUR, BAD_HEX, BAD_INTEGER = range(6)
"""What is wrong with a row; a wrong number of columns is told before anything else."""
COMMA, LF, CR, MINUS, DIGIT_0 = 44, 10, 13, 45, 48
HEX_DIGITS, INTEGER_DIGITS, HOUR_DIGITS = 8, 18, 8
FIRST_INTEGER_KEY = 1 << 62
"""The key of the integer 0."""
NO_DIGIT = 16
DIGITS = np.full(256, NO_DIGIT, dtype=np.int64)
DIGITS[np.frombuffer(b"0123456789", dtype=np.uint8)] = range(10)
DIGITS[np.frombuffer(b"abcdef", dtype=np.uint8)] = DIGITS[np.frombuffer(b"ABCDEF", dtype=np.uint8)] = range(10, 16)


@njit(**JIT)
def parse_rows(data, start, kinds_K, labels_B, hours_B, keys_BF):
    """Parse rows from byte `start` until the outputs are full, the data ends, or a row is malformed.

    `data` must end with a line feed. Columns of the kinds HEX and INTEGER fill `keys_BF` in their order. Returns (rows
    parsed, byte after them, fault, faulty column).
    """
    position, row = start, 0
    while position < len(data) and row < len(labels_B):
        fault, column, after = _parse_row(data, position, kinds_K, row, labels_B, hours_B, keys_BF)
        if fault != FINE:
            return row, position, fault, column
        position = after
        row += 1
    return row, position, FINE, 0


@njit(**JIT_PART)
def _parse_row(data, p, kinds_K, row, labels_B, hours_B, keys_BF):
    """Parse one row; returns (fault, column, byte after the row)."""
    fault, faulty, column, f = FINE, 0, 0, 0
    while True:
        start = p
        while data[p] != COMMA and data[p] != LF:
            p += 1
        ends = data[p] == LF
        stop = p - 1 if ends and p > start and data[p - 1] == CR else p
        if column < len(kinds_K) and fault == FINE and kinds_K[column] != SKIP:
            kind = kinds_K[column]
            fault, value = _field(data, start, stop, kind)
            faulty = column
            if kind == LABEL:
                labels_B[row] = value
            elif kind == HOUR:
                hours_B[row] = value
            else:
                keys_BF[row, f] = np.uint64(value)
                f += 1
        column += 1
        p += 1
        if ends:
            return (COLUMNS, 0, p) if column != len(kinds_K) else (fault, faulty, p)


@njit(**JIT_PART)
def _field(data, start, stop, kind):
    """(fault, what the field becomes)."""
    length = stop - start
    if kind == HEX:
        value, fine = _digits(data, start, stop, 16)
        return (FINE if fine and length <= HEX_DIGITS else BAD_HEX), (value + 1 if length else 0)
    if kind == LABEL:
        value, fine = _digits(data, start, stop, 2)
        return (FINE if fine and length == 1 else BAD_LABEL), value
    if kind == HOUR:
        value, fine = _digits(data, start, stop, 10)
        fine = fine and length == HOUR_DIGITS
        return (FINE if fine and _is_hour(value) else BAD_HOUR), value
    negative = length > 0 and data[start] == MINUS
    value, fine = _digits(data, start + negative, stop, 10)
    fine = fine and length - negative <= INTEGER_DIGITS and not (negative and length == 1)
    key = FIRST_INTEGER_KEY + (-value if negative else value)
    return (FINE if fine else BAD_INTEGER), (key if length else 0)


@njit(**JIT_PART)
def _is_hour(value):
    """Whether YYMMDDHH is an hour of the years 2000 to 2099."""
    year, month, day, hour = value // 1000000, value // 10000 % 100, value // 100 % 100, value % 100
    days = 31
    if month == 4 or month == 6 or month == 9 or month == 11:
        days = 30
    elif month == 2:
        days = 29 if year % 4 == 0 else 28
    return 1 <= month <= 12 and 1 <= day <= days and hour < 24


@njit(**JIT_PART)
def _digits(data, start, stop, base):
    """(the number that the digits make, whether all are digits of the base)."""
    value, fine = 0, True
    for p in range(start, stop):
        digit = DIGITS[data[p]]
        fine = fine and digit < base
        value = value * base + digit
    return value, fine
