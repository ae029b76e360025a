"""Cold rows of a device run in two homes: host memory and a disk."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.disk.disk_tier import DiskTier
from adaptive_rec.embedding.disk.memory_slots import MemorySlots
from adaptive_rec.embedding.host import Arrays
from adaptive_rec.embedding.staged.host_rows import OfParts, RowCopier, no_rows
from adaptive_rec.placement import RowSpace


class RowsInTwoHomes:
    """Reads a row in the one home that has its value, and writes it to the one where it lives from then on.

    The staging worker reads while the write-back thread writes, and while the training thread moves rows: slots
    change rows under a lock only, and a row that has left its slot is in the log by then. Rows move while no flight is on its
    way home.
    """

    def __init__(
        self, space: RowSpace, memory: MemorySlots, disk: DiskTier, copier: RowCopier,
        keep: Callable[[int, NDArray[np.int64]], None],
    ) -> None:  # fmt: skip
        """`keep` is called with the pool and slots of rows in memory that are about to change."""
        self._space, self._memory, self._disk, self._copier, self._keep = space, memory, disk, copier, keep

    def read(self, pool: int, rows_C: NDArray[np.int64], packed: Arrays) -> int:
        memory, behind = self._memory, self._memory.capacities[pool]
        with memory.moving:
            line_C = memory.lines(pool, rows_C + self._space.pools[pool].first_row, filled=True)
            self._copier.gather(memory.arrays(pool), line_C, packed)
        absent = np.flatnonzero(line_C == behind)
        if len(absent):
            self._disk.read(pool, rows_C[absent], absent, *packed)
        return len(absent)

    def write(
        self, pool: int, rows_C: NDArray[np.int64], packed: Arrays, changed_C: NDArray[np.bool_] | None, also: OfParts = no_rows
    ) -> None:
        memory, behind = self._memory, self._memory.capacities[pool]
        changed_C = np.ones(len(rows_C), np.bool_) if changed_C is None else changed_C
        line_C = memory.lines(pool, rows_C + self._space.pools[pool].first_row)
        is_in_C = line_C < behind
        self._keep(pool, line_C[is_in_C])
        self._copier.scatter(memory.arrays(pool), line_C, packed, also)
        memory.fill(pool, line_C[is_in_C], line_C[is_in_C & changed_C])
        rest = np.flatnonzero(changed_C & ~is_in_C)
        self._disk.append(pool, rows_C[rest], rest, *packed)
