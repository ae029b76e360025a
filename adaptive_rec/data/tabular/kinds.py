"""The types of sparse columns' values: what each one takes, and how equal values of other types and spellings become one."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.tabular.bags import PLAIN_NUMBER
from adaptive_rec.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

Rule = Literal["", "integer", "text", "whole", "boolean", "float"]
INTEGER = r"^(0|-?[1-9][0-9]*)(\.0+)?$"
"""A whole number as a category: one with leading zeros or a plus sign is a text of its own, which must not fall together with
another."""
EXPONENT = r"^-?[0-9]+(\.[0-9]*[eE]\+?|[eE]\+)[0-9]+$"
"""A whole number as programs write a float: 1.2345678E7, 1e+16. A code such as 3e8 is none."""
FLOAT_DIGITS, SHORT_FLOAT_DIGITS = 1 << 53, 1 << 24
"""Whole numbers from here on are not told apart by floats of 64 and of 32 bits."""
MOST_DIGITS = 20
"""Characters of the longest whole number of 64 bits, its sign included."""
TRUTHS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
"""What a boolean may be spelled like, in lower case."""
WHOLE = "must be a whole number of 64 bits above -2^63"
RULES = {
    "": WHOLE,
    "integer": f'{WHOLE}, as its type in the schema says (type = "text" takes every value)',
    "text": "must be a text in UTF-8, or a whole number",
    "whole": "must be a whole number without leading zeros, which floats from 2^53 on are not, as its type in the schema says",
    "boolean": "must be true or false (or 1 or 0), as its type in the schema says",
    "float": "must be a finite number, and no whole one from 2^24 on in a float of 32 bits, as its type in the schema says",
}
"""What a value must be, by the type that the schema gives its column."""


def natural_kind(found: pa.DataType) -> Rule | None:
    """Return the type of a column's values where the schema gives none, empty for null and bytes, None for values that are no
    categories."""
    import pyarrow as pa

    of = pa.types
    if of.is_integer(found) or of.is_floating(found) or of.is_decimal(found):
        return "integer"
    if of.is_boolean(found):
        return "boolean"
    if of.is_string(found) or of.is_large_string(found):
        return "text"
    return "" if of.is_null(found) or of.is_binary(found) else None


def as_kind(distinct: pa.Array, kind: Rule, where: str) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return distinct values (U,) as a type has them, and which of them it does not take, in whose place any value stands. Two
    spellings of one value become equal. Raises DataError, which begins with `where`, for an array that holds no categories."""
    import pyarrow as pa

    found: Any = distinct.type
    natural = natural_kind(found)
    if natural is None:
        raise DataError(f"{where}: must hold integers, booleans or texts, or lists of them, got {found}")
    if not len(distinct) or not natural and not kind:
        return distinct, np.zeros(len(distinct), dtype=bool)
    if pa.types.is_binary(found):
        distinct, bad_U = _decoded(distinct)
        converted, more_U = as_kind(distinct, kind, where)
        return converted, bad_U | more_U
    values, taken = CONVERSIONS[kind or natural](distinct)
    bad_U = ~taken.to_numpy(zero_copy_only=False) if isinstance(taken, pa.Array) else ~taken
    return values, bad_U


def remedy(kind: str, value: Any, column: str) -> str:
    """Return what to write into the schema for a column with a value that its type does not take; empty where nothing helps."""
    number = _number(value)
    if kind in ("", "integer") and isinstance(value, float) and number is not None and abs(number) >= FLOAT_DIGITS:
        wanted, why = "float", "compares ids as floats, which have lost the last digits of such numbers"
    elif kind in ("", "integer") and number is not None and number == number.to_integral_value():
        wanted, why = "whole", "takes whole numbers of any size"
    elif kind in ("", "integer", "whole") and number is not None and not isinstance(value, str):
        wanted, why = "float", "takes every number; or make it a dense column"
    elif kind != "text" and isinstance(value, str):
        wanted, why = "text", "takes every value"
    else:
        return ""
    return f'; {{ column = "{column}", type = "{wanted}" }} under sparse in the schema {why}'


def _number(value: Any) -> Decimal | None:
    """Return a finite number of whatever type, or of a text, None for what is none."""
    try:
        found = Decimal(str(value).strip())
    except InvalidOperation:
        return None
    return found if found.is_finite() and abs(found.adjusted()) < 1000 else None


