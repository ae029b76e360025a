"""What a column of a file is to a model, by its name and its first values: dense, sparse or not used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptive_rec.data.tabular.bags import MISSING_WORDS
from adaptive_rec.data.tabular.calendar_numbers import calendar_unit
from adaptive_rec.data.tabular.reader import LARGEST
from adaptive_rec.data.tabular.text_kind import are_codes, are_thousands, header_kind, proposal, text_kind
from adaptive_rec.data.tabular.times import time_line
from adaptive_rec.data.tabular.values import INTEGER, is_list, numbers

if TYPE_CHECKING:
    import pyarrow as pa

LEAST_ROWS = 1000
"""Fewer rows do not show that a column is different in each of them."""
MANY_VALUES_RATIO = 0.2
"""Share of the rows with a value of their own above which a whole number is a quantity."""
LONG_TEXT = 60
ID_WORDS = frozenset(
    "id ids uid key code hash user item product movie film book isbn ad advertiser campaign creative banner session "
    "device zip postcode "
    "postal category cat brand shop store seller author query city country region state site page url ip type class genre "
    "sku asin "
    "customer visitor member client article song artist album track video channel group level status gender sex day "
    "weekday hour month "
    "position slot domain app model os browser language lang account partner publisher placement department aisle".split()
)
HEADER = re.compile(r"(.+):(token|token_seq|float|float_seq)")
"""RecBole's names of columns."""
TIME_WORDS = frozenset("time timestamp datetime date ts created updated unixtime utc dt at".split())


@dataclass
class Sample:
    """One column of the first rows."""

    name: str
    values: pa.Array
    """Without missing values."""
    rows: int
    distinct: int
    """Different values, words such as NA and null among them."""

    @property
    def words(self) -> set[str]:
        """The words of the column's name, in lower case."""
        parted = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", self.name)
        return set(re.split(r"[^a-z0-9]+", parted.lower()))


def present(column: pa.Array) -> pa.Array:
    """Return the values that are not missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.filter(pc.invert(pc.is_in(column, pa.array(MISSING_WORDS, column.type))))
    elif pa.types.is_floating(column.type):
        column = column.filter(pc.invert(pc.is_nan(column)))
    return column.drop_null()


def judge(sample: Sample) -> tuple[str, dict[str, Any], str]:
    """Return dense, sparse or unused, the column's settings in the schema, and why."""
    import pyarrow as pa

    kind, values = sample.values.type, sample.values
    if not len(values):
        return "unused", {}, f"it is empty in the first {sample.rows:,} rows"
    if pa.types.is_temporal(kind):
        return "unused", {}, "a time"
    if is_list(kind):
        return "sparse", {}, "lists of categories"
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "unused", {}, f"values of type {kind}"
    if pa.types.is_boolean(kind):
        return "sparse", {}, "true or false"
    if pa.types.is_integer(kind):
        return _judge_integers(sample, values.to_numpy(zero_copy_only=False), {})
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _judge_texts(sample)
    found = numbers(values)
    if found is None:
        return "unused", {}, f"values of type {kind}"
    return _judge_floats(sample, found.values_B)


def _judge_texts(sample: Sample) -> tuple[str, dict[str, Any], str]:
    import pyarrow.compute as pc

    values = sample.values
    is_id = _is_id(sample.words)
    if header := HEADER.fullmatch(sample.name):
        found = numbers(values) if header[2] == "float" else None
        if found is not None and _is_time(sample.words, found.values_B):
            return "unused", {}, "a time"
        if judged := header_kind(header[2], values):
            return judged[0], judged[1] | ({"name": header[1]} if judged[0] == "sparse" else {}), judged[2]
    if (
        pc.all(pc.match_substring_regex(values, INTEGER)).as_py()
        and not pc.any(pc.match_substring(values, ".")).as_py()
    ):
        as_numbers = numbers(values)
        if as_numbers is not None and np.abs(as_numbers.values_B).max() < 2**63:
            return _judge_integers(sample, as_numbers.values_B, {"type": "integer"})
        if as_numbers is not None:  # whole numbers beyond 64 bits are texts
            return _judge_words(sample)
    found = numbers(values)
    if found is not None and not found.bad_B.any() and not _leading_zeros(values):
        if pc.all(pc.is_in(pc.utf8_lower(values), _words("true", "false"))).as_py():
            return "sparse", {}, "true or false"
        if are_thousands(values):
            return text_kind(sample.name, values, is_id, sample.distinct) or _judge_words(sample)
        if are_codes(values, is_id):
            return _judge_words(sample)
        kind, column, why = _judge_floats(sample, found.values_B)
        if kind == "sparse" and not pc.all(pc.match_substring_regex(values, INTEGER)).as_py():
            return _judge_words(sample)
        return kind, column, why
    return text_kind(sample.name, values, is_id, sample.distinct) or _judge_words(sample)


