"""This module has the calls of `cuda.py` on host memory, for a simulated device and for machines without one.

Names, arguments and results are the same but for rounding; `cuda.py` documents them. Kernels on the CPU see rows of 16 bits as
bit patterns; where nothing rounds them by random bits they are computed as float32 copies. Plain twins: `reference/cuda.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.kernels import pooling, row_update
from adaptive_rec.kernels.batch_lists import find_lists as find_lists
from adaptive_rec.kernels.batch_lists import find_places as find_places
from adaptive_rec.kernels.jit import JIT
from adaptive_rec.kernels.record import add_to_record, measure
from adaptive_rec.kernels.rows16 import row_dice


def gather_pooled(
    samples_S: Tensor, pool_features_T: Tensor, features: int, offsets: Tensor, inverse_N: Tensor, source_U: Tensor,
    mean_F: Tensor, hot_HD: Tensor, cold_CD: Tensor, out_STD: Tensor,
) -> None:  # fmt: skip
    if len(samples_S) == 0:
        return
    wide = _wide(out_STD)
    pooling.gather_pooled(
        samples_S.numpy(), pool_features_T.numpy(), features, offsets.numpy(), False,
        source_U.index_select(0, inverse_N).numpy(), mean_F.numpy(), _bits(hot_HD), _bits(cold_CD), wide.numpy(),
    )  # fmt: skip
    _copy_back(wide, out_STD)


def sum_pieces(
    piece_P1: Tensor, segment_bag_N: Tensor, features: int, offsets: Tensor, column_F: Tensor, mean_F: Tensor,
    position_B: Tensor, grad_STD: Tensor, partial_PD: Tensor, active_P: Tensor | None = None,
) -> None:  # fmt: skip
    if len(piece_P1) == 1:
        return
    _sum_pieces(
        piece_P1.numpy(), segment_bag_N.numpy(), features, offsets.numpy(), column_F.numpy(), mean_F.numpy(),
        position_B.numpy(), _wide(grad_STD).numpy(), partial_PD.numpy(), None if active_P is None else active_P.numpy(),
    )  # fmt: skip


def apply_rows(
    rule: int, hyper_5: Tensor, piece_U1: Tensor, partial_PD: Tensor, source_U: Tensor, active_U: Tensor, hot_HD: Tensor,
    hot_state_HK: Tensor, cold_CD: Tensor, cold_state_CK: Tensor, record_HR: Tensor | None, touches_H: Tensor | None,
    changed_H: Tensor | None = None, number_U: Tensor | None = None, step_bits_1: Tensor | None = None,
    overflow_1: Tensor | None = None,
) -> None:  # fmt: skip
    if len(source_U) == 0:
        return
    active_U = active_U[: len(source_U)]
    lr, eps, beta1, beta2, correction = hyper_5.tolist()
    grad_UD = partial_PD.new_empty((len(source_U), hot_HD.shape[1]))
    _sum_rows(piece_U1.numpy(), partial_PD.numpy(), grad_UD.numpy())
    tiers = [hot_HD, hot_state_HK, cold_CD, cold_state_CK]
    bits_U, wide = None, tiers
    if number_U is not None and step_bits_1 is not None:
        bits_U = _row_bits(step_bits_1.numpy().view(np.uint64)[0], number_U.numpy())
    else:
        wide = [_wide(tier) for tier in tiers]
    slots = source_U[(active_U != 0) & (source_U >= 0)].long()
    before = wide[0][slots]
    # After infinitely many steps Adam's correction is 1: the given correction goes into the rate instead.
    row_update.apply_rows(
        rule, row_update.Hyper(lr * correction, eps, beta1, beta2, math.inf), source_U.numpy(), grad_UD.numpy(), active_U.numpy(),
        row_update.TierArrays(*map(_bits, wide)),
        bits_U,
    )  # fmt: skip
    if record_HR is not None and touches_H is not None:
        add_to_record(record_HR, slots, touches_H[slots], _wide(wide[0][slots].to(hot_HD.dtype)) - _wide(before))
        touches_H[slots] += 1
    if changed_H is not None:
        changed_H[slots] = True
    if overflow_1 is not None:
        cold = (~source_U[(active_U != 0) & (source_U < 0)]).long()
        overflow_1 |= int(not all(tier[rows].isfinite().all() for tier, rows in ((hot_HD, slots), (cold_CD, cold))))
    for mine, tier in zip(wide, tiers, strict=True):
        _copy_back(mine, tier)


def movement(record_HR: Tensor, weights_HD: Tensor, out_H4: Tensor) -> None:
    if len(out_H4) == 0:
        return
    out_H4.copy_(measure(record_HR, weights_HD.to(out_H4.dtype)))


def copy_rows(from_RD: Tensor, from_rows_C: Tensor | None, to_RD: Tensor, to_rows_C: Tensor | None) -> None:
    rows = from_rows_C if from_rows_C is not None else to_rows_C
    count = len(rows) if rows is not None else min(len(from_RD), len(to_RD))
    if count == 0 or to_RD.shape[1] == 0:
        return
    taken_CD = from_RD[:count] if from_rows_C is None else from_RD.index_select(0, from_rows_C)
    if to_rows_C is None:
        to_RD[:count] = taken_CD
    else:
        to_RD[to_rows_C.long()] = taken_CD


def take_rows(
    table_L8: Tensor, from_rows_R: Tensor, to_rows_R: Tensor, longest: int, unit_bytes: int, memory: list[Tensor]
) -> None:
    """Raises KeyError for an address that is none of the memory's."""
    at = {array.data_ptr(): array for array in memory}
    for first, count, *arrays in table_L8.tolist():
        from_rows, to_rows = from_rows_R[first : first + count].long(), to_rows_R[first : first + count].long()
        for source, target, row_bytes in (arrays[:3], arrays[3:]):
            if row_bytes:
                at[target][to_rows] = at[source][from_rows]


