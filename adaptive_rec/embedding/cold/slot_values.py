"""Which slots have the value of their row.

A slot is *empty* while the value of its row is on the disk alone. One that was filled from the log is *unsaved* where no
checkpoint has the row's address; from then on `changed_R` flags only that the row has changed since, so that a row that has not
is never written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


class SlotValues:
    """The slots of all pools. Rows are given by their joint numbers, slots by their numbers in the pool."""

    def __init__(self, capacities: Sequence[int]) -> None:
        self._empty = [np.ones(1 + slots, np.bool_) for slots in capacities]
        """The last one of each pool stands for cold rows."""
        self._unsaved = [np.zeros(slots, np.bool_) for slots in capacities]

    @property
    def unsaved_slots(self) -> int:
        return sum(int(np.count_nonzero(unsaved)) for unsaved in self._unsaved)

    def are_absent(self, pool: int, slot_N: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return which rows are not in memory: cold ones (negative), and those whose slots are empty or of a former, larger
        tier."""
        empty = self._empty[pool]
        return empty[np.where(slot_N < 0, -1, np.minimum(slot_N, len(empty) - 1))]

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
