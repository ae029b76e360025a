"""These kernels of a snapshot copy the rows to be saved while the table goes on changing.

Every kernel has a plain twin of the same name in `reference/keeping.py`. R counts the rows of one pool, N the room of a shard.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from adaptive_rec.kernels.jit import JIT, JIT_INLINE
from adaptive_rec.kernels.prefetch import prefetch_row

PENDING, TAKEN = 1, 2
"""Marks of a row to be saved: not copied yet, and copied."""

_ROWS_AHEAD = 16


class KeptPool(NamedTuple):
    """One pool of a snapshot: marks of its rows, and its tiers. `slot_R` is empty where there is no hot tier."""

    mark_R: Any
    slot_R: Any
    hot_HD: Any
    hot_state_HK: Any
    cold_RD: Any
    cold_state_RK: Any
    first_row: int


class ShardArrays(NamedTuple):
    """Room for rows that are to be saved: their numbers, counted from the pool's `first_row`, values and optimizer state."""

    row_N: Any
    weights_ND: Any
    state_NK: Any


@njit(**JIT)
def keep_rows(rows_C, start, pool, shard, filled):
    """Copy the pending rows of ``rows_C[start:]`` into a shard from line `filled` on, until it is full, and mark them as taken.

    Returns (place in `rows_C` where it stopped, lines filled).
    """
    c, mark_R = start, pool.mark_R
    while c < len(rows_C) and filled < len(shard.row_N):
        if c + _ROWS_AHEAD < len(rows_C):
            prefetch_row(mark_R, rows_C[c + _ROWS_AHEAD])  # most rows are not marked: nothing else of them is read
        if mark_R[rows_C[c]] == PENDING:
            _copy(rows_C[c], pool, shard, filled)
            filled += 1
        c += 1
    return c, filled


@njit(**JIT)
def take_rows(first, end, most, pool, shard, filled):
    """Do the same for the rows from `first` to `end`, but copy no more than `most`."""
    row, stop, mark_R = first, min(len(shard.row_N), filled + most), pool.mark_R
    while row < end and filled < stop:
        if mark_R[row] == PENDING:
            _copy(row, pool, shard, filled)
            filled += 1
        row += 1
    return row, filled


@njit(**JIT_INLINE)
def _copy(row, pool, shard, line):
    shard.row_N[line] = pool.first_row + row
    pool.mark_R[row] = TAKEN
    if len(pool.slot_R) > 0 and pool.slot_R[row] >= 0:
        _copy_row(pool.hot_HD, pool.hot_state_HK, pool.slot_R[row], shard, line)
    else:
        _copy_row(pool.cold_RD, pool.cold_state_RK, row, shard, line)


@njit(**JIT_INLINE)
def _copy_row(weights, state, place, shard, line):
    for d in range(weights.shape[1]):
        shard.weights_ND[line, d] = weights[place, d]
    for k in range(state.shape[1]):
        shard.state_NK[line, k] = state[place, k]
