"""The owners of rows: each row belongs to one rank, which alone has its value and its optimizer state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import TableSpec
from adaptive_rec.kernels import owners
from adaptive_rec.placement import RowSpace


@dataclass(frozen=True)
class Ownership:
    """The rows of a joint row space, shared out evenly among the ranks of a group (see `kernels/owners.py`)."""

    space: RowSpace
    ranks: int
    rank: int
    kinds: tuple[int, ...] = ()
    """Kinds of tables, where each has pools of its own."""

    @cached_property
    def own(self) -> RowSpace:
        """The rows of this rank: the same tables with a part of their rows each, in the same pools, and a feature for each pool.
        Where a table's rows are no multiple of the ranks, its last row may be nobody's, and is never read."""
        tables = (TableSpec(each.name, -(-each.rows // self.ranks), each.dim) for each in self.space.tables)
        kinds = self.kinds
        if not kinds and len(self.space.pools) > len(self.space.dims):  # a pool for each table
            kinds = tuple(range(len(self.space.tables)))
        return RowSpace.by_pool(tuple(tables), kinds)

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self.space.table_first_row, kind="stable")

    def split(self, rows_U: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the owner of each row (U), and the row's number in the owner's `own` (U)."""
        owner_U, own_row_U = np.empty_like(rows_U), np.empty_like(rows_U)
        firsts = self.space.table_first_row[self._order], self.own.table_first_row[self._order]
        owners.find_owners(rows_U, *firsts, self.ranks, owner_U, own_row_U)
        return owner_U, own_row_U

    def owned_ids(self, table: int) -> NDArray[np.int64]:
        """Return the ids of a table that this rank owns, in the order of their rows; the last one may be beyond the table."""
        return self.ids_of(np.arange(self.own.tables[table].rows))

    def joint_rows(self, own_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers in the joint row space of some of this rank's rows; -1 for a row that is nobody's. They rise where
        the rank's numbers do."""
        starts = self.own.table_first_row[self._order]
        table = self._order[np.searchsorted(starts, own_rows, side="right") - 1]
        block = own_rows - self.own.table_first_row[table]
        ids = self.ids_of(block)
        rows_T = np.array([each.rows for each in self.space.tables])
        return np.where(ids < rows_T[table], self.space.table_first_row[table] + ids, -1)

    def ids_of(self, block_R: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of some of this rank's rows of a table, by their numbers in their part of the table; the last one may be
        beyond the table."""
        ids = np.empty_like(block_R)
        owners.find_ids(block_R, self.ranks, self.rank, ids)
        return ids