def _judge_words(sample: Sample) -> tuple[str, dict[str, Any], str]:
    import pyarrow.compute as pc

    values, distinct = sample.values, sample.distinct
    lists = proposal(sample.name, values)
    if len(values) >= LEAST_ROWS and distinct == len(values):
        return "unused", {}, "its texts are all different" + lists
    if pc.mean(pc.utf8_length(values)).as_py() > LONG_TEXT and distinct > len(values) / 2:
        return "unused", {}, "long texts" + lists
    return "sparse", {}, f"{_values(distinct)} in the first {sample.rows:,} rows{lists}"


def _judge_integers(sample: Sample, values: Any, column: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    distinct, words = sample.distinct, sample.words
    if len(values) > 1 and (np.diff(values) == 1).all() and len(values) == sample.rows:
        return "unused", {}, "it numbers the rows"
    if _is_time(words, values):
        return "unused", {}, "a time"
    if time := _calendar_time(sample, values):
        return "unused", {}, time
    if len(values) >= LEAST_ROWS and distinct == len(values):
        return "unused", {}, "its numbers are all different"
    why = f"{_values(distinct)} in the first {sample.rows:,} rows"
    if _is_id(words) or distinct <= max(100, MANY_VALUES_RATIO * len(values)):
        return "sparse", column, why
    return "dense", {"transform": "standard"}, f"a quantity: {why}"


def _judge_floats(sample: Sample, values: Any) -> tuple[str, dict[str, Any], str]:
    finite = values[np.isfinite(values)]
    if not len(finite) or np.abs(finite).max() > LARGEST:
        return "unused", {}, "numbers beyond 32 bits"
    whole = len(finite) == len(values) and (finite == np.floor(finite)).all() and np.abs(finite).max() < 2**53
    if whole and (time := _calendar_time(sample, finite)):
        return "unused", {}, time
    if whole and _is_id(sample.words):
        return (
            "sparse",
            {"type": "integer"},
            "whole numbers, written as floats because of gaps: they are read as integers",
        )
    return "dense", {"transform": "standard"}, f"numbers from {finite.min():g} to {finite.max():g}"


def _calendar_time(sample: Sample, values: Any) -> str:
    """Return why whole numbers are dates such as 20141021; nothing where they are none, or have a name of ids."""
    if _is_id(sample.words - {"day", "hour", "month"}):
        return ""
    unit = calendar_unit(values.astype(np.int64))
    return f"a time; to have its order: {time_line(sample.name, unit)}" if len(unit) > len("yyyymm") else ""


def _is_id(words: set[str]) -> bool:
    """Whether a name with these words is one of ids."""
    return bool(words & ID_WORDS) or any(word.endswith("id") for word in words)


def _is_time(words: set[str], values: Any) -> bool:
    """Whether whole numbers are Unix times, in seconds to nanoseconds, or dates like 20261123."""
    if not words & TIME_WORDS:
        rising = len(values) >= LEAST_ROWS and (np.diff(values) >= 0).all()
        return bool(rising and 1e9 <= values.min() and values.max() < 2.2e9)
    return bool(values.min() >= 1e7)


def _leading_zeros(values: pa.Array) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(values, r"^[-+]?0[0-9]")).as_py())


def _words(*words: str) -> pa.Array:
    import pyarrow as pa

    return pa.array(words)


def _values(distinct: int) -> str:
    return f"{distinct:,} value" + "s" * (distinct != 1)