def _decoded(distinct: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return bytes as texts, and which of them are none in UTF-8."""
    import pyarrow as pa

    try:
        return distinct.cast(pa.string()), np.zeros(len(distinct), dtype=bool)
    except pa.ArrowException:
        texts = [_utf8(value) for value in distinct.to_pylist()]
        return pa.array([text or "" for text in texts]), np.array([text is None for text in texts])


def _utf8(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _as_integers(distinct: pa.Array) -> tuple[pa.Array, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    found: Any = distinct.type
    if pa.types.is_uint64(found):
        fits = pc.less_equal(distinct, pa.scalar(2**63 - 1, pa.uint64()))
        return pc.if_else(fits, distinct, pa.scalar(0, pa.uint64())).cast(pa.int64()), fits
    if pa.types.is_integer(found) or pa.types.is_boolean(found):
        return distinct.cast(pa.int64()), np.ones(len(distinct), dtype=bool)
    if pa.types.is_floating(found):
        values_U, whole_U = _whole_floats(distinct)
        return pa.array(values_U), whole_U
    digits, right = _as_digits(distinct)
    try:
        return digits.cast(pa.int64()), right
    except pa.ArrowException:  # one has more than 64 bits
        fits_U = np.array([len(text) <= MOST_DIGITS and -(2**63) <= int(text) < 2**63 for text in digits.to_pylist()])
        return pc.if_else(pa.array(fits_U), digits, "0").cast(pa.int64()), right & fits_U


def _as_digits(distinct: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return whole numbers of any size as their digits, and which values are some."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: Any = distinct.type
    if pa.types.is_boolean(found):
        distinct = distinct.cast(pa.int8())
    elif pa.types.is_floating(found):
        values_U, whole_U = _whole_floats(distinct)
        return pa.array(values_U).cast(pa.string()), whole_U
    texts = distinct.cast(pa.string())
    if pa.types.is_boolean(found) or pa.types.is_integer(found):
        return texts, np.ones(len(texts), dtype=bool)
    texts = pc.utf8_trim_whitespace(texts)
    if pa.types.is_decimal(found):
        texts = pc.replace_substring_regex(texts, r"^0E.*$", "0")  # a zero with many digits behind the point
    right_U = pc.match_substring_regex(texts, INTEGER).to_numpy(zero_copy_only=False)
    digits = pc.replace_substring_regex(pc.if_else(pa.array(right_U), texts, "0"), r"\.0+$", "")
    if right_U.all() or not (floats_U := pc.match_substring_regex(texts, EXPONENT).to_numpy(zero_copy_only=False)).any():
        return digits, right_U
    listed, right_U = digits.to_pylist(), right_U.copy()
    for u in np.flatnonzero(floats_U):
        number = _number(texts[int(u)].as_py())
        if number is not None and abs(number) < FLOAT_DIGITS and number == number.to_integral_value():
            listed[u], right_U[u] = str(int(number)), True
    return pa.array(listed, pa.string()), right_U


def _as_texts(distinct: pa.Array) -> tuple[pa.Array, Any]:
    import pyarrow as pa

    if natural_kind(distinct.type) == "integer":
        return _as_digits(distinct)
    return distinct.cast(pa.string()), np.ones(len(distinct), dtype=bool)


def _as_booleans(distinct: pa.Array) -> tuple[pa.Array, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_boolean(distinct.type):
        return distinct, np.ones(len(distinct), dtype=bool)
    if natural_kind(distinct.type) == "text":
        words = pc.replace_substring_regex(pc.utf8_lower(pc.utf8_trim_whitespace(distinct)), r"^([01])\.0+$", r"\1")
    else:
        digits, right_U = _as_digits(distinct)
        words = pc.if_else(pa.array(right_U), digits, "")
    place = pc.index_in(words, pa.array(list(TRUTHS)))
    return pa.array(list(TRUTHS.values())).take(pc.fill_null(place, 0)), pc.is_valid(place)


def _as_floats(distinct: pa.Array) -> tuple[pa.Array, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    found: Any = distinct.type
    if pa.types.is_boolean(found):
        distinct = distinct.cast(pa.int8())
    if natural_kind(found) == "text" or pa.types.is_decimal(found):
        texts = pc.utf8_trim_whitespace(distinct.cast(pa.string()))
        right = pc.match_substring_regex(texts, f"^{PLAIN_NUMBER.pattern}$")
        distinct = pc.replace_substring_regex(pc.if_else(right, texts, "inf"), r"^\+", "")
    elif pa.types.is_float32(found):
        distinct = pa.array([_widened(value) for value in distinct.to_numpy(zero_copy_only=False)], pa.float64())
    values_U = distinct.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) + 0.0  # -0 is 0
    finite_U = np.isfinite(values_U)
    return pa.array(np.where(finite_U, values_U, 0.0)), finite_U


def _widened(value: np.float32) -> float:
    """Return a float of 32 bits as a text has it; infinity for a whole number that several ones would have become."""
    return float(str(value)) if abs(value) < SHORT_FLOAT_DIGITS else np.inf


def _whole_floats(distinct: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return floats as whole numbers, and which of them are some, below what their bits tell apart."""
    import pyarrow as pa

    most = SHORT_FLOAT_DIGITS if pa.types.is_float32(distinct.type) else FLOAT_DIGITS
    values_U = distinct.to_numpy(zero_copy_only=False).astype(np.float64)
    whole_U = np.isfinite(values_U) & (values_U == np.floor(values_U)) & (np.abs(values_U) < most)
    return np.where(whole_U, values_U, 0.0).astype(np.int64), whole_U


CONVERSIONS: dict[str, Callable[[pa.Array], tuple[pa.Array, Any]]] = {
    "integer": _as_integers,
    "text": _as_texts,
    "whole": _as_digits,
    "boolean": _as_booleans,
    "float": _as_floats,
}
