"""The rows that a batch takes over from earlier ones, as a table in its slot: one kernel copies them all.

Every queue of work costs the training thread as much as many rows cost the device, so their number must not grow with the number
of earlier batches, pools and arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.embedding.staged.packing import INT32, SlotLayout
from adaptive_rec.embedding.staged.ring import Slot

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
    """Places of a table in a slot. It has a line for each pool and earlier batch that share rows."""

    def __init__(self, layout: SlotLayout, counts: list[int]) -> None:
        """`counts`: rows of each line."""
        self._counts, rows = counts, sum(counts)
        self._table = layout.add(torch.int64, len(counts), 8)
        self._from, self._to = layout.add(INT32, rows), layout.add(INT32, rows)

    def write(
        self, slot: Slot, memory: list[tuple[Rows, Rows]], places: list[tuple[NDArray[np.int32], NDArray[np.int64]]]
    ) -> RowsTaken:
        """Write the table into the pinned half of a slot. Each line has its memory, where rows are and where they go to, and the
        places of its rows in both."""
        table_L8 = self._table.pinned(slot)
        from_R, to_R = self._from.pinned(slot), self._to.pinned(slot)
        first, unit_bytes = 0, 4
        for number, (count, (theirs, mine), (from_C, to_C)) in enumerate(
            zip(self._counts, memory, places, strict=True)
        ):
            span = slice(first, first + count)
            from_R[span], to_R[span] = from_C, to_C
            line = [first, count]
            for source, target in zip(theirs, mine, strict=True):
                row_bytes = target.shape[1] * target.itemsize
                line += [source.data_ptr(), target.data_ptr(), row_bytes]
                if row_bytes % 4:
                    unit_bytes = 2
            table_L8[number] = line
            first += count
        places_R = self._from.device(slot), self._to.device(slot)
        return RowsTaken(self._table.device(slot), *places_R, max(self._counts), unit_bytes)
