"""Cold rows of a device run in two homes: the most popular ones in host memory, all others in a log on a disk.

Which rows are in host memory is decided at a window's end, like which are hot. A row that moves to host memory is not read for
that: it comes home to its new place with the next batch that trains it.

The staging worker reads while the write-back thread writes, and while the training thread moves rows: slots change rows under a
lock only, and a row that has left its slot is in the log by then. Rows move while no batch is on its way home.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from adaptive_rec.embedding.cold.copier import RowCopier
from adaptive_rec.embedding.cold.home import OfParts, no_rows
from adaptive_rec.embedding.cold.log import INDEX_BYTES, OnLog
from adaptive_rec.embedding.cold.memory_slots import MemorySlots
from adaptive_rec.embedding.first_values import FreshRows
from adaptive_rec.embedding.host import Arrays, GivenRows
from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.placement import Migration
from adaptive_rec.system.group import ALONE, Group


class Cascade(OnLog):
    """A memory of some cold rows before the log of all others."""

    memory: MemorySlots

    def __init__(
        self, index: RowIndex, rules: Sequence[RowRule], dtype: DTypeLike, first: FreshRows, folder: Path, memory_bytes: int,
        copier: RowCopier, group: Group = ALONE,
    ) -> None:  # fmt: skip
        """`folder` must exist. `memory_bytes`: limit of the rows in host memory."""
        super().__init__(index, rules, dtype, first, folder, group)
        self.memory = MemorySlots(index.space, rules[0], dtype, memory_bytes)
        self._copier = copier
        self._keeping = threading.Lock()
        """Held while a snapshot keeps rows, and while it ends: the write-back thread writes meanwhile."""

    # Values ----------------------------------------------------------------------------------------------------------

    def read(self, pool: int, rows_C: NDArray[np.int64], packed: Arrays) -> int:
        memory, behind = self.memory, self.memory.capacities[pool]
        with memory.moving:
            line_C = memory.lines(pool, self._index.joint_rows(pool, rows_C), filled=True)
            self._copier.gather(memory.arrays(pool), line_C, packed)
        absent = np.flatnonzero(line_C == behind)
        if len(absent):
            self.types.read(pool, rows_C[absent], absent, *packed)
        return len(absent)

    def write(
        self, pool: int, rows_C: NDArray[np.int64], packed: Arrays, changed_C: NDArray[np.bool_] | None, also: OfParts = no_rows
    ) -> None:
        memory, behind = self.memory, self.memory.capacities[pool]
        changed_C = np.ones(len(rows_C), np.bool_) if changed_C is None else changed_C
        line_C = memory.lines(pool, self._index.joint_rows(pool, rows_C))
        is_in_C = line_C < behind
        self._keep_slots(pool, line_C[is_in_C])
        self._copier.scatter(memory.arrays(pool), line_C, packed, also)
        memory.fill(pool, line_C[is_in_C], line_C[is_in_C & changed_C])
        rest = np.flatnonzero(changed_C & ~is_in_C)
        self.types.append(pool, rows_C[rest], rest, *packed)

    def overwrite(self, pool: int, rows_C: NDArray[np.int64], given: GivenRows) -> None:
        """Set rows, which are on the disk afterwards."""
        self._write_out(pool, self._index.joint_rows(pool, rows_C))
        super().overwrite(pool, rows_C, given)

    def is_near(self, pool: int, rows_C: NDArray[np.int64]) -> bool:
        return bool((self.memory.slot_of_row[self._index.joint_rows(pool, rows_C)] >= 0).any())

    # Moves -----------------------------------------------------------------------------------------------------------

    def place_in_memory(self, migration: Migration) -> None:
        """Move rows from the disk to host memory (`promote`) and back. No value changes, nor does the placement. No batch may be
        on its way home."""
        for pool, spec in enumerate(self._index.space.pools):
            self._write_out(pool, spec.select(migration.demote))
            rows = spec.select(migration.promote)
            with self.memory.moving:
                slots = self.memory.enter(pool, rows)
                found = self.read_near(pool, rows - spec.first_row, slots, self.memory.arrays(pool))
                self.memory.fill(pool, slots[found], changed=slots[:0])

    def leave(self, pool: int, rows_C: NDArray[np.int64]) -> None:
        self._free(pool, self._index.joint_rows(pool, rows_C))

    def _write_out(self, pool: int, rows: NDArray[np.int64]) -> None:
        """Have rows leave host memory for the disk."""
        slots = self.memory.lines(pool, rows)
        is_in = slots < self.memory.capacities[pool]
        rows, slots = rows[is_in], slots[is_in]
        changed = self.memory.are_changed(pool, slots)
        host_rows = self._index.host_rows(pool, rows[changed])
        self.types.append(pool, host_rows, slots[changed], *self.memory.arrays(pool))
        self._free(pool, rows)

    def _free(self, pool: int, rows: NDArray[np.int64]) -> None:
        """Free the slots of those rows that have one: their values are elsewhere by now."""
        slots = self.memory.lines(pool, rows)
        is_in = slots < self.memory.capacities[pool]
        self._keep_slots(pool, slots[is_in])
        self.memory.leave(pool, rows[is_in], slots[is_in])

    # Saving ----------------------------------------------------------------------------------------------------------

    def keep(self, pool: int, rows_C: NDArray[np.int64], slots_C: NDArray[np.int64]) -> None:
        """Do nothing: what changes in host memory is written by `write`, and hot rows are appended when a snapshot begins."""

    def _keep_slots(self, pool: int, slots: NDArray[np.int64]) -> None:
        """Have the snapshot, if there is one, append rows in host memory that are about to change or to leave."""
        with self._keeping:
            if self.snapshot is not None:
                self.snapshot.keep(pool, slots)

    def changed_bytes(self, hot: HotRows) -> int:
        hot.flag_changed()
        return INDEX_BYTES * int(np.count_nonzero(self._index.changed_R))

    def _to_append(self, hot: HotRows, everything: bool) -> tuple[MemorySlots, list[NDArray[np.int64]]]:
        hot.flag_changed()
        changed_R = self._index.changed_R
        for pool in range(len(self._index.space.pools)):
            row_of_slot = hot.tier.row_of_slot[pool]
            slots = np.flatnonzero(row_of_slot >= 0)
            slots = slots[changed_R[row_of_slot[slots]]]
            self._append_hot(hot, pool, slots, self._index.host_rows(pool, row_of_slot[slots]))
        self._flag_moved(everything)
        return self.memory, self.memory.take_changed()

    def _append_hot(self, hot: HotRows, pool: int, slots: NDArray[np.int64], host_rows: NDArray[np.int64]) -> None:
        """Append hot rows, which stay hot."""
        hot.down(pool, slots, lambda some, packed: self.draw(pool, host_rows[some], packed))

    def end_snapshot(self, saved: bool) -> None:
        with self._keeping:
            snapshot = self.snapshot
            super().end_snapshot(saved)
        if snapshot is not None and not saved:
            self.memory.flag_changed(snapshot.changed)
