"""Embedding kernels for a CUDA device. They take torch tensors, fill the caller's outputs and wait for nothing.

`host.py` has the same calls on host memory. Shapes: see the legend in `adaptive_rec.batch`; S counts the lines of a
micro-batch, T the features of a pool, H slots, C cold rows side by side, K state components of a row, P pieces.
A source is a slot of `hot_HD`, or ``~c`` for row c of `cold_CD`. Index tensors are int32, flags bool or uint8, all are
contiguous; rows may be float32, float64, float16 or bfloat16, are added up in float32 (float64 for float64), and should
begin at multiples of 16 bytes: others give the same results but are loaded in smaller pieces, by another kernel.

Callers check shapes and bounds, and make the tensors' device the current one. Kernels go to the current stream.
"""

from __future__ import annotations

from functools import cache

from torch import Tensor

from adaptive_rec.kernels import triton_copies, triton_rows
from adaptive_rec.kernels.cuda_lists import find_lists as find_lists
from adaptive_rec.kernels.cuda_lists import find_places as find_places
from adaptive_rec.kernels.record import tails_of

CHUNK = 4
"""Items of a bag, piece or row whose loads are under way together. More would cost registers that most rows never use."""

ELEMENTS = 256
"""Components that a warp holds of each tile: 8 for a thread, two loads of 16 bytes in float32.

Gathering has 4 warps to a program, as all its bags are alike; pieces and rows have one, so that a long one holds up few."""

_FUSED = True
"""Multiply and add in one rounding. Triton 3.9 warns where this is not set."""


