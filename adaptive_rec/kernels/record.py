"""The record of a row's movement in plain torch: for any device's tensors, and the twin of what Triton's kernels do.

Record (D + 2): the sum of displacements, so that a row that moves forth and back has not moved; the sum of their lengths; the
sum of the squares of these lengths.
"""

from __future__ import annotations

import torch
from torch import Tensor

SUMS = 2
"""Columns of a record after the displacement."""

MEASURES = 5
"""Numbers measured for each slot, in the order of `adaptive_rec.tracking.rules.RowMovement`."""


def add_to_record(record_HR: Tensor, slots: Tensor, moved: Tensor) -> None:
    """Add the displacements (n, D) of distinct slots to their records."""
    # Distinct slots make this the same on every run; index_add_ on a GPU is not, for its atomic additions.
    square = (moved * moved).sum(dim=1, keepdim=True)
    record_HR[slots] += torch.cat([moved, square.sqrt(), square], dim=1)


def measure(record_HR: Tensor, weights_HD: Tensor) -> Tensor:
    """Return (H, MEASURES) numbers: largest component and length of the displacement, the row's length now, the two sums."""
    moved_HD, sums_H2 = record_HR[:, :-SUMS], record_HR[:, -SUMS:]
    lengths = [torch.linalg.vector_norm(part, dim=1, keepdim=True) for part in (moved_HD, weights_HD)]
    return torch.cat([moved_HD.abs().amax(dim=1, keepdim=True), *lengths, sums_H2], dim=1)
