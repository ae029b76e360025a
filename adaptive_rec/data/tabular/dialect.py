r"""How quotation marks inside quoted fields are written: doubled (RFC 4180), or after a backslash (Spark's default).

Where a quoted field has a backslash before a mark, one of the two readings breaks rows, or merges them: ``"24\""`` is a whole
field of one, and the other goes on to the next mark. Both readings are tried, and counted by what no writer would write.

And whether the first line names the columns, or is a row like those below it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.tabular.bags import MISSING_WORDS
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

NUMBER = re.compile(r"[-+]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][-+]?[0-9]+)?")
DATE = re.compile(r"[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}([T ].*)?|[0-9]{1,2}[-/.][0-9]{1,2}[-/.][0-9]{2,4}([T ].*)?")
TRUTH = re.compile(r"true|false", re.IGNORECASE)
CODE = re.compile(r"(?=.*[0-9])[0-9A-Za-z._:/+=-]{6,}")
"""Texts such as hexadecimal ids."""
TYPES = (NUMBER, DATE, TRUTH, CODE)
LEAST_ROWS = 2
TYPED_RATIO = 0.95
"""Share of a column's values that make its type."""
FEW_RATIO = 0.2
"""Different texts among a column's values up to which one that is not among them is no value."""
SHOWN_COLUMNS, SHOWN_LINE = 6, 60
DIVIDED_BY_TWO = re.compile(r"[^:]+(::[^:]*){2,}")


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


def looks_like_a_row(path: Path, fields: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the fault of a first line that looks like the rows below it, with the way out; empty where it names the columns."""
    if len(fields) == 1 and DIVIDED_BY_TWO.fullmatch(fields[0]):
        return (
            f"{path} must have one character between fields, its first line has '::' between them; write it with another one: "
            f"sed 's/::/\\t/g' {path.name} > {path.stem}.tsv, and names of its columns as the first line"
        )
    rows = [row for row in rows if len(row) == len(fields)]
    if len(rows) < LEAST_ROWS or not is_row(fields, list(zip(*rows, strict=True))):
        return ""
    names = ", ".join(f'"{name}"' for name in ("label", "user", "item", "c4", "c5", "c6")[: len(fields)])
    more = ", ..." if len(fields) > SHOWN_COLUMNS else ""
    line = ascii(",".join(fields))[1:-1][:SHOWN_LINE]
    return (
        f"{path}, line 1: must name the columns, got {line}, which looks like a row; add names as its first line, or write "
        f"columns = [{names}{more}], a name for each of {len(fields)} fields, under [file] of a schema that --schema gives: "
        "beside --label it needs no more"
    )


def is_row(fields: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Whether all fields of a first line have the type of the column below, or recur there, and not all are missing."""
    if [field.strip() for field in fields] in _counts(len(fields)) and not all(
        field in column for field, column in zip(fields, columns, strict=True)
    ):
        return False  # names that count the columns, as pandas gives them
    values = [[value.strip() for value in column] for column in columns]
    verdicts = [_is_value(field.strip(), column) for field, column in zip(fields, values, strict=True)]
    return all(verdict is not False for verdict in verdicts) and any(verdicts)


def _counts(columns: int) -> list[list[str]]:
    return [[str(number) for number in range(first, first + columns)] for first in (0, 1)]


def _is_value(field: str, column: Sequence[str]) -> bool | None:
    """Whether a field is one of its column's; None where that cannot be said."""
    present = [value for value in column if value not in MISSING_WORDS]
    if field in MISSING_WORDS:
        return None
    if field in present:
        return True
    if not present:
        return False if field.isidentifier() else None
    for kind in TYPES:
        if sum(bool(kind.fullmatch(value)) for value in present) >= TYPED_RATIO * len(present):
            return bool(kind.fullmatch(field))
    return None if len(set(present)) > FEW_RATIO * len(present) else False
