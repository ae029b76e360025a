"""Rows that are set from outside of training: those of imported tables, and those of raw keys."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.host import Arrays, GivenRows, first_bound
from adaptive_rec.embedding.tiered_rows import NO_ROWS, TieredRows
from adaptive_rec.kernels.fill import fill_rows
from adaptive_rec.placement import COLD, Migration


@dataclass(frozen=True)
class _Drawn:
    """Rows of a pool that were drawn beside the training thread."""

    pool: int
    host_rows: NDArray[np.int64]
    values: tuple[NDArray[Any], NDArray[Any]]
    any_hot: bool
    """Whether some were hot then."""


class SettableRows(TieredRows):
    """The part of a store that sets rows."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._drawn: deque[_Drawn] = deque()
        """Rows that were drawn since the last step."""

    def import_rows(self, table: int, first: int, weights_ND: NDArray[Any], state_NK: NDArray[Any]) -> None:
        """Set a table's rows from number `first` on. Only before training, when every row is cold."""
        assert self.placement.version == 0, "rows are imported before the first migration"
        pool, low, _ = self.space.table_range(table)
        self._overwrite(pool, low + np.arange(first, first + len(weights_ND)), (weights_ND, state_NK))

    def replace_table(self, table: int, weights_ND: NDArray[Any] | None, state_NK: NDArray[Any] | None) -> None:
        """Set all rows of a table, or their optimizer state, or both. Hot rows are hot again afterwards."""
        pool, low, high = self.space.table_range(table)
        self._replace(pool, np.arange(low, high), (weights_ND, state_NK))

    def replace_rows(self, table: int, row_N: NDArray[np.int64], weights_ND: NDArray[Any]) -> None:
        """Set some rows of a table, by their numbers in the table, each given once."""
        pool, low, _ = self.space.table_range(table)
        self._replace(pool, low + row_N, (weights_ND, None))

    def _replace(self, pool: int, host_rows: NDArray[np.int64], given: GivenRows) -> None:
        """Set rows in the host tier, while none of them is hot."""
        rows = host_rows + self.space.pools[pool].first_row
        hot = np.sort(rows[self.slot_of_row[rows] != COLD])
        self.migrate(Migration(promote=NO_ROWS, demote=hot))
        self.settle()
        self._overwrite(pool, host_rows, given)
        self.changed_R[rows] = True
        # A new version, so that batches staged with the former rows are staged again, even if no row is hot.
        self.placement = replace(self.placement, version=self.placement.version + 1)
        self.migrate(Migration(promote=hot, demote=NO_ROWS))

    def draw_rows(self, table: int, row_C: NDArray[np.int64], key_C: NDArray[np.int64], rows: int) -> None:
        """Set rows of a table, by their numbers in it, to the first values of keys, as in a table of `rows`. No batch may have
        looked these rows up yet. One thread may call it beside the training thread, which calls `finish_draws`."""
        pool, low, _ = self.space.table_range(table)
        host_rows = low + row_C
        weights, state = (np.zeros((len(row_C), like.shape[1]), like.dtype) for like in self.host.arrays(pool))
        fill_rows(np.uint64(self.seed % 2**64), table, first_bound(rows), key_C, weights)
        self._set_ahead(pool, host_rows, (weights, state))

    def restore_rows(self, table: int, row_C: NDArray[np.int64], values: Arrays) -> None:
        """Set rows that were drawn to other values, which `read_rows` has returned, under the same conditions."""
        pool, low, _ = self.space.table_range(table)
        self._set_ahead(pool, low + row_C, values)

    def _set_ahead(self, pool: int, host_rows: NDArray[np.int64], values: Arrays) -> None:
        self._set_drawn(pool, host_rows, *values)
        self._drawn.append(_Drawn(pool, host_rows, values, self._any_hot(pool, host_rows)))

    def finish_draws(self) -> None:
        """Set drawn rows again if some were or are hot: a policy may make rows hot that nobody has looked up. The training thread
        calls it before each step."""
        while self._drawn:
            drawn = self._drawn.popleft()
            if drawn.any_hot or self._any_hot(drawn.pool, drawn.host_rows):
                self._replace(drawn.pool, drawn.host_rows, drawn.values)

    def _any_hot(self, pool: int, host_rows: NDArray[np.int64]) -> bool:
        return bool((self.slot_of_row[host_rows + self.space.pools[pool].first_row] != COLD).any())

    def read_rows(self, table: int, row_C: NDArray[np.int64]) -> Arrays:
        """Make rows of a table cold, by their numbers in it, and return them with their optimizer state, as the host tier has
        them."""
        pool, low, _ = self.space.table_range(table)
        self._make_cold(self.space.table_first_row[table] + row_C)
        return self._read_cold(pool, low + row_C)

    def _make_cold(self, rows: NDArray[np.int64]) -> None:
        self.migrate(Migration(promote=NO_ROWS, demote=np.sort(rows[self.slot_of_row[rows] != COLD])))
        self.settle()

    def _read_cold(self, pool: int, host_rows: NDArray[np.int64]) -> Arrays:
        weights, state = self.host.arrays(pool)
        return weights[host_rows], state[host_rows]

    def clear_rows(self, table: int, row_C: NDArray[np.int64]) -> NDArray[np.int64]:
        """Set rows of a table, by their numbers in it, and their optimizer state to zero, and make them cold. No batch that is
        ahead may have looked them up. Returns the rows."""
        pool, low, _ = self.space.table_range(table)
        rows = self.space.table_first_row[table] + row_C
        self._make_cold(rows)
        weights, state = (np.zeros((len(row_C), like.shape[1]), like.dtype) for like in self.host.arrays(pool))
        self._overwrite(pool, low + row_C, (weights, state))
        self.changed_R[rows] = True
        return rows

    def flag_changed(self, table: int, row_C: NDArray[np.int64]) -> None:
        """Have rows of a table, by their numbers in it, in the next snapshot."""
        self.changed_R[self.space.table_first_row[table] + row_C] = True

    def _set_drawn(self, pool: int, host_rows: NDArray[np.int64], weights: NDArray[Any], state: NDArray[Any]) -> None:
        for kept, drawn in zip(self.host.arrays(pool), (weights, state), strict=True):
            kept[host_rows] = drawn

    def _overwrite(self, pool: int, host_rows: NDArray[np.int64], given: GivenRows) -> None:
        """Set cold rows, by their numbers within the pool, or their optimizer state, or both."""
        self.host.keep(pool, host_rows)
        for kept, values in zip(self.host.arrays(pool), given, strict=True):
            if values is not None:
                kept[host_rows] = values
