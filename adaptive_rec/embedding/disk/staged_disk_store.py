"""The store of a device run whose tables are larger than host memory: a row is on the device, in host memory or on a disk.

The step is that of any staged store: the worker that stages a batch reads its cold rows where they are, and the write-back thread
writes them back there. Which rows are in host memory is decided at a window's end, like which are hot. A row that moves to host
memory is not read for that: it comes home to its new place with the next batch that trains it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.embedding.disk.disk_tier import DiskTier
from adaptive_rec.embedding.disk.logged_rows import LoggedRows
from adaptive_rec.embedding.disk.memory_slots import MemorySlots
from adaptive_rec.embedding.disk.two_homes import RowsInTwoHomes
from adaptive_rec.embedding.host import Arrays, GivenRows
from adaptive_rec.embedding.staged.in_flight import Flight
from adaptive_rec.embedding.staged.staged_store import StagedStore
from adaptive_rec.kernels.jit import usable_threads
from adaptive_rec.placement import Migration


class StagedDiskStore(LoggedRows, StagedStore):
    """Hot rows on the device, the next most popular ones in host memory, all others on a disk."""

    memory: MemorySlots

    def __init__(self, *arguments: Any, folder: Path, memory_bytes: int) -> None:
        """`arguments`: those of a `StagedStore`; `folder` must exist. `memory_bytes`: limit of the rows in host memory."""
        self._memory_bytes = memory_bytes
        self._keeping = threading.Lock()
        """Held while a snapshot keeps rows, and while it ends: the write-back thread writes meanwhile."""
        super().__init__(*arguments, folder=folder)
        self.threads = usable_threads(torch.get_num_threads())

    def _cold_tier(self, drawn: bool) -> DiskTier:  # type: ignore[override]
        self.memory = MemorySlots(self.space, self.rule, self.numpy_dtype, self._memory_bytes)
        return super()._cold_tier(drawn)

    def _host_rows(self) -> RowsInTwoHomes:
        return RowsInTwoHomes(self.space, self.memory, self.host, self._copier, self._keep)

    def _stage(self, flight: Flight) -> None:
        super()._stage(flight)
        rows = 0 if flight.staged is None else flight.staged.rows_read
        if flight.taken:
            self._rows_again += rows
        else:
            self._rows_ahead += rows

    # Moves -----------------------------------------------------------------------------------------------------------

    def place_in_memory(self, migration: Migration) -> None:
        if not migration.moved_rows:
            return
        self.settle()
        for pool, spec in enumerate(self.space.pools):
            self._write_out(pool, spec.select(migration.demote))
            rows = spec.select(migration.promote)
            with self.memory.moving:
                slots = self.memory.enter(pool, rows)
                found = self.host.read_in_memory(pool, rows - spec.first_row, slots, self.memory.arrays(pool))
                self.memory.fill(pool, slots[found], changed=slots[:0])

    def send_up(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        super().send_up(pool, host_rows, slots)
        self._leave_memory(pool, host_rows + self.space.pools[pool].first_row)

    def _write_out(self, pool: int, rows: NDArray[np.int64]) -> None:
        """Have rows leave host memory for the disk."""
        slots = self.memory.lines(pool, rows)
        is_in = slots < self.memory.capacities[pool]
        rows, slots = rows[is_in], slots[is_in]
        changed = self.memory.are_changed(pool, slots)
        host_rows = rows[changed] - self.space.pools[pool].first_row
        self.host.append(pool, host_rows, slots[changed], *self.memory.arrays(pool))
        self._leave_memory(pool, rows)

    def _leave_memory(self, pool: int, rows: NDArray[np.int64]) -> None:
        """Free the slots of those rows that have one: their values are elsewhere by now."""
        slots = self.memory.lines(pool, rows)
        is_in = slots < self.memory.capacities[pool]
        self._keep(pool, slots[is_in])
        self.memory.leave(pool, rows[is_in], slots[is_in])

    def _keep(self, pool: int, slots: NDArray[np.int64]) -> None:
        """Have the snapshot, if there is one, append rows in host memory that are about to change or to leave."""
        with self._keeping:
            if self.disk_snapshot is not None:
                self.disk_snapshot.keep(pool, slots)

    # Saving, whole tables, rows that are set -------------------------------------------------------------------------

    def _to_append(self, everything: bool) -> tuple[MemorySlots, list[NDArray[np.int64]]]:
        self.settle()
        self._collect_changed()
        for pool, spec in enumerate(self.space.pools):
            row_of_slot = self.device.row_of_slot[pool]
            hot = np.flatnonzero(row_of_slot >= 0)
            slots = hot[self.changed_R[row_of_slot[hot]]]
            self._append_hot(pool, slots, row_of_slot[slots] - spec.first_row)
        self._flag_moved(everything)
        return self.memory, self.memory.take_changed()

    def _append_hot(self, pool: int, slots: NDArray[np.int64], host_rows: NDArray[np.int64]) -> None:
        """Append rows of the device tier, which stay there."""

        def append(some: slice, packed: Arrays) -> None:
            rows = host_rows[some]
            self.host.append(pool, rows, np.arange(len(rows)), *packed)

        self._moves.down(pool, slots, append)

    def end_snapshot(self, saved: bool) -> None:
        with self._keeping:
            snapshot = self.disk_snapshot
            super().end_snapshot(saved)
        if snapshot is not None and not saved:
            self.memory.flag_changed(snapshot.changed)

    def export_table(self, table: int) -> Arrays:
        self.settle()
        pool, low, high = self.space.table_range(table)
        found = self.host.room_for(pool, high - low).arrays
        first = self.space.pools[pool].first_row
        slot_R = self.slot_of_row[first + low : first + high].astype(np.int64)
        cold, hot = np.flatnonzero(slot_R < 0), np.flatnonzero(slot_R >= 0)
        read = self.host.room_for(pool, len(cold)).arrays
        self._rows.read(pool, low + cold, read)
        for kept, of_cold, of_hot in zip(found, read, self._read_slots(pool, slot_R[hot]), strict=True):
            kept[cold], kept[hot] = of_cold, of_hot
        return found

    def _any_hot(self, pool: int, host_rows: NDArray[np.int64]) -> bool:
        """Whether some rows are on the device or have a slot in host memory."""
        slots = self.memory.slot_of_row[host_rows + self.space.pools[pool].first_row]
        return super()._any_hot(pool, host_rows) or bool((slots >= 0).any())

    def _read_cold(self, pool: int, host_rows: NDArray[np.int64]) -> Arrays:
        found = self.host.room_for(pool, len(host_rows)).arrays
        self._rows.read(pool, host_rows, found)
        return found

    def _overwrite(self, pool: int, host_rows: NDArray[np.int64], given: GivenRows) -> None:
        """Set cold rows, which are on the disk afterwards."""
        self._write_out(pool, host_rows + self.space.pools[pool].first_row)
        super()._overwrite(pool, host_rows, given)
