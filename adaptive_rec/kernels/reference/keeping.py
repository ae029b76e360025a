"""Plain NumPy twins of `keeping.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.keeping import PENDING, TAKEN

Array = NDArray[Any]


def keep_rows(
    rows_C: Array, start: int, mark_R: Array, slot_R: Array, hot_HD: Array, hot_state_HK: Array, cold_RD: Array,
    cold_state_RK: Array, first_row: int, row_N: Array, weights_ND: Array, state_NK: Array, filled: int,
) -> tuple[int, int]:  # fmt: skip
    for place in range(start, len(rows_C)):
        if filled == len(row_N):
            return place, filled
        row = rows_C[place]
        if mark_R[row] == PENDING:
            hot = len(slot_R) > 0 and slot_R[row] >= 0
            weights, state, line = (hot_HD, hot_state_HK, slot_R[row]) if hot else (cold_RD, cold_state_RK, row)
            row_N[filled], weights_ND[filled], state_NK[filled] = first_row + row, weights[line], state[line]
            mark_R[row] = TAKEN
            filled += 1
    return len(rows_C), filled


def take_rows(
    first: int, end: int, most: int, mark_R: Array, slot_R: Array, hot_HD: Array, hot_state_HK: Array, cold_RD: Array,
    cold_state_RK: Array, first_row: int, row_N: Array, weights_ND: Array, state_NK: Array, filled: int,
) -> tuple[int, int]:  # fmt: skip
    place, filled = keep_rows(
        np.arange(first, end), 0, mark_R, slot_R, hot_HD, hot_state_HK, cold_RD, cold_state_RK, first_row,
        row_N[: filled + most], weights_ND, state_NK, filled,
    )  # fmt: skip
    return first + place, filled
