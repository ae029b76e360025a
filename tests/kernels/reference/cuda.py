"""Plain NumPy twins of the calls of `cuda.py` and `host.py`: the readable specification, and what the tests compare against.

They compute in the dtype they are given; the tests give float64. `gather_pooled` is as on the CPU: see `step.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.record import MOST, SALT, TAIL_BYTES
from adaptive_rec.kernels.row_update import Hyper
from adaptive_rec.kernels.rows16 import dice, row_dice
from tests.kernels.reference.step import apply_row

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
            add_to_record(record_HR[r], int(r), int(touches_H[r]), weights[r] - before_D)
            touches_H[r] += 1
        if hot and changed_H is not None:
            changed_H[r] = True


def movement(record_HR: Array, weights_HD: Array) -> Array:
    """What `tracking.delta.UpdateDeltaMonitor.measure` says, for one slot at a time."""
    out_H4 = np.zeros((len(record_HR), 4))
    for slot, line in enumerate(record_HR):
        scale, square = line[-TAIL_BYTES:].view(np.float32).astype(np.float64)
        moved_D = line[: weights_HD.shape[1]] * scale
        out_H4[slot, 0] = np.abs(moved_D).max() if np.isfinite(square) else square
        out_H4[slot, 1] = np.sqrt(np.sum(moved_D**2)) if np.isfinite(square) else square
        out_H4[slot, 2] = np.sqrt(np.sum(weights_HD[slot] ** 2))
        out_H4[slot, 3] = square
    return out_H4


def add_to_record(line: Array, slot: int, touches: int, moved_D: Array) -> None:
    """Add a displacement to the record of one slot, in float32: see `kernels.record`."""
    moved_D, tail = moved_D.astype(np.float32), line[-TAIL_BYTES:].view(np.float32)
    sums_D = line[: len(moved_D)] * tail[0] + moved_D
    largest = np.float32(np.abs(sums_D).max()) * np.float32(1 / MOST)
    power = np.float32(2.0 ** np.ceil(np.log2(np.float64(largest)))) if largest else np.float32(0)
    tail[0] = max(tail[0], power)
    for d, sum_ in enumerate(sums_D):
        steps = sum_ / tail[0] if tail[0] else np.float32(0)
        low = np.floor(steps)
        random = dice(row_dice(np.uint64(SALT), np.uint64((touches << 32) + slot)), d) >> np.uint32(8)
        line[d] = np.clip(low + (steps - low > random * 2.0**-24), -MOST, MOST)
    tail[1] += np.sum(moved_D * moved_D)


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
