"""Rows of a CPU run in memory and on a disk, between two steps: moves, saving, whole tables. `disk_store.py` is the step.

A row that becomes hot is not read from the disk for that: unless the log still has it in memory, its slot is *empty* until the
first batch that needs the row brings it along (`slot_values.py`).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.embedding.device import DeviceTier
from adaptive_rec.embedding.direct import DirectStore
from adaptive_rec.embedding.disk.logged_rows import CHUNK_ROWS, INDEX_BYTES, LoggedRows
from adaptive_rec.embedding.disk.slot_values import SlotValues
from adaptive_rec.embedding.host import Arrays
from adaptive_rec.embedding.missed_steps import MissedSteps
from adaptive_rec.kernels.row_update import TierArrays
from adaptive_rec.placement import COLD


class DiskRows(LoggedRows, DirectStore):
    """The part of a `DiskStore` that works between two steps. Of rows in filled slots `changed_R` has another meaning, see
    `SlotValues`."""

    def _device_tier(self, capacities: list[int]) -> DeviceTier:
        self._slots = SlotValues(capacities)
        return super()._device_tier(capacities)

    # Moves -----------------------------------------------------------------------------------------------------------

    def _bring_home(self, pool: int, slots: NDArray[np.int64], host_rows: NDArray[np.int64]) -> None:
        if self.disk_snapshot is not None:
            self.disk_snapshot.keep(pool, slots)
        rows = host_rows + self.space.pools[pool].first_row
        changed = self.changed_R[rows] & ~self._slots.are_absent(pool, slots)
        self.host.append(pool, host_rows[changed], slots[changed], *self.device.arrays(pool))
        self._slots.clear(pool, slots, rows, self.changed_R)
        if self.monitored:
            self.device.monitors[pool].forget(torch.from_numpy(slots))

    def send_up(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """The slots of those that are on the disk alone stay empty."""
        found = self.host.read_in_memory(pool, host_rows, slots, self.device.arrays(pool))
        self._slots.fill(pool, slots[found], host_rows[found] + self.space.pools[pool].first_row, self.changed_R)

    def catch_up(self, pool: int, row_N: NDArray[np.int64], missed: MissedSteps, next_step: int = 0) -> None:
        spec, rows = self.space.pools[pool], np.unique(row_N)
        slot_R = self.slot_of_row[spec.first_row : spec.end_row]
        is_absent = self._slots.are_absent(pool, slot_R[rows])
        hot, absent = rows[~is_absent], rows[is_absent]
        missed.make(hot, slot_R, next_step, TierArrays(*self.device.arrays(pool), *self.host.arrays(pool)))
        self.changed_R[spec.first_row + hot] = True
        for first in range(0, len(absent), CHUNK_ROWS):
            some = absent[first : first + CHUNK_ROWS]
            part, lines = self.host.room_for(pool, len(some)), np.arange(len(some))
            self.host.read(pool, some, lines, *part.arrays)
            before_C = part.state_UK[:, -1].copy()  # the number of the last step that a row has had
            missed.make(lines, np.full(len(some), COLD), next_step, TierArrays(*self.device.arrays(pool), *part.arrays))
            moved = np.flatnonzero(part.state_UK[:, -1] != before_C)
            self.host.append(pool, some[moved], moved, *part.arrays)

    # Saving ----------------------------------------------------------------------------------------------------------

    @property
    def changed_bytes(self) -> int:
        return super().changed_bytes + INDEX_BYTES * self._slots.unsaved_slots

    def _to_append(self, everything: bool) -> tuple[DeviceTier, list[NDArray[np.int64]]]:
        self._flag_moved(everything)
        slots = self._slots_in_memory(np.flatnonzero(self.changed_R))
        for rows in self._slots.take_unsaved(self.device.row_of_slot):
            self.changed_R[rows] = True  # only their addresses are saved: the log has their values
        return self.device, slots

    def _slots_in_memory(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return for each pool the slots that have the values of some rows."""
        found = []
        for pool, spec in enumerate(self.space.pools):
            slots = self.slot_of_row[spec.select(rows)].astype(np.int64)
            found.append(slots[~self._slots.are_absent(pool, slots)])
        return found

    # Whole tables ----------------------------------------------------------------------------------------------------

    def export_table(self, table: int) -> Arrays:
        pool, low, high = self.space.table_range(table)
        part = self.host.room_for(pool, high - low)
        slot_R = self.slot_of_row[self.space.pools[pool].first_row + low : self.space.pools[pool].first_row + high]
        is_absent = self._slots.are_absent(pool, slot_R)
        absent, hot = np.flatnonzero(is_absent), np.flatnonzero(~is_absent)
        self.host.read(pool, low + absent, absent, *part.arrays)
        for kept, read in zip(part.arrays, self._read_slots(pool, slot_R[hot].astype(np.int64)), strict=True):
            kept[hot] = read
        return part.arrays
