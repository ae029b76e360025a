"""Columns of Arrow arrays as numbers, and as categories with their keys.

A raw key, of 64 bits with a sign, is an integer itself, the bits of a float, or the hash of a text by XXH64; booleans and whole
numbers of any size have that of their text. A missing value has the smallest one. The keys by which values are numbered are the
same ones with the sign bit turned, so that 0 stands for what is missing.
A null is missing, a null list an empty bag, a null inside a list a missing value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.prepare.raw import MISSING_KEY
from adaptive_rec.data.tabular.bags import MISSING_WORDS, divided, is_text
from adaptive_rec.data.tabular.kinds import Rule, as_kind
from adaptive_rec.kernels.hash_texts import hash_texts

if TYPE_CHECKING:
    import pyarrow as pa

SIGN = np.uint64(1 << 63)
LARGEST = float(np.finfo(np.float32).max)
"""A dense number is at most so large."""
TRUTH = {"true": "1", "false": "0"}
NUMBER = r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$|^[-+]?(inf|Inf|INF|infinity|Infinity)$"


@dataclass(frozen=True)
class Numbers:
    """A column of numbers; NaN is a missing one."""

    values_B: NDArray[np.float64]
    bad_B: NDArray[np.bool_]
    """Rows whose field is no number."""


def numbers(array: pa.Array, truths: bool = True) -> Numbers | None:
    """Return a column as numbers; None for a type that has none. In a text, words such as NaN and null are missing, and with
    `truths` true is 1 and false 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bad_B = np.zeros(len(array), dtype=bool)
    if is_text(array.type):
        array = trimmed(array)
        right = pc.fill_null(pc.match_substring_regex(array, NUMBER), True)
        if not pc.all(right).as_py():
            lower = pc.utf8_lower(array)
            for word, number in TRUTH.items() if truths else ():
                is_word = pc.fill_null(pc.equal(lower, word), False)
                array, right = pc.if_else(is_word, pa.scalar(number, array.type), array), pc.or_(right, is_word)
            bad_B = ~right.to_numpy(zero_copy_only=False)
            array = pc.if_else(right, array, pa.scalar(None, array.type))
        signed = pc.starts_with(array, "+")
        if pc.any(signed).as_py():
            array = pc.if_else(signed, pc.utf8_slice_codeunits(array, 1), array)
    try:
        values_B = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    except pa.ArrowException:
        return None
    return Numbers(np.asarray(values_B, dtype=np.float64), bad_B)


def label_numbers(array: pa.Array, equals: str) -> Numbers | None:
    """Return the numbers of a column by which rows are labelled: 1 and 0 where a comparison `equals` a text, else its own; None
    for a type that has none."""
    return equal_to(array, equals) if equals else numbers(array)


def equal_to(array: pa.Array, text: str) -> Numbers | None:
    """Return 1 where a column's value is a text, without white space around it, or a number that the text says, 0 elsewhere,
    and NaN where it is missing; None for a type that has no texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        texts = trimmed(array if is_text(array.type) else array.cast(pa.string()))
    except pa.ArrowException:
        return None
    same_B = pc.fill_null(pc.equal(texts, pa.scalar(text, texts.type)), False).to_numpy(zero_copy_only=False)
    number, found = numbers(pa.array([text])), numbers(array)
    if found is not None and number is not None and not number.bad_B[0]:
        same_B = same_B | ~found.bad_B & (found.values_B == number.values_B[0])
    none_B = pc.is_null(texts).to_numpy(zero_copy_only=False)
    return Numbers(np.where(none_B, np.nan, same_B), np.zeros(len(texts), dtype=bool))


def trimmed(array: pa.Array) -> pa.Array:
    """Return texts without white space around them, null for words that stand for a missing number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = pc.utf8_trim_whitespace(array)
    return pc.if_else(pc.is_in(array, pa.array(MISSING_WORDS, array.type)), pa.scalar(None, array.type), array)


@dataclass(frozen=True)
class Categories:
    """A sparse column: its distinct values and which of them each lookup has."""

    distinct: pa.Array
    """Values (U,) in order of first occurrence: integers, floats, booleans, texts or bytes."""
    keys_U: NDArray[np.uint64]
    bad_U: NDArray[np.bool_]
    """Values that break the column's rule."""
    lookups_N: NDArray[np.int64]
    """The number of each lookup's value; U for a missing one."""
    lengths_B: NDArray[np.int32] | None
    """Lookups of each row, for a column of bags."""

    @property
    def bad_N(self) -> NDArray[np.bool_]:
        return np.append(self.bad_U, False)[self.lookups_N]

    def bad_rows(self, rows: int) -> NDArray[np.bool_]:
        """Return which rows have a value that breaks the column's rule."""
        if not self.bad_U.any():
            return np.zeros(rows, dtype=bool)
        if self.lengths_B is None:
            return self.bad_N
        row_N = np.repeat(np.arange(rows), self.lengths_B)
        return np.bincount(row_N[self.bad_N], minlength=rows) > 0

    def kept(self, good_B: NDArray[np.bool_]) -> Categories:
        """Return the column of the good rows alone."""
        if good_B.all():
            return self
        if self.lengths_B is None:
            return Categories(self.distinct, self.keys_U, self.bad_U, self.lookups_N[good_B], None)
        kept_N = np.repeat(good_B, self.lengths_B)
        return Categories(self.distinct, self.keys_U, self.bad_U, self.lookups_N[kept_N], self.lengths_B[good_B])

    @property
    def keys_N(self) -> NDArray[np.uint64]:
        return np.append(self.keys_U, np.uint64(MISSING_KEY))[self.lookups_N]

    def first_lookups(self) -> tuple[pa.Array, NDArray[np.int64]]:
        """Return the values that occur, in order of first occurrence, and the first lookup of each."""
        used_U, first_U = np.unique(self.lookups_N, return_index=True)
        present = used_U < len(self.keys_U)
        used_U, first_U = used_U[present], first_U[present]
        order = np.argsort(first_U)
        return self.distinct.take(used_U[order]), first_U[order].astype(np.int64)


