"""Cold rows of a device run that are in host memory. All other cold rows are on the disk."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import DTypeLike, NDArray

from adaptive_rec.embedding.device import row_bytes, split_budget
from adaptive_rec.embedding.host import Arrays, ColdTier
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.placement import COLD, RowSpace

PLACE_BYTES = 4
"""Host memory of a row: its slot."""
SLOT_BYTES = 8 + 1 + 1
"""Host memory of a slot besides its row: the row's number, two flags."""


class MemorySlots:
    """The slots of every pool. Rows are given by their numbers in the joint row space.

    A slot is *empty* while the value of its row is on the disk alone: a row that gets a slot is not read for that. A slot is
    *changed* where its value is newer than that on the disk; then the store's `changed_R` flags the row too.
    """

    def __init__(self, space: RowSpace, rule: RowRule, dtype: DTypeLike, budget_bytes: int) -> None:
        """`dtype` is as in `ColdTier`; `budget_bytes`: limit of the rows with their optimizer state."""
        sizes = row_bytes(space, rule, np.dtype(dtype).itemsize, monitored=False)
        slots_P = split_budget(space, sizes, budget_bytes)
        self._space = space
        self._rows = ColdTier(space, rule, dtype, [slots + 1 for slots in slots_P])
        self.slot_of_row = np.full(space.rows, COLD, dtype=np.int32)
        self.row_of_slot = [np.full(slots, -1, dtype=np.int64) for slots in slots_P]
        """Row of each slot, -1 where the slot is free."""
        self._filled = [np.zeros(slots + 1, np.bool_) for slots in slots_P]
        """The last one of each pool stands for rows without a slot."""
        self._changed = [np.zeros(slots, np.bool_) for slots in slots_P]
        self.moving = threading.Lock()
        """Held while slots get other rows, and while a thread reads slots that another one may give away."""

    @property
    def capacities(self) -> list[int]:
        return [len(rows) for rows in self.row_of_slot]

    def rows_of(self, pool: int) -> NDArray[np.int64]:
        """Return the rows of a pool that have a slot, in the order of the slots."""
        rows = self.row_of_slot[pool]
        return rows[rows >= 0]

    @property
    def rows(self) -> int:
        """Number of all rows that have a slot."""
        return sum(int(np.count_nonzero(rows >= 0)) for rows in self.row_of_slot)

    def arrays(self, pool: int) -> Arrays:
        """Return the rows and optimizer state of a pool's slots; the line behind the last slot takes what has none."""
        return self._rows.arrays(pool)

    def lines(self, pool: int, rows: NDArray[np.int64], filled: bool = False) -> NDArray[np.int64]:
        """Return the slot of each row of a pool; the number behind the last slot for rows that have none or, with `filled`, an
        empty one."""
        slots, behind = self.slot_of_row[rows].astype(np.int64), len(self.row_of_slot[pool])
        slots[slots < 0] = behind
        return np.where(self._filled[pool][slots], slots, behind) if filled else slots

    def share(self, slot_R: NDArray[np.int32]) -> None:
        """Keep the slots of all rows in this memory from now on, which other processes read."""
        with self.moving:
            slot_R[:] = self.slot_of_row
            self.slot_of_row = slot_R

    # Values ----------------------------------------------------------------------------------------------------------

    def fill(self, pool: int, slots: NDArray[np.int64], changed: NDArray[np.int64]) -> None:
        """Note that slots have the values of their rows; those of the slots `changed` are newer than on the disk. The homing
        thread calls it beside others, so flags are set here and never cleared."""
        self._changed[pool][changed] = True
        self._filled[pool][slots] = True

    def are_changed(self, pool: int, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self._changed[pool][slots]

    def take_changed(self) -> list[NDArray[np.int64]]:
        """Return the changed slots of each pool, which count as unchanged from then on."""
        found = [np.flatnonzero(changed) for changed in self._changed]
        for changed in self._changed:
            changed[:] = False
        return found

    def flag_changed(self, rows: NDArray[np.int64]) -> None:
        """Have those of some rows that have values here count as changed."""
        for pool, spec in enumerate(self._space.pools):
            slots = self.lines(pool, spec.select(rows), filled=True)
            self._changed[pool][slots[slots < len(self._changed[pool])]] = True

    # Moves -----------------------------------------------------------------------------------------------------------

    def enter(self, pool: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give rows that have none a slot, which is empty. Returns the slots."""
        slots = np.flatnonzero(self.row_of_slot[pool] < 0)[: len(rows)]
        assert len(slots) == len(rows), "no more rows may enter than there are free slots"
        self.row_of_slot[pool][slots] = rows
        self.slot_of_row[rows] = slots
        return slots

    def leave(self, pool: int, rows: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """Free the slots of some rows, with the values there."""
        with self.moving:
            self.slot_of_row[rows] = COLD
            self.row_of_slot[pool][slots] = -1
            self._filled[pool][slots] = False
            self._changed[pool][slots] = False
