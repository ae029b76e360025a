"""This kernel finds where records of a CSV text end, in pieces of any size. Plain twin: `reference/record_ends.py`.

A field that begins with a quotation mark may hold delimiters and line ends until the mark that closes it; a doubled mark stands
for one. A record ends with LF, CRLF or CR.
"""

from __future__ import annotations

from numba import njit

from adaptive_rec.kernels.jit import JIT
from adaptive_rec.kernels.parse import CR, LF

FIELD_START, IN_FIELD, QUOTED, QUOTE_IN_QUOTED, AFTER_CR = range(5)
"""States between two bytes. After a mark in a quoted field the next byte shows whether the field was closed."""
QUOTE = 34


@njit(**JIT)
def last_record_end(data, start, state, delimiter):
    """Read on from byte `start` in a state, of data that begins with a record. Returns (byte after the last record that ends in
    between, the state at the end, bytes of the longest record that ends in between). Byte -1 and 0 bytes: none ends."""
    end = -1
    begin = longest = 0
    for at in range(start, len(data)):
        byte = data[at]
        if state == QUOTED:
            if byte == QUOTE:
                state = QUOTE_IN_QUOTED
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