@cache
def _block(dim: int, warps: int) -> tuple[int, int]:
    """Rows of a program and components of a tile's row, powers of two."""
    block_dim = 1 << (dim - 1).bit_length()
    return max(1, min(32, ELEMENTS // block_dim)) * warps, block_dim


def gather_pooled(
    samples_S: Tensor, pool_features_T: Tensor, features: int, offsets: Tensor, inverse_N: Tensor, source_U: Tensor,
    mean_F: Tensor, hot_HD: Tensor, cold_CD: Tensor, out_STD: Tensor,
) -> None:  # fmt: skip
    """Sum (or average) the rows of every bag of one pool: bags of `samples_S`, where a negative one is a line of zeros."""
    lines, columns, dim = out_STD.shape
    if lines == 0 or columns == 0:
        return
    rows, block_dim = _block(dim, 4)
    triton_rows.gather_pooled[(-(-lines // rows), columns)](
        samples_S, pool_features_T, features, offsets, inverse_N, source_U, mean_F, hot_HD, cold_CD, out_STD, lines, columns,
        D=dim, ROWS=rows, BLOCK_D=block_dim, CHUNK=CHUNK, num_warps=4, enable_fp_fusion=_FUSED,
    )  # fmt: skip


def sum_pieces(
    piece_P1: Tensor, segment_bag_N: Tensor, features: int, offsets: Tensor, column_F: Tensor, mean_F: Tensor,
    position_B: Tensor, grad_STD: Tensor, partial_PD: Tensor, active_P: Tensor | None = None,
) -> None:  # fmt: skip
    """Add up the gradients of each piece's bags ``segment_bag_N[piece_P1[p] : piece_P1[p + 1]]`` of trained samples.

    ``position_B[b]`` is the line of sample b in `grad_STD`, or -1 where it was skipped; `column_F` a feature's column.
    `partial_PD` is float32, or float64 for float64, and may have more lines than there are pieces. Given `active_P`, other pieces
    are left out, and their lines stay as they are.
    """
    pieces, dim = len(piece_P1) - 1, partial_PD.shape[1]
    if pieces == 0:
        return
    rows, block_dim = _block(dim, 1)
    triton_rows.sum_pieces[(-(-pieces // rows),)](
        piece_P1, segment_bag_N, features, offsets, column_F, mean_F, position_B, grad_STD, partial_PD, active_P,
        grad_STD.shape[1], pieces, D=dim, ROWS=rows, BLOCK_D=block_dim, CHUNK=CHUNK, num_warps=1, enable_fp_fusion=_FUSED,
    )  # fmt: skip


def apply_rows(
    rule: int, hyper_5: Tensor, piece_U1: Tensor, partial_PD: Tensor, source_U: Tensor, active_U: Tensor, hot_HD: Tensor,
    hot_state_HK: Tensor, cold_CD: Tensor, cold_state_CK: Tensor, record_HR: Tensor | None, touches_H: Tensor | None,
    changed_H: Tensor | None = None, number_U: Tensor | None = None, step_bits_1: Tensor | None = None,
    overflow_1: Tensor | None = None,
) -> None:  # fmt: skip
    """Update every active distinct row once, where it is, by the sum of its pieces ``piece_U1[u]`` to ``piece_U1[u + 1]``.
    `active_U` may be longer than there are rows.

    `hyper_5`: learning rate, eps, beta1, beta2, Adam's correction sqrt(1 - beta2**step) / (1 - beta1**step) (1 under other
    rules), in float64 and on the device. Given `record_HR` (see `kernels.record`), the displacement of hot rows and the square of
    its length are added to it, and 1 to their `touches_H`. Given `changed_H`, the flags of hot rows are set.
    Given `number_U`, the rows' numbers in the joint row space (int64), and `step_bits_1` (`rows16.step_dice`, its bits as int64),
    rows of 16 bits are rounded by random bits, else to the nearest. `overflow_1` (int32) is set to 1
    where a row is too large for half precision.
    """
    count, dim = len(source_U), hot_HD.shape[1]
    if count == 0:
        return
    rows, block_dim = _block(dim, 1)
    triton_rows.apply_rows[(-(-count // rows),)](
        hyper_5, piece_U1, partial_PD, source_U, active_U, hot_HD, hot_state_HK, cold_CD, cold_state_CK, record_HR,
        None if record_HR is None else tails_of(record_HR), touches_H, changed_H, number_U, step_bits_1, overflow_1, count,
        RULE=rule, D=dim, ROWS=rows, BLOCK_D=block_dim, CHUNK=CHUNK, num_warps=1, enable_fp_fusion=_FUSED,
    )  # fmt: skip


def movement(record_HR: Tensor, weights_HD: Tensor, out_H4: Tensor) -> None:
    """Measure each slot's movement: see `kernels.record.measure`. `out_H4` is float32, or float64 for float64."""
    slots, dim = weights_HD.shape
    if slots == 0:
        return
    rows, block_dim = _block(dim, 4)
    triton_rows.movement[(-(-slots // rows),)](
        record_HR, tails_of(record_HR), weights_HD, out_H4, slots, D=dim, ROWS=rows, BLOCK_D=block_dim, num_warps=4,
        enable_fp_fusion=_FUSED,
    )  # fmt: skip


def copy_rows(from_RD: Tensor, from_rows_C: Tensor | None, to_RD: Tensor, to_rows_C: Tensor | None) -> None:
    """Copy row ``from_rows_C[i]`` to row ``to_rows_C[i]`` of memory that does not overlap; None stands for i itself."""
    chosen = from_rows_C if from_rows_C is not None else to_rows_C
    count = len(chosen) if chosen is not None else min(len(from_RD), len(to_RD))
    dim = to_RD.shape[1]
    if count == 0 or dim == 0:
        return
    rows, block_dim = _block(dim, 4)
    triton_copies.copy_rows[(-(-count // rows),)](
        from_RD, from_rows_C, to_RD, to_rows_C, count,
        D=dim, ROWS=rows, BLOCK_D=block_dim, num_warps=4, enable_fp_fusion=_FUSED,
    )  # fmt: skip


def take_rows(
    table_L8: Tensor, from_rows_R: Tensor, to_rows_R: Tensor, longest: int, unit_bytes: int, memory: list[Tensor]
) -> None:
    """Copy rows, with their optimizer state, between pieces of memory that do not overlap.

    A line of the table (int64) says: which of the R rows is its first and how many it has, then for weights and for state the
    address of the memory that the rows are in, that of the memory they go to, and the bytes of a row. Row ``from_rows_R[r]`` goes
    to row ``to_rows_R[r]``. `longest` is the largest number of rows in a line; `unit_bytes`, 4 or 2, divides every address and
    every row. `memory` has the tensors that the table refers to: `host.py` finds its addresses among them.
    """
    lines = len(table_L8)
    if lines == 0 or longest == 0:
        return
    rows, block_dim = _block(32, 4)
    triton_copies.take_rows[(-(-longest // rows), lines)](
        table_L8, from_rows_R, to_rows_R,
        UNIT_BYTES=unit_bytes, ROWS=rows, BLOCK_D=block_dim, num_warps=4, enable_fp_fusion=_FUSED,
    )  # fmt: skip


def fill_lines(
    samples_S: Tensor, dense_BX: Tensor, labels_B: Tensor, scale_S: Tensor, dense_SX: Tensor, labels_S: Tensor,
    scale_out_S: Tensor,
) -> None:  # fmt: skip
    """Copy the dense features and the label of each sample, and the scale of each line, which has its place already. A negative
    sample is a line of padding, with the features and the label of sample 0."""
    lines, dense = dense_SX.shape
    if lines == 0:
        return
    rows, block_dim = _block(min(dense, ELEMENTS), 4)
    triton_copies.fill_lines[(-(-lines // rows),)](
        samples_S, dense_BX, labels_B, scale_S, dense_SX, labels_S, scale_out_S, lines,
        D=dense, ROWS=rows, BLOCK_D=block_dim, num_warps=4, enable_fp_fusion=_FUSED,
    )  # fmt: skip
