"""Where each row of a store is, and which rows have changed: what the parts of a store share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.records import Traffic
from adaptive_rec.kernels import staging
from adaptive_rec.placement import COLD, Migration, Placement, RowSpace

Flags = NDArray[np.bool_]


class RowIndex:
    """The slot of each row, flags of changed rows, and counts of moves. Only the training thread changes slots."""

    def __init__(self, space: RowSpace) -> None:
        self.space = space
        self.slot_of_row = np.full(space.rows, COLD, dtype=np.int32)
        self.changed_R: Flags = np.zeros(space.rows, dtype=np.bool_)
        """Rows updated since they were last saved; set by the update kernels."""
        self._unchanged_R: Flags = np.zeros(space.rows, dtype=np.bool_)
        """The next `changed_R`, all false."""
        self.placement = Placement(0, self.slot_of_row, any_hot=False)
        self.hot_rows_T = np.zeros(len(space.tables), dtype=np.int64)
        """Hot rows of each table."""
        self.traffic = Traffic()

    def host_rows(self, pool: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers within a pool of some of its rows."""
        return rows - self.space.pools[pool].first_row

    def joint_rows(self, pool: int, host_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers in the joint row space of some rows of a pool."""
        return host_rows + self.space.pools[pool].first_row

    def slots_of_pool(self, pool: int) -> NDArray[np.int32]:
        """Return a view of the slots of a pool's rows."""
        spec = self.space.pools[pool]
        return self.slot_of_row[spec.first_row : spec.end_row]

    def hot_among(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the hot ones of some rows, rising."""
        return np.sort(rows[self.slot_of_row[rows] != COLD])

    # Placements ------------------------------------------------------------------------------------------------------

    def end_migration(self, migration: Migration) -> None:
        """Count the rows of a migration."""
        self.traffic.add_migration(migration.moved_rows)
        self.hot_rows_T += self.space.count_by_table(migration.promote) - self.space.count_by_table(migration.demote)

    def begin_version(self) -> None:
        """Begin the next version of the placement: batches that were classified before are classified again."""
        before = self.placement
        self.placement = Placement(before.version + 1, self.slot_of_row, bool(self.hot_rows_T.any()), before.moves + 1)

    def renew(self) -> None:
        """Begin a version of the same placement, so that batches staged with former values are staged again."""
        self.placement = replace(self.placement, version=self.placement.version + 1)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Count no moves and bytes of what is done within: every row is where it was afterwards."""
        traffic, moves = replace(self.traffic), self.placement.moves
        yield
        self.traffic, self.placement = traffic, replace(self.placement, moves=moves)

    def restore(self, version: int) -> None:
        """Take the restored slots as a placement of this version."""
        self.hot_rows_T = self.space.count_by_table(np.flatnonzero(self.slot_of_row != COLD))
        self.placement = Placement(version, self.slot_of_row, bool(self.hot_rows_T.any()), version)

    def set_traffic(self, traffic: Traffic) -> None:
        """Continue from these counts."""
        self.traffic = traffic

    # Changed rows ----------------------------------------------------------------------------------------------------

    def flagging(
        self, first_row: int, rows_C: NDArray[np.int64], changed_C: Flags | None
    ) -> Callable[[int, int], None]:
        """Return the work that flags parts of some rows, which are counted from `first_row` on, as changed: those of `changed_C`
        or all of them (None). Any thread may do it."""

        def flag(first: int, end: int) -> None:
            chosen = None if changed_C is None else changed_C[first:end]
            staging.flag_rows(rows_C[first:end], chosen, first_row, self.changed_R)

        return flag

    def flagging_in(self, pool: int, host_rows_C: NDArray[np.int64], changed_C: Flags | None) -> Callable[[int, int], None]:
        """Return the same for rows by their numbers within a pool."""
        return self.flagging(self.space.pools[pool].first_row, host_rows_C, changed_C)

    def take_changed(self) -> None:
        """Begin new flags: those of a snapshot, which has the former ones, come back with `return_flags`."""
        self.changed_R = self._unchanged_R

    def return_flags(self, unchanged_R: Flags) -> None:
        """Take back the memory of flags, all false."""
        self._unchanged_R = unchanged_R
