"""Texts that hold several values: divided by a separator, or lists as JSON, Python and NumPy write them.

A list in brackets (`[]`, `()` or `{}`) has commas between its values, or spaces where all are numbers or stand in
quotation marks. A value without quotation marks may be missing (`null`, `None`, `nan`), and a whole number may be
written as a float.
"""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

MISSING_WORDS = tuple("|NA|N/A|n/a|<NA>|#N/A|NaN|nan|-nan|NaT|NULL|Null|null|None|none|\\N".split("|"))
"""Fields of a CSV file that stand for a missing number, or for a missing list."""
CLOSING = {"[": "]", "(": ")", "{": "}"}
_BARE, _QUOTED = r"""[^\s,"'\\\[\](){}:=.][^\s,"'\\\[\](){}:=]*""", r""""[^",\\\[\](){}]*"|'[^',\\\[\](){}]*'"""
_NUMBER, _WORD = r"-?[0-9]+\.?[0-9]*", r"""(?:"[^"\s,\\\[\](){}]*"|'[^'\s,\\\[\](){}]*')"""


def _in_brackets(body: str) -> str:
    return rf"^\s*(?:\[\s*{body}\s*\]|\(\s*{body}\s*\)|\{{\s*{body}\s*\}})\s*$"


BY_COMMAS = _in_brackets(rf"(?:(?:{_BARE}|{_QUOTED})(?:\s*,\s*(?:{_BARE}|{_QUOTED}))*)?")
BY_SPACES = _in_brackets(rf"(?:{_NUMBER}(?:\s+{_NUMBER})+|{_WORD}(?:\s+{_WORD})+)")
"""Lists that Arrow can divide, without escapes and without brackets or commas in quotation marks."""
OUTER = r"^\s*[\[({]\s*|\s*[\])}]\s*$"
CALL = re.compile(r"(?:array|frozenset|set|deque)\((.*?)(?:,\s*dtype=[^()]*)?\)", re.DOTALL)
NUMPY_SCALAR = re.compile(r"\bnp\.\w+\(([^()]*)\)")
PART = re.compile(
    r"""\s*(?:("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*(?:,|$|(?=["']))|([^,\s"'\[\]{}][^,"\[\]{}]*?)\s*(?:,|$)|,)""",
    re.DOTALL,
)
ESCAPED = re.compile(
    r"""(?:[^\\]|\\(?:[\\'"abfnrtv\n]|[0-3]?[0-7]{1,2}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}))*""", re.DOTALL
)
PLAIN_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
WHOLE_FLOAT = re.compile(r"(-?[0-9]+)\.0*")


def parse_list(text: str) -> list[str | None]:
    """Return the values of a list that a text holds, None for a missing one. Raises ValueError where it holds none."""
    text = text.strip()
    if found := CALL.fullmatch(text):
        text = found[1].strip() or "[]"
    if "np." in text:
        text = NUMPY_SCALAR.sub(r"\1", text)
    if len(text) < 2 or CLOSING.get(text[0]) != text[-1]:
        raise ValueError("it is not in brackets")
    body, at, parts = text[1:-1].strip(), 0, []
    while at < len(body):
        found = PART.match(body, at)
        if found is None:
            raise ValueError("it is no list of values")
        at = found.end()
        parts.append(found[1] or found[2] or "null")
    if len(parts) == 1 and "," not in body and body[0] not in "\"'":
        words = body.split()
        if all(PLAIN_NUMBER.fullmatch(word) or word in MISSING_WORDS or word == "..." for word in words):
            parts = words
    if "..." in parts:
        raise ValueError("it was shortened")
    if text[0] == "{" and any(":" in part or "=" in part for part in parts if part[0] not in "\"'"):
        raise ValueError("it is an object")
    return [value_of(part) for part in parts]


def value_of(part: str) -> str | None:
    """Return a value of a list as a text, None for a missing one. Raises ValueError."""
    if part[:1] in ('"', "'"):
        return _unquoted(part)
    if part in MISSING_WORDS:
        return None
    if part in ("True", "False"):
        return part.lower()
    found = WHOLE_FLOAT.fullmatch(part)
    return found[1] if found else part


