"""Plain NumPy twins of the kernels in `staging.py`: the readable specification, and what the tests compare against."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def split_sources(source_U: Array) -> tuple[Array, Array]:
    """Return (slot of a hot row or ``~c`` of the c-th cold one, rows of the cold ones in the host tier)."""
    cold_U = source_U < 0
    return np.where(cold_U, ~(np.cumsum(cold_U) - 1), source_U), ~source_U[cold_U]


def count_pieces(segments_U1: Array, piece_lookups: int) -> int:
    return len(cut_pieces(segments_U1, piece_lookups)[1]) - 1


def cut_pieces(segments_U1: Array, piece_lookups: int) -> tuple[Array, Array]:
    """Return (bounds of each row's pieces, bounds of each piece's bags)."""
    ends = [[min(k + piece_lookups, high) for k in range(low, high, piece_lookups)]
            for low, high in zip(segments_U1[:-1], segments_U1[1:], strict=True)]  # fmt: skip
    piece_U1 = np.cumsum([0] + [len(pieces) for pieces in ends])
    return piece_U1, np.array([segments_U1[0]] + [end for pieces in ends for end in pieces])


def gather_rows(table_RD: Array, rows_C: Array) -> Array:
    return table_RD[rows_C]


def scatter_rows(table_RD: Array, rows_C: Array, in_CD: Array) -> None:
    table_RD[rows_C] = in_CD


def index_travelling(distinct_U: Array, source_U: Array) -> dict[int, int]:
    """A dictionary in place of the hash table."""
    return {row: ~source for row, source in zip(distinct_U.tolist(), source_U.tolist(), strict=True) if source < 0}


def find_travelling(places: dict[int, int], rows_C: Array, number: int, origin_C: Array, place_C: Array) -> None:
    for c, row in enumerate(rows_C.tolist()):
        if origin_C[c] < 0 and row in places:
            origin_C[c], place_C[c] = number, places[row]


def touched_rows(segments_U1: Array, segment_bag_N: Array, features: int, position_B: Array) -> Array:
    trained_N = position_B[segment_bag_N // features] >= 0
    return np.array([trained_N[low:high].any() for low, high in zip(segments_U1[:-1], segments_U1[1:], strict=True)])
