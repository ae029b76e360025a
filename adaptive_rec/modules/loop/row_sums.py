"""Sums of gradients by distinct row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from adaptive_rec.modules.loop.lookahead import PoolCall
from adaptive_rec.modules.loop.uploads import to_device


def by_lookup(call: PoolCall, gradient_LD: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows within the pool (N) and the gradient of each lookup (N, D)."""
    bags = call.bags
    if bags.divisor_L1 is not None:
        gradient_LD = gradient_LD / to_device(bags.divisor_L1, gradient_LD.device)
    row_N = to_device(torch.from_numpy(bags.row_N), gradient_LD.device)
    lengths = np.diff(bags.offsets)
    if not (lengths == 1).all():
        gradient_LD = gradient_LD.repeat_interleave(to_device(torch.from_numpy(lengths), gradient_LD.device), dim=0)
    return row_N, gradient_LD


def sum_by_row(parts: Sequence[tuple[Tensor, Tensor]], like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct rows of all parts and the sums of their values."""
    if not parts:
        rows = torch.empty(0, dtype=torch.int64, device=like.device)
        return rows, torch.empty((0, like.shape[1]), dtype=like.dtype, device=like.device)
    rows, place = torch.cat([rows for rows, _ in parts]).unique(return_inverse=True)
    values = torch.cat([values for _, values in parts])
    return rows, values.new_zeros((len(rows), values.shape[1])).index_add_(0, place, values)


def touched(rows: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows that were looked up, and all others that are not zero, with their gradients."""
    istouched = (whole != 0).any(1)
    istouched[rows] = True
    found = istouched.nonzero().squeeze(1)
    return found, whole[found]


def surely_finite(gradient: Tensor) -> bool:
    """Return whether all sums of a gradient's lines are finite: the sum of its squares is, so that no number in it is larger than
    the root of the type's largest one. False: they may be finite all the same."""
    flat = gradient.reshape(-1)
    return bool(torch.dot(flat, flat).isfinite())
