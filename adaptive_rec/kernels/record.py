"""The record of a row's movement in plain torch: for any device's tensors, and the twin of what Triton's kernels do.

Record (bytes): the sum of displacements, so that a row that moves forth and back has not moved, 8 bits a component, which count
steps of the row's scale; nothing up to a multiple of 4; the scale (float32, a power of two); the sum of the squares of the
displacements' lengths (float32). Sums are rounded stochastically, so that many small displacements are kept on average (Gupta
et al., arXiv 1502.02551). The dice depend on slot, touches and component, so a resumed run draws the same ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

TAIL_BYTES = 8
"""Scale and sum of squares."""

MEASURES = 4
"""Numbers measured for each slot, in the order of `adaptive_rec.tracking.rules.RowMovement`."""

MOST = 127
"""Steps of its scale that a component is away from where it was, at most."""

SALT = 0x5EED
"""Makes the dice other ones than those that round rows."""

_MIX = 0xD6E8FEB86659FD93 - (1 << 64)
_WORD = 0xFFFFFFFF


def record_bytes(dim: int) -> int:
    """Return the bytes of a row's record."""
    return -(-dim // 4) * 4 + TAIL_BYTES


def tails_of(record_HR: Tensor) -> Tensor:
    """Return records as numbers (float32), of which the last two are scale and sum of squares."""
    return record_HR.view(torch.float32)


def add_to_record(record_HR: Tensor, slots: Tensor, touches: Tensor, moved: Tensor) -> None:
    """Add the displacements (n, D) of distinct slots to their records. `touches`: how many were added to each before."""
    # Distinct slots make this the same on every run; index_add_ on a GPU is not, for its atomic additions.
    moved = moved.float()
    lines, dim = record_HR[slots], moved.shape[1]
    tail = tails_of(lines)[:, -2:]
    sums = lines[:, :dim] * tail[:, :1] + moved
    scale = torch.maximum(tail[:, :1], _power_above(sums.abs().amax(dim=1, keepdim=True) * (1 / MOST)))
    lines[:, :dim] = _round(sums * _inverse(scale), _dice(slots, touches, dim))
    tail[:, :1] = scale
    tail[:, 1:] += (moved * moved).sum(dim=1, keepdim=True)
    record_HR[slots] = lines


def record_of_sums(sums_HD: Tensor, square_H: Tensor) -> Tensor:
    """Return the records of sums in full precision, rounded to the nearest: those of a checkpoint of an earlier version."""
    slots, dim = sums_HD.shape
    lines = torch.zeros((slots, record_bytes(dim)), dtype=torch.int8)
    tail = tails_of(lines)[:, -2:]
    tail[:, :1] = _power_above(sums_HD.float().abs().amax(dim=1, keepdim=True) * (1 / MOST))
    lines[:, :dim] = (sums_HD.float() * _inverse(tail[:, :1])).round().clamp(-MOST, MOST).to(torch.int8)
    tail[:, 1] = square_H.float()
    return lines


def measure(record_HR: Tensor, weights_HD: Tensor) -> Tensor:
    """Return (H, MEASURES) numbers: largest component and length of the displacement, the row's length now, the sum of squares.
    Where this is not finite, the first two are as it is."""
    tail = tails_of(record_HR)[:, -2:].to(weights_HD.dtype)
    moved_HD, square_H1 = record_HR[:, : weights_HD.shape[1]] * tail[:, :1], tail[:, 1:]
    largest_H1, (net_H1, row_H1) = moved_HD.abs().amax(dim=1, keepdim=True), map(_lengths, (moved_HD, weights_HD))
    known_H1 = square_H1.isfinite()
    both = (torch.where(known_H1, found_H1, square_H1) for found_H1 in (largest_H1, net_H1))
    return torch.cat([*both, row_H1, square_H1], dim=1)


def _lengths(rows_HD: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows_HD, dim=1, keepdim=True)


def _power_above(values: Tensor) -> Tensor:
    """Return the least power of two that is not below each number, which is not negative; 0 for 0."""
    bits = values.view(torch.int32)
    return (((bits >> 23) + ((bits & 0x7FFFFF) != 0)).clamp(max=253) << 23).view(torch.float32)


def _inverse(scale: Tensor) -> Tensor:
    """Return 1 / scale of powers of two, and 0 for 0."""
    bits = scale.view(torch.int32)
    return torch.where(bits > 0, (254 << 23) - bits, 0).view(torch.float32)


def _round(steps: Tensor, dice: Tensor) -> Tensor:
    low = steps.floor()
    up = steps - low > (dice >> 8).float() * 2.0**-24
    return (low + up).nan_to_num(0.0).clamp(-MOST, MOST).to(torch.int8)


def _dice(slots: Tensor, touches: Tensor, dim: int) -> Tensor:
    """Return 32 random bits for each component (int64): those of `rows16.row_dice` and `rows16.dice`."""
    bits = SALT + (touches.long() << 32) + slots
    for _ in range(2):
        bits = (bits ^ ((bits >> 32) & _WORD)) * _MIX
    bits = ((bits >> 32) & _WORD)[:, None] + torch.arange(dim, device=slots.device) * 0x9E3779B9 & _WORD
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D & _WORD
    bits = (bits ^ (bits >> 15)) * 0x846CA68B & _WORD
    return bits ^ (bits >> 16)
