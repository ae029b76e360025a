"""Plain NumPy twins of `lookups.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def are_bounds(offsets_L1: Array, lookups: int) -> bool:
    return bool(
        len(offsets_L1) and offsets_L1[0] == 0 and (np.diff(offsets_L1) >= 0).all() and offsets_L1[-1] <= lookups
    )


def number_rows(ids_N: Array, offsets_L1: Array, first_row_T: Array, rows_T: Array, row_N: Array) -> int:
    table_N = np.repeat(np.arange(len(offsets_L1) - 1), np.diff(offsets_L1)) % len(rows_T)
    wrong = np.flatnonzero((ids_N < 0) | (ids_N >= rows_T[table_N]))
    if len(wrong):
        return int(wrong[0])
    row_N[:] = first_row_T[table_N] + ids_N
    return -1


def find_features(length_FB: Array, first_F1: Array) -> tuple[int, int]:
    first_F1[:] = np.concatenate([[0], np.cumsum(length_FB.sum(axis=1))])
    return int(length_FB.min(initial=1)), int(length_FB.max(initial=1))


def number_jagged_rows(
    ids_N: Array, length_FB: Array, one_hot: bool, first_F1: Array, feature_T: Array, first_row_T: Array, rows_T: Array,
    row_M: Array, offsets_L1: Array,
) -> int:  # fmt: skip
    features, samples = length_FB.shape
    parts = [np.split(ids_N[first_F1[f] : first_F1[f + 1]], np.cumsum(length_FB[f])[:-1]) for f in range(features)]
    bags = [parts[f][b] for b in range(samples) for f in feature_T]
    offsets_L1[:] = np.concatenate([[0], np.cumsum([len(bag) for bag in bags])])
    turned_M = np.concatenate([*bags, np.empty(0, dtype=np.int64)])
    wrong = number_rows(turned_M, offsets_L1, first_row_T, rows_T, row_M)
    if wrong >= 0:
        row_M[wrong] = turned_M[wrong]
    return wrong


def find_row_sources(row_N: Array, slot_of_row: Array, source_N: Array) -> None:
    slot_N = slot_of_row[row_N]
    source_N[:] = np.where(slot_N >= 0, slot_N, ~row_N)


def count_by_table(
    distinct_U: Array, segments_U1: Array, source_U: Array, first_row_T: Array, lookups_T: Array, hot_lookups_T: Array
) -> None:
    table_U, count_U = np.searchsorted(first_row_T, distinct_U, side="right") - 1, np.diff(segments_U1)
    np.add.at(lookups_T, table_U, count_U)
    np.add.at(hot_lookups_T, table_U, np.where(source_U >= 0, count_U, 0))


def gather_bags(
    first: int,
    features: int,
    feature: int,
    offsets: Array,
    source_N: Array,
    hot_HD: Array,
    cold_RD: Array,
    out_LD: Array,
) -> None:
    """Of `pooling.gather_bags`."""
    for i in range(len(out_LD)):
        bag = (first + i) * features + feature
        sources = source_N[offsets[bag] : offsets[bag + 1]]
        rows = [hot_HD[source] if source >= 0 else cold_RD[~source] for source in sources]
        out_LD[i] = np.sum(rows, axis=0) if rows else 0
