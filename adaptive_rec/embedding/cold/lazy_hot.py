"""Hot rows of a CPU run whose cold rows lie on a disk.

A row that becomes hot is not read from the disk for that: unless the log still has it in memory, its slot is *empty* until the
first batch that needs the row brings it along. A slot that was filled from the log is *unsaved* where no checkpoint has the
row's address; from then on `changed_R` flags only that the row has changed since, so that a row that has not is never written
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.device import DeviceTier
from adaptive_rec.embedding.hot import Home, HotRows
from adaptive_rec.kernels.row_sets import are_without_value


class SlotValues:
    """Which slots have the value of their row. Rows are given by their joint numbers, slots by their numbers in the pool."""

    def __init__(self, capacities: Sequence[int]) -> None:
        self._empty = [np.ones(slots, np.bool_) for slots in capacities]
        self._unsaved = [np.zeros(slots, np.bool_) for slots in capacities]

    @property
    def unsaved_slots(self) -> int:
        return sum(int(np.count_nonzero(unsaved)) for unsaved in self._unsaved)

    def are_absent(self, pool: int, slot_N: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return which rows are not in memory: cold ones (negative), and those whose slots are empty or of a former, larger
        tier."""
        absent_N = np.empty(len(slot_N), np.bool_)
        are_without_value(slot_N, self._empty[pool], absent_N)
        return absent_N

    def fill(self, pool: int, slots: NDArray[np.int64], rows: NDArray[np.int64], changed_R: NDArray[np.bool_]) -> None:
        """Note that slots have the values of their rows, as the log has them."""
        self._empty[pool][slots] = False
        self._unsaved[pool][slots] = changed_R[rows]
        changed_R[rows] = False

    def clear(self, pool: int, slots: NDArray[np.int64], rows: NDArray[np.int64], changed_R: NDArray[np.bool_]) -> None:
        """Note that the log has the values of rows that leave their slots."""
        changed_R[rows] |= self._unsaved[pool][slots]
        self._unsaved[pool][slots] = False
        self._empty[pool][slots] = True

    def take_unsaved(self, row_of_slot: Sequence[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of each pool's unsaved slots, which count as saved from then on."""
        for unsaved, rows in zip(self._unsaved, row_of_slot, strict=True):
            yield rows[unsaved]
            unsaved[:] = False


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