def categories(array: pa.Array, kind: Rule, separator: str, where: str) -> Categories:
    """Return a column, or a column of lists, as categories. Equal values have one key in whatever spelling their type takes. In
    texts, words such as NA are missing unless the type is text. Raises DataError, which begins with `where`, for an array that
    has no categories."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if separator:
        array = divided(array, separator, where)
    lengths_B = None
    if is_list(array.type):
        lengths_B = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int32)
        array = array.flatten()
    found, lookups_N = _distinct(array)
    distinct, bad_U = as_kind(found, kind, where)
    if kind not in ("", "text") and is_text(found.type):
        lookups_N = _without_words(found, lookups_N)
    spelled = (is_text(found.type) or pa.types.is_binary(found.type)) and kind not in ("", "text")
    if len(distinct) and (spelled or kind == "float" or pa.types.is_floating(found.type)):
        distinct, bad_U, lookups_N = _joined(distinct, bad_U, lookups_N)
    keys_U = keys_of(distinct)
    return Categories(distinct, keys_U, bad_U | (keys_U == MISSING_KEY), lookups_N, lengths_B)


def _without_words(found: pa.Array, lookups_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return lookups with those of words such as NA missing, in a column that has no texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_word_U = pc.is_in(pc.utf8_trim_whitespace(found), pa.array(MISSING_WORDS)).to_numpy(zero_copy_only=False)
    if not is_word_U.any():
        return lookups_N
    return np.append(np.where(is_word_U, len(found), np.arange(len(found))), len(found))[lookups_N]


def _joined(
    distinct: pa.Array, bad_U: NDArray[np.bool_], lookups_N: NDArray[np.int64]
) -> tuple[pa.Array, NDArray[np.bool_], NDArray[np.int64]]:
    """Return values that are equal, in several spellings, as one each."""
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = pc.if_else(pa.array(bad_U), pa.scalar(None, distinct.type), distinct).dictionary_encode()
    known = len(encoded.dictionary)
    if known == len(distinct):
        return distinct, bad_U, lookups_N
    joined = pa.concat_arrays([encoded.dictionary, distinct.slice(0, 1)])  # the last one stands for all bad ones
    place_U = pc.fill_null(encoded.indices.cast(pa.int64()), known).to_numpy(zero_copy_only=False)
    return joined, np.arange(known + 1) == known, np.append(place_U, known + 1)[lookups_N]


def is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind))


def _distinct(array: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the distinct values of an array, without null, and the number of each value; null and an empty text are missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_null(kind):
        return array.slice(0, 0), np.zeros(len(array), dtype=np.int64)
    if is_text(kind):
        array = pc.if_else(pc.equal(array, ""), pa.scalar(None, kind), array)
    if pa.types.is_floating(kind):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, kind), array)
    encoded = array.dictionary_encode()
    lookups_N = pc.fill_null(encoded.indices.cast(pa.int64()), len(encoded.dictionary)).to_numpy(zero_copy_only=False)
    return encoded.dictionary, lookups_N


def keys_of(distinct: pa.Array) -> NDArray[np.uint64]:
    """Return the key of each distinct value: an integer, a float, a boolean, a text or bytes."""
    import pyarrow as pa

    kind = distinct.type
    if pa.types.is_null(kind) or not len(distinct):
        return np.empty(0, dtype=np.uint64)
    if pa.types.is_integer(kind):
        keys_U: NDArray[np.uint64] = distinct.to_numpy(zero_copy_only=False).astype(np.uint64) ^ SIGN
        return keys_U
    if pa.types.is_floating(kind):
        return (distinct.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0).view(np.uint64) ^ SIGN
    if pa.types.is_boolean(kind):
        distinct = distinct.cast(pa.string())
    data, offsets = _bytes_of(distinct)
    keys_U = np.empty(len(distinct), dtype=np.uint64)
    hash_texts(data, offsets, keys_U)
    return keys_U ^ SIGN


def raw_keys(keys_N: NDArray[np.uint32] | NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the raw keys of keys by which values are numbered."""
    return (keys_N.astype(np.uint64, copy=False) ^ SIGN).view(np.int64)


def _bytes_of(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes of all texts one after another, and where each begins (U + 1)."""
    import pyarrow as pa

    wide = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    _, starts, data = texts.buffers()
    offsets = np.frombuffer(starts, np.int64 if wide else np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data or b"", np.uint8), offsets.astype(np.int64)