def _unquoted(part: str) -> str:
    if "\\" not in part:
        return part[1:-1]
    try:
        try:
            value = json.loads(part, strict=False)
        except ValueError:
            value = ast.literal_eval(part if ESCAPED.fullmatch(part) else "")
        value.encode()
    except (SyntaxError, ValueError):
        raise ValueError("it has an escape that is none") from None
    return str(value)


def lists_of(array: pa.Array, where: str) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return texts (B) as lists of texts, and which of them hold no list; a column of lists is returned as it is. An
    empty text and words such as null are null lists. Raises DataError, which begins with `where`, for a column of
    another type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bad_B = np.zeros(len(array), dtype=bool)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.list_(pa.string())), bad_B
    if not is_text(array.type):
        if pa.types.is_list(array.type):
            return array, bad_B
        raise DataError(f'{where}: must hold lists or texts such as "[27, 9]", got {array.type}')
    kind = pa.list_(pa.string())
    absent = pc.or_(array.is_null(), pc.is_in(pc.utf8_trim_whitespace(array), pa.array(MISSING_WORDS, array.type)))
    ways_B = np.full(len(array), 3)
    ways_B[_true(pc.match_substring_regex(array, BY_SPACES))] = 2
    ways_B[_true(pc.match_substring_regex(array, BY_COMMAS))] = 1
    ways_B[_true(absent)] = 0
    rows = [np.flatnonzero(ways_B == way) for way in range(4)]
    divided = [
        _values(pc.split_pattern_regex(pc.replace_substring_regex(array.take(pa.array(of)), OUTER, ""), between))
        for of, between in ((rows[1], r"\s*,\s*"), (rows[2], r"\s+"))
    ]
    others: list[list[str | None] | None] = []
    for row, text in zip(rows[3], array.take(pa.array(rows[3])).to_pylist(), strict=True):
        try:
            others.append(parse_list(text))
        except ValueError:
            others.append(None)
            bad_B[row] = True
    parts = pa.concat_arrays([pa.nulls(len(rows[0]), kind), *divided, pa.array(others, kind)])
    return parts.take(pa.array(np.argsort(np.concatenate(rows), kind="stable"))), bad_B


def is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind))


def _true(found: Any) -> NDArray[np.bool_]:
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), dtype=bool)


def _values(lists: Any) -> pa.Array:
    """Return lists of parts as lists of values. The text of an empty list was divided into one empty part."""
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = lists.values.dictionary_encode()
    values = pa.array([value_of(part) for part in encoded.dictionary.to_pylist()], pa.string())
    made = pa.ListArray.from_arrays(lists.offsets.cast(pa.int32()), values.take(encoded.indices))
    first = pc.list_element(lists, 0) if len(lists) else pa.array([], pa.string())
    empty = pc.and_(pc.equal(pc.list_value_length(lists), 1), pc.equal(first, ""))
    if not pc.any(empty).as_py():
        return made
    return pc.if_else(empty, pa.scalar([], made.type), made)


def divided(array: pa.Array, separator: str, where: str) -> pa.Array:
    """Return texts divided at a separator as lists of texts; a text in square brackets that holds a list is that list,
    as is a value of a column of lists. Raises DataError, which begins with `where`, for a column of another type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(array.type):
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.list_(pa.string()))
    if not is_text(array.type):
        raise DataError(f"{where}: must hold texts to be divided at {separator!r}, got {array.type}")
    array = pc.if_else(pc.equal(array, ""), pa.scalar(None, array.type), array)
    parts = pc.split_pattern(array, separator).cast(pa.list_(array.type))
    in_brackets_B = _true(pc.and_(pc.starts_with(array, "["), pc.ends_with(array, "]")))
    if not in_brackets_B.any():
        return parts
    rows = np.flatnonzero(in_brackets_B)
    lists, bad_R = lists_of(array.take(pa.array(rows)), where)
    place_B = np.arange(len(array))
    place_B[rows[~bad_R]] = len(array) + np.flatnonzero(~bad_R)
    return pa.concat_arrays([parts, lists.cast(parts.type)]).take(pa.array(place_B))
