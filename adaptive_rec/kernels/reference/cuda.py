"""Plain NumPy twins of the calls of `cuda.py` and `host.py`: the readable specification, and what the tests compare against.

They compute in the dtype they are given; the tests give float64. `gather_pooled` is as on the CPU: see `step.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.reference.step import apply_row
from adaptive_rec.kernels.row_update import Hyper

Array = NDArray[Any]


def sum_pieces(
    piece_P1: Array, segment_bag_N: Array, features: int, offsets: Array, column_F: Array, mean_F: Array, position_B: Array,
    grad_STD: Array, active_P: Array | None = None,
) -> Array:  # fmt: skip
    """Return the sum of the gradients of each piece's bags; not a number for pieces that are left out."""
    partial_PD = np.zeros((len(piece_P1) - 1, grad_STD.shape[2]), dtype=grad_STD.dtype)
    for p in range(len(partial_PD)):
        if active_P is not None and not active_P[p]:
            partial_PD[p] = np.nan
            continue
        for bag in segment_bag_N[piece_P1[p] : piece_P1[p + 1]]:
            b, f = divmod(int(bag), features)
            if position_B[b] >= 0:
                length = offsets[bag + 1] - offsets[bag] if mean_F[f] else 1
                partial_PD[p] += grad_STD[position_B[b], column_F[f]] / length
    return partial_PD


def apply_rows(
    rule: int, lr: float, eps: float, beta1: float, beta2: float, step: int, piece_U1: Array, partial_PD: Array,
    source_U: Array, active_U: Array, hot_HD: Array, hot_state_HK: Array, cold_CD: Array, cold_state_CK: Array,
    record_HR: Array | None, touches_H: Array | None, changed_H: Array | None = None,
) -> None:  # fmt: skip
    """Update the active rows in place; `step` stands for what its correction is in the tensor of the calls."""
    for u in np.flatnonzero(active_U):
        grad_D = partial_PD[piece_U1[u] : piece_U1[u + 1]].sum(axis=0)
        hot, r = source_U[u] >= 0, source_U[u] if source_U[u] >= 0 else ~source_U[u]
        weights, state = (hot_HD, hot_state_HK) if hot else (cold_CD, cold_state_CK)
        before_D = weights[r].copy()
        apply_row(rule, Hyper(lr, eps, beta1, beta2, step), weights[r], state[r], grad_D)
        if hot and record_HR is not None and touches_H is not None:
            moved_D = weights[r] - before_D
            length = np.sqrt(np.sum(moved_D**2))
            record_HR[r] += np.array([*moved_D, length, length**2], dtype=record_HR.dtype)
            touches_H[r] += 1
        if hot and changed_H is not None:
            changed_H[r] = True


def movement(record_HR: Array, weights_HD: Array) -> Array:
    """What `tracking.delta.UpdateDeltaMonitor.measure` says, for one slot at a time."""
    out_H5 = np.zeros((len(record_HR), 5), dtype=record_HR.dtype)
    for slot, (moved_D, sums) in enumerate(zip(record_HR[:, :-2], record_HR[:, -2:], strict=True)):
        out_H5[slot, 0] = np.abs(moved_D).max()
        out_H5[slot, 1] = np.sqrt(np.sum(moved_D**2))
        out_H5[slot, 2] = np.sqrt(np.sum(weights_HD[slot] ** 2))
        out_H5[slot, 3:] = sums
    return out_H5


def copy_rows(from_RD: Array, from_rows_C: Array | None, to_RD: Array, to_rows_C: Array | None) -> None:
    count = next((len(rows) for rows in (from_rows_C, to_rows_C) if rows is not None), min(len(from_RD), len(to_RD)))
    for i in range(count):
        to_RD[i if to_rows_C is None else to_rows_C[i]] = from_RD[i if from_rows_C is None else from_rows_C[i]]


def take_rows(lines: list[tuple[list[Array], list[Array], Array, Array]]) -> None:
    """`lines`: the arrays that rows are in, those they go to, and the rows' numbers in both."""
    for sources, targets, from_rows, to_rows in lines:
        for source, target in zip(sources, targets, strict=True):
            copy_rows(source, from_rows, target, to_rows)


def fill_lines(samples_S: Array, dense_BX: Array, labels_B: Array) -> tuple[Array, Array]:
    """Return the dense features and labels of the lines."""
    lines = [max(int(sample), 0) for sample in samples_S]
    return dense_BX[lines], labels_B[lines]
