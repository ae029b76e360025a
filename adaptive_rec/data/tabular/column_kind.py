"""What a column of a file is to a model, by its name and its first values: dense, sparse or not used."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adaptive_rec.data.tabular.kinds import INTEGER
from adaptive_rec.data.tabular.list_kind import proposal
from adaptive_rec.data.tabular.matches import FIRST, all_match
from adaptive_rec.data.tabular.number_kind import (
    Told,
    all_differ,
    counted_values,
    is_time,
    judge_decimals,
    judge_floats,
    judge_large,
    judge_lists,
    judge_whole,
)
from adaptive_rec.data.tabular.sample import Judged, Sample, present
from adaptive_rec.data.tabular.text_kind import are_codes, are_thousands, header_kind, text_kind
from adaptive_rec.data.tabular.values import is_list, numbers

if TYPE_CHECKING:
    import pyarrow as pa

LONG_TEXT = 60
HEADER = re.compile(r"(.+):(token|token_seq|float|float_seq)")
"""RecBole's names of columns."""


def judge(sample: Sample) -> Judged:
    """Return dense, sparse or unused, the column's settings in the schema, and why."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, values = sample.values.type, sample.values
    if not len(values):
        return "unused", {}, f"it is empty in the first {sample.rows:,} rows"
    if pa.types.is_temporal(kind):
        return "unused", {}, "a time"
    if is_list(kind):
        return judge_lists(sample)
    if pa.types.is_nested(kind):
        return "unused", {}, f"values of type {kind}"
    if pa.types.is_binary(kind):
        return _judge_bytes(sample)
    if pa.types.is_boolean(kind):
        return "sparse", {"type": "boolean"}, "true or false"
    if pa.types.is_uint64(kind) and pc.max(values).as_py() >= 1 << 63:
        return judge_large(sample)
    if pa.types.is_integer(kind):
        return judge_whole(sample, values.to_numpy(zero_copy_only=False), {})
    if pa.types.is_string(kind):
        return _judge_texts(sample)
    if pa.types.is_decimal(kind):
        return judge_decimals(sample)
    found = sample.numbers
    if found is None:
        return "unused", {}, f"values of type {kind}"
    return judge_floats(sample, found.values_B)


def _judge_bytes(sample: Sample) -> Judged:
    """Judge bytes, which are texts where they are in UTF-8: some programs mark no column as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        texts, unique = sample.values.cast(pa.string()), sample.unique.cast(pa.string())
    except pa.ArrowException:
        return "unused", {}, "bytes that are no texts in UTF-8"
    if pc.any(pc.match_substring(unique, "\0")).as_py():
        return "unused", {}, "bytes that are no texts"
    texts = present(texts)
    if not len(texts):
        return "unused", {}, f"it is empty in the first {sample.rows:,} rows"
    kind, column, why = _judge_texts(replace(sample, values=texts, unique=unique))
    return kind, {"type": "text", **column} if kind == "sparse" else column, why


def _judge_texts(sample: Sample) -> Judged:
    import pyarrow.compute as pc

    values, told = sample.values, Told.of(sample.name)
    if header := HEADER.fullmatch(sample.name):
        found = sample.numbers if header[2] == "float" else None
        if found is not None and is_time(sample, told, found.values_B):
            return "unused", {}, "a time"
        if judged := header_kind(header[2], values):
            return judged[0], judged[1] | ({"name": header[1]} if judged[0] == "sparse" else {}), judged[2]
    spaced = any(text != text.strip() for text in sample.unique.slice(0, 8).to_pylist() if text)
    digits = pc.utf8_trim_whitespace(values) if spaced else values  # a space after each comma
    if all_match(digits, INTEGER) and not pc.any(pc.match_substring(digits, ".")).as_py():
        as_numbers = sample.numbers
        if as_numbers is not None and np.abs(as_numbers.values_B).max() < 2**63:
            return judge_whole(sample, as_numbers.values_B, {"type": "integer"})
        if as_numbers is not None:
            return judge_large(sample)
    first = numbers(values.slice(0, FIRST))  # which mostly say no where others do
    found = None if first is None or first.bad_B.any() else sample.numbers
    if found is not None and not found.bad_B.any() and not _leading_zeros(values):
        if pc.all(pc.is_in(pc.utf8_lower(values), _words("true", "false"))).as_py():
            return "sparse", {"type": "boolean"}, "true or false"
        if are_thousands(values):
            return text_kind(sample.name, values, told.is_id, sample.distinct) or judge_words(sample)
        if are_codes(values, told.is_id):
            return judge_words(sample)
        return judge_floats(sample, found.values_B)
    if set(sample.unique.slice(0, 8).to_pylist()) - {""} == {"t", "f"}:
        return "sparse", {"type": "boolean"}, "true or false"
    return text_kind(sample.name, values, told.is_id, sample.distinct) or judge_words(sample)


def judge_words(sample: Sample) -> Judged:
    """Return what a column of texts is whose values are read as nothing else."""
    import pyarrow.compute as pc

    values, distinct = sample.values, sample.distinct
    lists = proposal(sample.name, values)
    if all_differ(sample):
        return "unused", {}, "its texts are all different" + lists
    if pc.mean(pc.utf8_length(values)).as_py() > LONG_TEXT and distinct > len(values) / 2:
        return "unused", {}, "long texts" + lists
    return "sparse", {}, f"{counted_values(distinct)} in the first {sample.rows:,} rows{lists}"


def _leading_zeros(values: pa.Array) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(values, r"^[-+]?0[0-9]")).as_py())


def _words(*words: str) -> pa.Array:
    import pyarrow as pa

    return pa.array(words)