def fill_lines(
    samples_S: Tensor, dense_BX: Tensor, labels_B: Tensor, scale_S: Tensor, dense_SX: Tensor, labels_S: Tensor,
    scale_out_S: Tensor,
) -> None:  # fmt: skip
    lines = samples_S.clamp(min=0)
    torch.index_select(dense_BX, 0, lines, out=dense_SX)
    torch.index_select(labels_B, 0, lines, out=labels_S)
    scale_out_S.copy_(scale_S)


_PATTERNS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}


def _bits(rows: Tensor) -> NDArray[Any]:
    """Return the memory of rows as an array; those of 16 bits as bit patterns, see `rows16.py`."""
    patterns: NDArray[Any] = rows.view(_PATTERNS.get(rows.dtype, rows.dtype)).numpy()
    return patterns


@njit(**JIT)
def _row_bits(step_bits, number_U):
    bits_U = np.empty(len(number_U), dtype=np.uint32)
    for u in range(len(number_U)):
        bits_U[u] = row_dice(step_bits, number_U[u])
    return bits_U


def _wide(rows: Tensor) -> Tensor:
    return rows.float() if rows.itemsize == 2 else rows


def _copy_back(wide: Tensor, rows: Tensor) -> None:
    if wide is not rows:
        rows.copy_(wide)


@njit(**JIT)
def _sum_pieces(piece_P1, segment_bag_N, features, offsets, column_F, mean_F, position_B, grad_STD, partial_PD, active_P):
    dim = partial_PD.shape[1]
    for p in range(len(piece_P1) - 1):
        if active_P is not None and not active_P[p]:
            continue
        for d in range(dim):
            partial_PD[p, d] = 0
        for k in range(piece_P1[p], piece_P1[p + 1]):
            bag = segment_bag_N[k]
            sample = bag // features
            line = position_B[sample]
            if line < 0:
                continue
            f = bag - sample * features
            column = column_F[f]
            length = offsets[bag + 1] - offsets[bag] if mean_F[f] else 1
            for d in range(dim):
                partial_PD[p, d] += grad_STD[line, column, d] / length


@njit(**JIT)
def _sum_rows(piece_U1, partial_PD, grad_UD):
    for u in range(len(grad_UD)):
        for d in range(grad_UD.shape[1]):
            grad_UD[u, d] = 0
        for p in range(piece_U1[u], piece_U1[u + 1]):
            for d in range(grad_UD.shape[1]):
                grad_UD[u, d] += partial_PD[p, d]
