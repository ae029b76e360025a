"""How far hot rows move: what tells rows that are still learning from rows that have settled."""

from __future__ import annotations

from typing import Literal

import torch

Metric = Literal["max_abs", "relative_l2"]


class UpdateDeltaMonitor:
    """Net displacement of one pool's hot rows over the probe steps of a window. Lives on the device tier's device.

    Slipstream (arXiv 2404.04270) compares two snapshots of all hot rows; here displacements are added up as rows are
    touched, and over probe steps only. A frozen row moves in no other step, so measuring all steps would make rows look
    settled because they are frozen. Rows not touched in a probe step of the window are unknown, not settled.
    """

    def __init__(self, capacity: int, dim: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.movement_HD = torch.zeros((capacity, dim), dtype=dtype, device=device)
        """Sum of (after - before): a row that goes there and back has not moved."""
        self.touches_H = torch.zeros(capacity, dtype=torch.int32, device=device)
        """Probe steps of this window in which the slot's row was updated."""

    @staticmethod
    def bytes_per_slot(dim: int, itemsize: int) -> int:
        """What a slot costs; part of the hot budget."""
        return dim * itemsize + torch.int32.itemsize

    def observe(self, slots: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> None:
        """Record a probe step: `slots` (int64, distinct) held `before` (n, D) and hold `after` (n, D)."""
        # Distinct slots make this the same on every run; index_add_ on a GPU is not, for its atomic additions.
        dtype = self.movement_HD.dtype  # rows may be of 16 bits: their difference would be rounded
        self.movement_HD[slots] += after.to(dtype) - before.to(dtype)
        self.touches_H[slots] += 1

    def movement(self, metric: Metric, weights_HD: torch.Tensor) -> torch.Tensor:
        """Return each slot's movement (H); +inf where its row was not touched.

        `max_abs` is the largest component's displacement (as Slipstream has it), in the unit of the weights;
        `relative_l2` the displacement's length as a share of the row's length now.
        """
        if metric == "max_abs":
            moved_H = self.movement_HD.abs().amax(dim=1)
        else:
            length_H = torch.linalg.vector_norm(weights_HD.to(self.movement_HD.dtype), dim=1)
            moved_H = torch.linalg.vector_norm(self.movement_HD, dim=1)
            moved_H = moved_H / (length_H + torch.finfo(length_H.dtype).tiny)
        return torch.where(self.touches_H > 0, moved_H, torch.inf)

    def begin_window(self) -> None:
        """Start a new measurement: all rows are unknown."""
        self.movement_HD.zero_()
        self.touches_H.zero_()

    def forget(self, slots: torch.Tensor) -> None:
        """Make slots (int64) unknown that now hold another row."""
        self.movement_HD.index_fill_(0, slots, 0)
        self.touches_H.index_fill_(0, slots, 0)
