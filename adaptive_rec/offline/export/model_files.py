"""CSV and TSV files as columns for an exported model. Part of its ``model.py``."""

import csv
import gzip
import io
import re
import zlib
from itertools import chain


def table_of(path, delimiter="", encoding="utf-8", columns=(), label="", escape=""):
    """Return the columns of a CSV or TSV file, plain or .gz, whose first line names them unless they are given; the label, by
    default the first of those given, may be left out. Raises ValueError where it is none."""
    opened = gzip.open if path.endswith(".gz") else open
    try:
        with opened(path, "rt", newline="", encoding=encoding.replace("utf-8", "utf-8-sig")) as lines:
            first = next(lines, "")
            mark = delimiter if delimiter and delimiter in first else max(delimiter + ",\t;|", key=first.count)
            names, *rows = rows_of("".join(chain([first], lines)), mark, escape) or [[]]
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except (UnicodeError, csv.Error, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a CSV or TSV file in {encoding}, plain or .gz, it is none: {error}") from None
    if columns and names and names != list(columns):
        left_out = (label or columns[0]) if len(columns) - len(names) == 1 else ""
        names, rows = [name for name in columns if name != left_out], [names, *rows]
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise ValueError(f"{path}, row {number}: must have {len(names)} fields between {mark!r}, got {len(row)}")
    if not rows:
        raise ValueError(f"{path} must name its columns in the first line and hold at least one row, it has none")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def rows_of(text, mark, escape):
    """Return the fields of each row. Where it is not known whether a backslash escapes marks, both ways are tried."""
    if escape not in ("", '"'):
        return records(doubled(text, mark, escape), mark)
    if escape or '\\"' not in text:
        return records(text, mark)
    ways = [unbroken(text, mark), unbroken(doubled(text, mark, "\\"), mark)]
    if None not in ways and len(ways[0]) != len(ways[1]):
        raise csv.Error("a backslash before a mark may or may not escape it; write marks inside fields twice")
    return next((way for way in ways if way is not None), None) or records(text, mark)


def records(text, mark, strict=False):
    return [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=strict) if row]


def unbroken(text, mark):
    """Return the rows of a text that breaks no rule, else None."""
    try:
        rows = records(text, mark, strict=True)
    except csv.Error:
        return None
    return rows if all(len(row) == len(rows[0]) for row in rows) else None


def doubled(text, mark, escape):
    """Return a text with doubled quotation marks in place of those after the escape character, within quoted fields."""
    begin, sign = f"(?:^|(?<=[\\r\\n{re.escape(mark)}]))", re.escape(escape)
    inside = re.compile(f'{begin}"(?:[^"{sign}]|{sign}.|"")*', re.DOTALL)
    pair = re.compile(f'{sign}(["{sign}])')
    return inside.sub(lambda field: pair.sub(lambda two: '""' if two[1] == '"' else two[1], field[0]), text)
