"""Kernels of a snapshot: they copy rows that are to be saved, of a table that goes on changing.

Every kernel has a plain twin of the same name in `reference_keeping.py`. R counts the rows of one pool, N the room of a shard.
``slot_R`` says which rows lie in the hot tier, and where there; where it is empty, none does.
"""

from __future__ import annotations

from numba import njit

from adaptive_rec.kernels.jit import JIT, JIT_INLINE
from adaptive_rec.kernels.prefetch import prefetch_row

PENDING, TAKEN = 1, 2
"""Marks of a row that is to be saved: not copied yet, and copied."""

_ROWS_AHEAD = 16


@njit(**JIT)
def keep_rows(
    rows_C,
    start,
    mark_R,
    slot_R,
    hot_HD,
    hot_state_HK,
    cold_RD,
    cold_state_RK,
    first_row,
    row_N,
    weights_ND,
    state_NK,
    filled,
):
    """Copy those rows from ``rows_C[start:]`` that are pending into a shard from line `filled` on, until it is full, and mark
    them as taken. ``row_N`` gets their numbers, counted from `first_row`. Returns (how far it came, lines filled)."""
    c = start
    while c < len(rows_C) and filled < len(row_N):
        row = rows_C[c]
        if c + _ROWS_AHEAD < len(rows_C):
            prefetch_row(mark_R, rows_C[c + _ROWS_AHEAD])  # of most rows nothing else is looked at: they are not marked
        if mark_R[row] == PENDING:
            _copy(
                row, mark_R, slot_R, hot_HD, hot_state_HK, cold_RD, cold_state_RK, first_row, row_N, weights_ND, state_NK,
                filled,
            )  # fmt: skip
            filled += 1
        c += 1
    return c, filled


@njit(**JIT)
def take_rows(
    first, end, most, mark_R, slot_R, hot_HD, hot_state_HK, cold_RD, cold_state_RK, first_row, row_N, weights_ND, state_NK,
    filled,
):  # fmt: skip
    """The same of all rows from `first` to `end`, of which `most` are copied at the most."""
    row, stop = first, min(len(row_N), filled + most)
    while row < end and filled < stop:
        if mark_R[row] == PENDING:
            _copy(
                row, mark_R, slot_R, hot_HD, hot_state_HK, cold_RD, cold_state_RK, first_row, row_N, weights_ND, state_NK,
                filled,
            )  # fmt: skip
            filled += 1
        row += 1
    return row, filled


@njit(**JIT_INLINE)
def _copy(
    row, mark_R, slot_R, hot_HD, hot_state_HK, cold_RD, cold_state_RK, first_row, row_N, weights_ND, state_NK, line
):
    row_N[line] = first_row + row
    mark_R[row] = TAKEN
    if len(slot_R) > 0 and slot_R[row] >= 0:
        slot = slot_R[row]
        for d in range(hot_HD.shape[1]):
            weights_ND[line, d] = hot_HD[slot, d]
        for k in range(hot_state_HK.shape[1]):
            state_NK[line, k] = hot_state_HK[slot, k]
    else:
        for d in range(cold_RD.shape[1]):
            weights_ND[line, d] = cold_RD[row, d]
        for k in range(cold_state_RK.shape[1]):
            state_NK[line, k] = cold_state_RK[row, k]
