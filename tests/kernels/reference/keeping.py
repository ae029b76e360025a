"""Plain NumPy twins of `keeping.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.keeping import PENDING, TAKEN, KeptPool, ShardArrays


def keep_rows(rows_C: NDArray[Any], start: int, pool: KeptPool, shard: ShardArrays, filled: int) -> tuple[int, int]:
    for place in range(start, len(rows_C)):
        if filled == len(shard.row_N):
            return place, filled
        row = rows_C[place]
        if pool.mark_R[row] == PENDING:
            if len(pool.slot_R) > 0 and pool.slot_R[row] >= 0:
                weights, state = pool.hot_HD[pool.slot_R[row]], pool.hot_state_HK[pool.slot_R[row]]
            else:
                weights, state = pool.cold_RD[row], pool.cold_state_RK[row]
            shard.row_N[filled], shard.weights_ND[filled], shard.state_NK[filled] = pool.first_row + row, weights, state
            pool.mark_R[row] = TAKEN
            filled += 1
    return len(rows_C), filled


def take_rows(first: int, end: int, most: int, pool: KeptPool, shard: ShardArrays, filled: int) -> tuple[int, int]:
    shorter = shard._replace(row_N=shard.row_N[: filled + most])
    place, filled = keep_rows(np.arange(first, end), 0, pool, shorter, filled)
    return first + place, filled
