"""The update-delta monitor measures how far hot rows move, to tell rows that still learn from rows that have settled."""

from __future__ import annotations

import torch

from adaptive_rec.kernels.record import MEASURES, add_to_record, measure, record_bytes

__all__ = ["MEASURES", "UpdateDeltaMonitor"]


class UpdateDeltaMonitor:
    """Displacements of one pool's hot rows over the probe steps of a window. Lives on the device tier's device.

    Slipstream (arXiv 2404.04270) compares two snapshots of all hot rows; here displacements are added up as rows are
    touched, and over probe steps only. A frozen row moves in no other step, so measuring all steps would make rows look
    settled because they are frozen. Rows not touched in a probe step of the window are unknown, not settled.
    """

    def __init__(self, capacity: int, dim: int, device: torch.device | str = "cpu") -> None:
        self.record_HR = torch.zeros((capacity, record_bytes(dim)), dtype=torch.int8, device=device)
        """Sum of (after - before), so that a row that moves forth and back has not moved, and that of the squared lengths: see
        `kernels.record`."""
        self.touches_H = torch.zeros(capacity, dtype=torch.int32, device=device)
        """Probe steps of this window in which the slot's row was updated."""

    @staticmethod
    def bytes_per_slot(dim: int) -> int:
        """Return the bytes of a slot; they count towards the hot budget."""
        return record_bytes(dim) + torch.int32.itemsize

    def observe(self, slots: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> None:
        """Record a probe step: `slots` (int64, distinct) held `before` (n, D) and hold `after` (n, D)."""
        wide = torch.promote_types(after.dtype, torch.float32)  # rows may be of 16 bits: their difference would be rounded
        add_to_record(self.record_HR, slots, self.touches_H[slots], after.to(wide) - before.to(wide))
        self.touches_H[slots] += 1

    def measure(self, weights_HD: torch.Tensor) -> torch.Tensor:
        """Return (H, MEASURES) numbers, in the unit of the weights; for untouched slots all are 0 but the row's length."""
        return measure(self.record_HR, weights_HD.to(torch.promote_types(weights_HD.dtype, torch.float32)))

    def begin_window(self) -> None:
        """Start a new measurement: all rows are unknown."""
        self.record_HR.zero_()
        self.touches_H.zero_()

    def forget(self, slots: torch.Tensor) -> None:
        """Mark slots (int64) that now hold another row as unknown."""
        self.record_HR.index_fill_(0, slots, 0)
        self.touches_H.index_fill_(0, slots, 0)
