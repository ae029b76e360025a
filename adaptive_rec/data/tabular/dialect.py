r"""How quotation marks inside quoted fields are written: doubled (RFC 4180), or after a backslash (Spark's default).

Where a quoted field has a backslash before a mark, one of the two readings breaks rows, or merges them: ``"24\""`` is a whole
field of one, and the other goes on to the next mark. Both readings are tried, and counted by what no writer would write.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import DataError
from adaptive_rec.kernels.record_ends import (
    BACKSLASH,
    FIELD_START,
    NO_ESCAPE,
    QUOTE,
    doubled,
    judged,
    last_record_end,
)


def code_of(escape: str) -> int:
    """Return an escape character as kernels take it: none where marks are doubled."""
    return NO_ESCAPE if escape in ("", chr(QUOTE)) else ord(escape)


def has_two_readings(text: bytes) -> bool:
    """Whether there is a backslash before a mark: only then the two readings may differ."""
    return b"\\" in text and b'\\"' in text  # one character is searched for many times faster than two


def find_escape(start: bytes, encoding: str, delimiter: str) -> str:
    """Return the escape character by the beginning of a file: a backslash where marks must be meant so; else empty."""
    if encoding not in ("utf-8", "ascii", "latin-1", "iso-8859-1", "cp1252") or not has_two_readings(start):
        return ""
    mark, data_N = ord(delimiter), np.frombuffer(start, np.uint8)
    found = []
    for escape in (NO_ESCAPE, BACKSLASH):
        end = max(last_record_end(data_N, 0, FIELD_START, mark, escape)[0], 0)
        whole_N = data_N[:end]
        faults, _, _ = judged(whole_N, mark, escape, _fields_of_first(whole_N, mark))
        found.append((faults, len(data_N) - end))  # a reading that goes wrong may not come to an end
    doubled_ones, escaped_ones = found
    return "\\" if escaped_ones < doubled_ones else ""


def _fields_of_first(data_N: NDArray[np.uint8], mark: int) -> int:
    """Return the number of fields of a first line without quotation marks, or with plain ones."""
    line = data_N.tobytes().split(b"\n", 1)[0]
    inside, fields = False, 1
    for byte in line:
        inside ^= byte == QUOTE
        fields += byte == mark and not inside
    return fields


def check_escape(path: Path, text: bytes, delimiter: str, fields: int, first_row: int) -> None:
    """Raise DataError where whole records, read with doubled marks, are broken or merged by marks after a backslash. `first_row`:
    the number of the first record."""
    data_N, mark = np.frombuffer(text, np.uint8), ord(delimiter)
    faults, ends, record = judged(data_N, mark, NO_ESCAPE, fields)
    if record < 0:
        return
    others, other_ends, _ = judged(data_N, mark, BACKSLASH, fields)
    if others < faults or (others == faults == 0 and ends != other_ends):
        raise DataError(
            f"{path}, row {first_row + record}: a mark inside a field in quotation marks must be written twice, got one after a "
            'backslash, which could merge rows; write escape = "\\\\" under [file] of the schema if a backslash escapes marks '
            "(Spark's default), or escape = '\"' if it is a part of the text"
        )


def as_doubled(text: bytes, delimiter: str, escape: int) -> bytes:
    """Return whole records with doubled marks in place of escaped ones."""
    if escape.to_bytes(1, "little") not in text:
        return text
    out_N = np.empty(len(text), np.uint8)
    size = doubled(np.frombuffer(text, np.uint8), ord(delimiter), escape, out_N)
    return out_N[:size].tobytes()
