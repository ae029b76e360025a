"""Hot rows of a CPU run whose cold rows lie on a disk.

A row that becomes hot is not read from the disk for that: unless the log still has it in memory, its slot is *empty* until the
first batch that needs the row brings it along (`slot_values.py`). Of rows in filled slots `changed_R` has another meaning, see
`SlotValues`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.cold.slot_values import SlotValues
from adaptive_rec.embedding.device import DeviceTier
from adaptive_rec.embedding.hot import Home, HotRows


class LazyHotRows(HotRows):
    """Hot rows, some of whose values are on the disk alone."""

    def _make_tier(self, capacities: list[int]) -> DeviceTier:
        self.values = SlotValues(capacities)
        return super()._make_tier(capacities)

    def up(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64], cold: Home) -> None:
        """The slots of those that are on the disk alone stay empty."""
        found = cold.read_near(pool, host_rows, slots, self.tier.arrays(pool))
        self.fill(pool, slots[found], self._index.joint_rows(pool, host_rows[found]))

    def leave(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64], cold: Home) -> None:
        cold.keep(pool, host_rows, slots)
        super().leave(pool, host_rows, slots, cold)

    def fill(self, pool: int, slots: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Note that slots have the values of their rows, as the log has them."""
        self.values.fill(pool, slots, rows, self._index.changed_R)

    def absent(self, pool: int, slot_N: NDArray[np.integer]) -> NDArray[np.bool_]:
        return self.values.are_absent(pool, slot_N)

    def _with_values(self, pool: int, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        return ~self.values.are_absent(pool, slots)

    def _forget(self, pool: int, slots: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        self.values.clear(pool, slots, rows, self._index.changed_R)
        super()._forget(pool, slots, rows)

    # Saving ----------------------------------------------------------------------------------------------------------

    @property
    def unsaved_slots(self) -> int:
        """Slots whose rows' addresses no checkpoint has."""
        return self.values.unsaved_slots

    def slots_with_values(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return for each pool the slots that have the values of some rows."""
        found = []
        for pool, spec in enumerate(self._index.space.pools):
            slots = self._index.slot_of_row[spec.select(rows)].astype(np.int64)
            found.append(slots[self._with_values(pool, slots)])
        return found

    def flag_unsaved(self) -> None:
        """Flag the rows of unsaved slots as changed, which count as saved from then on."""
        for rows in self.values.take_unsaved(self.tier.row_of_slot):
            self._index.changed_R[rows] = True
