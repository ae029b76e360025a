"""These kernels parse rows of separated fields, one kind for each column, from bytes. Plain twin: `reference/parse_csv.py`.

There is no quoting. Rows end in LF or CRLF. Every field becomes one whole number.
"""

from __future__ import annotations

from numba import njit

from adaptive_rec.kernels.jit import JIT, JIT_PART
from adaptive_rec.kernels.parse import CR, DIGITS, HEX_DIGITS, LF, MINUS

SKIP, NUMBER, WORD, HOUR, HEX_KEY, INTEGER_KEY = range(6)
"""Kinds of columns: not read; a number from 0 to the column's limit; one of its words, as its place in the list; a date and hour
as the number YYMMDDHH; the key of a hexadecimal number; the key of an integer. A key is 0 where the field is empty, and never
otherwise."""
FINE, COLUMNS, FIELD = range(3)
"""Faults of a row: none, the number of its columns, a field. The number of columns is checked first."""
INTEGER_DIGITS, HOUR_DIGITS = 18, 8
FIRST_INTEGER_KEY = 1 << 62
"""The key of the integer 0."""


@njit(**JIT)
def parse_rows(data, start, separator, kinds_K, limits_K, words_KWL, values_BK):
    """Parse rows from byte `start` until `values_BK` is full, the data ends, or a row is malformed.

    `data` must end with a line feed. `separator` holds one or two bytes. `words_KWL` holds the bytes of each column's words,
    padded with zeros. Returns (rows parsed, byte after them, fault, faulty column).
    """
    position, row = start, 0
    while position < len(data) and row < len(values_BK):
        fault, column, after = _parse_row(data, position, separator, kinds_K, limits_K, words_KWL, row, values_BK)
        if fault != FINE:
            return row, position, fault, column
        position = after
        row += 1
    return row, position, FINE, 0


@njit(**JIT_PART)
def _parse_row(data, p, separator, kinds_K, limits_K, words_KWL, row, values_BK):
    """Parse one row; returns (fault, column, byte after the row)."""
    fault, faulty, column, width = FINE, 0, 0, len(separator)
    first, last = separator[0], separator[width - 1]
    while True:
        start = p
        while data[p] != LF and not (data[p] == first and data[p + width - 1] == last):
            p += 1
        ends = data[p] == LF
        stop = p - 1 if ends and p > start and data[p - 1] == CR else p
        if column < len(kinds_K) and fault == FINE and kinds_K[column] != SKIP:
            if kinds_K[column] == WORD:
                fine, value = _word(data, start, stop, words_KWL, column)
            else:
                fine, value = _number(data, start, stop, kinds_K[column], limits_K[column])
            values_BK[row, column] = value
            if not fine:
                fault, faulty = FIELD, column
        column += 1
        if ends:
            return (COLUMNS, 0, p + 1) if column != len(kinds_K) else (fault, faulty, p + 1)
        p += width


@njit(**JIT_PART)
def _word(data, start, stop, words_KWL, column):
    """Return (whether the field is one of the column's words, its place among them)."""
    for w in range(words_KWL.shape[1]):
        length = 0
        while length < words_KWL.shape[2] and words_KWL[column, w, length] != 0:
            length += 1
        same = length == stop - start and length > 0
        for i in range(length if same else 0):
            same = same and words_KWL[column, w, i] == data[start + i]
        if same:
            return True, w
    return False, 0


@njit(**JIT_PART)
def _number(data, start, stop, kind, limit):
    """Return (whether the field follows the rule of its kind, its number)."""
    length = stop - start
    if kind == HEX_KEY:
        value, fine = _digits(data, start, stop, 16)
        return fine and length <= HEX_DIGITS, value + 1 if length else 0
    if kind == HOUR:
        value, fine = _digits(data, start, stop, 10)
        return fine and length == HOUR_DIGITS and _is_hour(value), value
    if kind == NUMBER:
        value, fine = _digits(data, start, stop, 10)
        return fine and 0 < length <= INTEGER_DIGITS and value <= limit, value
    negative = length > 0 and data[start] == MINUS
    value, fine = _digits(data, start + negative, stop, 10)
    fine = fine and length - negative <= INTEGER_DIGITS and not (negative and length == 1)
    key = FIRST_INTEGER_KEY + (-value if negative else value)
    return fine, key if length else 0


@njit(**JIT_PART)
def _is_hour(value):
    """Return whether YYMMDDHH is an hour of the years 2000 to 2099."""
    year, month, day, hour = value // 1000000, value // 10000 % 100, value // 100 % 100, value % 100
    days = 31
    if month == 4 or month == 6 or month == 9 or month == 11:
        days = 30
    elif month == 2:
        days = 29 if year % 4 == 0 else 28
    return 1 <= month <= 12 and 1 <= day <= days and hour < 24


@njit(**JIT_PART)
def _digits(data, start, stop, base):
    """Return (the number that the digits make, whether all are digits of the base)."""
    value, fine = 0, True
    for p in range(start, stop):
        digit = DIGITS[data[p]]
        fine = fine and digit < base
        value = value * base + digit
    return value, fine
