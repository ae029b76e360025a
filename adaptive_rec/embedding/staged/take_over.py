"""The rows that a batch takes over from earlier ones, as a table in its slot: one kernel copies them all.

Every queue of work costs the training thread as much as many rows cost the device, so their number must not grow with the number
of earlier batches, pools and arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from adaptive_rec.embedding.staged.packing import SlotLayout
from adaptive_rec.embedding.staged.ring import Slot
from adaptive_rec.embedding.staged.travelling import Taken

Rows: TypeAlias = tuple[Tensor, Tensor]
"""Weights and optimizer state of a pool, in one slot."""


@dataclass(frozen=True)
class RowsTaken:
    """Rows that are taken over, on the device: see `kernels.cuda.take_rows`."""

    table_L8: Tensor
    from_R: Tensor
    to_R: Tensor
    longest: int
    unit_bytes: int


class RoomForTable:
    """Places in a slot of the table of the rows that a batch takes over. It has a line for each pool and earlier batch that share
    rows."""

    def __init__(self, layout: SlotLayout, taken: Taken) -> None:
        self._taken = taken
        rows = sum(count for *_, count in taken.lines)
        self._table = layout.add(torch.int64, len(taken.lines), 8)
        self._places = layout.add_numbers([rows, rows])

    def write(self, slot: Slot, memory: list[tuple[Rows, Rows]]) -> RowsTaken:
        """Write the table into the pinned half of a slot. Each line has its memory: where rows are and where they go to."""
        lines, first, unit_bytes = [], 0, 4
        for (*_, count), both in zip(self._taken.lines, memory, strict=True):
            line = [first, count]
            for source, target in zip(*both, strict=True):
                row_bytes = target.shape[1] * target.itemsize
                line += [source.data_ptr(), target.data_ptr(), row_bytes]
                if row_bytes % 4:
                    unit_bytes = 2
            lines.append(line)
            first += count
        self._table.pinned(slot)[:] = lines
        self._taken.write(*self._places.pinned(slot))
        longest = max(count for *_, count in self._taken.lines)
        from_R, to_R = self._places.device(slot)
        return RowsTaken(self._table.device(slot), from_R, to_R, longest, unit_bytes)
