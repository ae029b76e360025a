"""This kernel picks columns of a matrix, as the interaction of the dense part does with its products.

Plain twin: `reference/columns.py`. S samples, N columns, P places. Rows are cut into parts that write to different places, so
results do not depend on `threads`. Only the training thread may ask for more than one (OpenMP's threads); others pass 1.
"""

from __future__ import annotations

from numba import njit, prange, set_num_threads

from adaptive_rec.kernels.jit import JIT, JIT_PARALLEL, PARTS_PER_THREAD, worth_waking


def pick_columns(table_SN, column_P, first, out_SM, threads=1):
    """Fill ``out_SM[:, first : first + P]`` with these columns of a table; column -1 is zeros. Numbers are copied as they are."""
    arrays = table_SN, column_P, first, out_SM
    if worth_waking(threads, len(table_SN) * len(column_P)) == 1:
        _pick_range(0, len(table_SN), *arrays)
    else:
        set_num_threads(threads)
        _pick_parts(threads * PARTS_PER_THREAD, *arrays)


@njit(**JIT_PARALLEL)
def _pick_parts(parts, table_SN, column_P, first, out_SM):
    samples = len(table_SN)
    for p in prange(parts):
        _pick_range(samples * p // parts, samples * (p + 1) // parts, table_SN, column_P, first, out_SM)


@njit(**JIT)
def _pick_range(begin, end, table_SN, column_P, first, out_SM):
    for s in range(begin, end):
        for p in range(len(column_P)):
            column = column_P[p]
            out_SM[s, first + p] = table_SN[s, column] if column >= 0 else 0
