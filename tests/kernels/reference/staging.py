"""Plain NumPy twins of the kernels in `staging.py`: the readable specification, and what the tests compare against."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def split_sources(distinct_U: Array, source_U: Array, pool_ends: Array) -> tuple[Array, Array, Array, Array]:
    """Return (slot of a hot row or ``~c`` of a pool's c-th cold one, cold rows in the joint row space and in the host tier, the
    end of each pool's)."""
    cold_U = source_U < 0
    number_U = np.concatenate([np.cumsum(part) - 1 for part in np.split(cold_U, pool_ends[:-1])])
    ends_P = np.concatenate([[0], np.cumsum(cold_U)])[pool_ends]
    return np.where(cold_U, ~number_U, source_U), distinct_U[cold_U], ~source_U[cold_U], ends_P


def count_pieces(segments_U1: Array, piece_lookups: int) -> int:
    return len(cut_pieces(segments_U1, piece_lookups)[1]) - 1


def cut_pieces(segments_U1: Array, piece_lookups: int) -> tuple[Array, Array]:
    """Return (bounds of each row's pieces, bounds of each piece's bags)."""
    ends = [[min(k + piece_lookups, high) for k in range(low, high, piece_lookups)]
            for low, high in zip(segments_U1[:-1], segments_U1[1:], strict=True)]  # fmt: skip
    piece_U1 = np.cumsum([0] + [len(pieces) for pieces in ends])
    return piece_U1, np.array([segments_U1[0]] + [end for pieces in ends for end in pieces])


def pack_inputs(offsets: Array, others: list[Array], room_for_offsets: bool) -> list[Array]:
    return [offsets.copy() if room_for_offsets else offsets[:0].copy(), *(array.copy() for array in others)]


def pack_batch(
    arrays: list[Array], segments_U1: Array, pool_ends: Array, piece_lookups: int
) -> tuple[list[Array], Array, Array, Array]:
    """Return copies of all arrays, the bounds of the rows' pieces and of the pieces' bags, pool by pool, and where those of each
    pool end."""
    starts = [0, *pool_ends[:-1]]
    pieces = [
        cut_pieces(segments_U1[first : end + 1], piece_lookups) for first, end in zip(starts, pool_ends, strict=True)
    ]
    bags = [segments_U1[:1], *(piece_P1[1:] for _, piece_P1 in pieces)]
    ends = np.cumsum([len(piece_P1) - 1 for _, piece_P1 in pieces])
    return [array.copy() for array in arrays], np.concatenate([each for each, _ in pieces]), np.concatenate(bags), ends


def gather_rows(weights_RD: Array, state_RK: Array, rows_C: Array) -> tuple[Array, Array]:
    return weights_RD[rows_C], state_RK[rows_C]


def scatter_rows(weights_RD: Array, state_RK: Array, rows_C: Array, in_CD: Array, in_CK: Array) -> None:
    weights_RD[rows_C], state_RK[rows_C] = in_CD, in_CK


def flag_rows(rows_C: Array, chosen_C: Array | None, first_row: int, flag_R: Array) -> None:
    flag_R[first_row + (rows_C if chosen_C is None else rows_C[chosen_C])] = True


def index_travelling(row_C: Array) -> dict[int, int]:
    """A dictionary in place of the hash table."""
    return {row: c for c, row in enumerate(row_C.tolist())}


def find_travelling(
    earlier: list[tuple[dict[int, int], Array]], row_C: Array, cold_ends: Array
) -> tuple[list[tuple[int, int]], Array]:
    """`earlier`: for each batch its rows' places and where those of each pool begin. Returns batch and place of each row, and
    counts by pool and batch."""
    found, count_PE = [], np.zeros((len(cold_ends), len(earlier)), np.int64)
    for c, row in enumerate(row_C.tolist()):
        pool = int(np.searchsorted(cold_ends, c, side="right"))
        holding = [e for e, (places, _) in enumerate(earlier) if row in places]
        if holding:
            places, starts = earlier[holding[-1]]
            count_PE[pool, holding[-1]] += 1
            found.append((holding[-1], places[row] - int(starts[pool])))
        else:
            found.append((-1, -1))
    return found, count_PE


def list_taken(origin_C: Array, place_C: Array, cold_ends: Array) -> tuple[Array, Array]:
    first_C = np.repeat([0, *cold_ends[:-1]], np.diff(cold_ends, prepend=0))
    order = np.lexsort((origin_C, first_C))
    order = order[origin_C[order] >= 0]
    return place_C[order], order - first_C[order]


def touched_rows(segments_U1: Array, segment_bag_N: Array, features: int, position_B: Array) -> Array:
    trained_N = position_B[segment_bag_N // features] >= 0
    return np.array([trained_N[low:high].any() for low, high in zip(segments_U1[:-1], segments_U1[1:], strict=True)])
