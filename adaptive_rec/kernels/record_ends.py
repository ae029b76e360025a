"""This kernel finds where records of a CSV text end, in pieces of any size. Plain twin: `reference/record_ends.py`.

A field that begins with a quotation mark may hold delimiters and line ends until the mark that closes it; a doubled mark stands
for one, and so does one after the escape character, where there is one. A record ends with LF, CRLF or CR.
"""

from __future__ import annotations

from numba import njit

from adaptive_rec.kernels.jit import JIT
from adaptive_rec.kernels.parse import CR, LF

FIELD_START, IN_FIELD, QUOTED, QUOTE_IN_QUOTED, AFTER_CR, ESCAPED = range(6)
"""States between two bytes. After a mark in a quoted field the next byte shows whether the field was closed; after the escape
character in one the next byte is a part of it."""
QUOTE = 34
NO_ESCAPE = -1
BACKSLASH = 92


@njit(**JIT)
def last_record_end(data, start, state, delimiter, escape):
    """Read on from byte `start` in a state, of data that begins with a record. `escape` may be NO_ESCAPE. Returns (byte after the
    last record that ends in between, the state at the end, bytes of the longest record that ends in between). Byte -1 and 0
    bytes: none ends."""
    end = -1
    begin = longest = 0
    for at in range(start, len(data)):
        byte = data[at]
        if state == QUOTED:
            if byte == QUOTE:
                state = QUOTE_IN_QUOTED
            elif byte == escape:
                state = ESCAPED
            continue
        if state == ESCAPED:
            state = QUOTED
            continue
        if state == AFTER_CR and byte != LF:
            end = at
            longest = max(longest, end - begin)
            begin = end
            state = FIELD_START
        if byte == LF:
            end = at + 1
            longest = max(longest, end - begin)
            begin = end
            state = FIELD_START
        elif byte == CR:
            state = AFTER_CR
        elif byte == delimiter:
            state = FIELD_START
        elif byte == QUOTE and (state == FIELD_START or state == QUOTE_IN_QUOTED):
            state = QUOTED
        else:
            state = IN_FIELD
    return end, state, longest


@njit(**JIT)
def judged(data, delimiter, escape, fields):
    """Read whole records as if marks were escaped by `escape`. Returns (faults, the records' ends in one number, the first
    record, from 0 on, with a backslash before a mark inside a quoted field, or -1). A fault is a record with another number of
    fields, a character after a closing mark, and a field that is open at the end."""
    state = FIELD_START
    faults = records = marks = 0
    first = -1
    ends = 0
    backslash = False
    for at in range(len(data)):
        byte = data[at]
        if state == QUOTED:
            if byte == QUOTE:
                state = QUOTE_IN_QUOTED
                if backslash and first < 0:
                    first = records
            elif byte == escape:
                state = ESCAPED
            backslash = byte == BACKSLASH and not backslash
            continue
        if state == ESCAPED:
            if byte == QUOTE and backslash and first < 0:
                first = records
            state, backslash = QUOTED, False
            continue
        backslash = False
        if state == AFTER_CR and byte != LF:
            ends += at * (records + 1)
            records, marks, state = records + 1, 0, FIELD_START
        if byte == LF or byte == CR:
            if state != AFTER_CR and marks != fields - 1 and not (fields > 1 and marks == 0 and state == FIELD_START):
                faults += 1
            if byte == LF:
                ends += (at + 1) * (records + 1)
                records, marks, state = records + 1, 0, FIELD_START
            else:
                state = AFTER_CR
        elif byte == delimiter:
            marks, state = marks + 1, FIELD_START
        elif byte == QUOTE and (state == FIELD_START or state == QUOTE_IN_QUOTED):
            state = QUOTED
        else:
            faults += state == QUOTE_IN_QUOTED
            state = IN_FIELD
    faults += state == QUOTED or state == ESCAPED
    return faults, ends, first


@njit(**JIT)
def doubled(data, delimiter, escape, out):
    """Write whole records with doubled marks in place of escaped ones into `out`, as long as they; returns the bytes written. The
    escape character stands for itself before other characters than itself and a mark."""
    state = FIELD_START
    to = 0
    for at in range(len(data)):
        byte = data[at]
        if state == ESCAPED:
            if byte == QUOTE:
                out[to - 1] = QUOTE
            if byte != escape:
                out[to] = byte
                to += 1
            state = QUOTED
            continue
        out[to] = byte
        to += 1
        if state == QUOTED:
            if byte == QUOTE:
                state = QUOTE_IN_QUOTED
            elif byte == escape:
                state = ESCAPED
        elif byte == delimiter or byte == LF or byte == CR:
            state = FIELD_START
        elif byte == QUOTE and (state == FIELD_START or state == QUOTE_IN_QUOTED):
            state = QUOTED
        else:
            state = IN_FIELD
    return to
