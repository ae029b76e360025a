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
    out_L1D: Array,
) -> None:
    """Of `pooling.gather_bags`."""
    for i in range(len(out_L1D)):
        bag = (first + i) * features + feature
        sources = source_N[offsets[bag] : offsets[bag + 1]]
        rows = [hot_HD[source] if source >= 0 else cold_RD[~source] for source in sources]
        out_L1D[i, 0] = np.sum(rows, axis=0) if rows else 0
