"""Whether the first line of a CSV or TSV file names its columns, or is a row like those below it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from adaptive_rec.data.tabular.bags import MISSING_WORDS

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
