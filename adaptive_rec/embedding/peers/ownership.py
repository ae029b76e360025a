"""The owners of rows: each row belongs to one rank, which alone has its value and its optimizer state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import TableSpec
from adaptive_rec.kernels import owners
from adaptive_rec.placement import MAX_ROWS, RowSpace


@dataclass(frozen=True)
class Ownership:
    """The rows of a joint row space, dealt out among the ranks of a group (see `kernels/owners.py`), or some tables whole."""

    space: RowSpace
    ranks: int
    rank: int
    kinds: tuple[int, ...] = ()
    """Kinds of tables, where each has pools of its own."""
    home_T: tuple[int, ...] = ()
    """The rank that owns each table whole, -1 where its rows are dealt out; empty: all are."""

    @cached_property
    def own(self) -> RowSpace:
        """The rows of this rank: the same tables with a part of their rows each, in the same pools, and a feature for each pool.
        Where a table's rows are no multiple of the ranks, its last row may be nobody's, and is never read; so is the one row that
        a table has here which another rank owns whole."""
        return self.own_of(self.rank)

    def own_of(self, rank: int) -> RowSpace:
        """Return the rows of a rank, likewise."""
        homes = self._homes.tolist()
        tables = (
            TableSpec(each.name, -(-each.rows // self.ranks) if home < 0 else each.rows if home == rank else 1, each.dim)
            for each, home in zip(self.space.tables, homes, strict=True)
        )
        kinds = self.kinds
        if not kinds and len(self.space.pools) > len(self.space.dims):  # a pool for each table
            kinds = tuple(range(len(self.space.tables)))
        return RowSpace.by_pool(tuple(tables), kinds)

    @cached_property
    def _homes(self) -> NDArray[np.int64]:
        return np.array(self.home_T or [-1] * len(self.space.tables), dtype=np.int64)

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self.space.table_first_row, kind="stable")

    @cached_property
    def _tables(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """First row, home, and first row among those of each rank (W, T) of the tables in their order; see `find_owners`."""
        firsts_WT = [self.own_of(rank).table_first_row for rank in (range(self.ranks) if self.home_T else (self.rank,))]
        order = self._order
        return self.space.table_first_row[order], self._homes[order], np.stack(firsts_WT).take(order, axis=1)

    def split(self, rows_U: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the owner of each row (U), and the row's number in the owner's `own` (U)."""
        owner_U, own_row_U = np.empty_like(rows_U), np.empty_like(rows_U)
        owners.find_owners(rows_U, *self._tables, self.ranks, owner_U, own_row_U)
        return owner_U, own_row_U

    def owned_ids(self, table: int) -> NDArray[np.int64]:
        """Return the ids of a table that this rank owns, in the order of their rows; the last one may be beyond the table."""
        return self.ids_of(table, np.arange(self.own.tables[table].rows))

    def joint_rows(self, own_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers in the joint row space of some of this rank's rows; -1 for a row that is nobody's. They rise where
        the rank's numbers do."""
        starts = self.own.table_first_row[self._order]
        table = self._order[np.searchsorted(starts, own_rows, side="right") - 1]
        ids = self.ids_of(table, own_rows - self.own.table_first_row[table])
        rows_T = np.array([each.rows for each in self.space.tables])
        return np.where(ids < rows_T[table], self.space.table_first_row[table] + ids, -1)

    def ids_of(self, table: int | NDArray[np.int64], row_R: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of some of this rank's rows of a table (or of a table for each), by their numbers in their part of it;
        the last one may be beyond the table."""
        ids = np.empty_like(row_R)
        owners.find_ids(row_R, self.ranks, self.rank, ids)
        home = self._homes[table]
        return ids if not self.home_T else np.where(home < 0, ids, np.where(home == self.rank, row_R, MAX_ROWS))
