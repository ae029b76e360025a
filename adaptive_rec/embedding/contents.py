"""Whole tables, and rows that are set from outside of training: those of imported tables, and those of raw keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.cold.home import ColdHome
from adaptive_rec.embedding.host import COPIED_ROWS, Arrays, GivenRows, first_bound, room_like
from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.peers.peers import Peers
from adaptive_rec.kernels.fill import fill_rows
from adaptive_rec.placement import COLD, Migration

NO_ROWS: NDArray[np.int64] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class _Drawn:
    """Rows of a pool that were drawn beside the training thread."""

    pool: int
    host_rows: NDArray[np.int64]
    values: tuple[NDArray[Any], NDArray[Any]]
    any_hot: bool
    """Whether some were hot then."""


class TableContents:
    """The values of a store's tables, as callers outside of training read and set them. Rows of a table are given by their
    numbers in the table of all ranks; each rank sets those that are its own."""

    def __init__(
        self, index: RowIndex, seed: int, hot: HotRows, cold: ColdHome, peers: Peers, migrate: Callable[[Migration], None],
        settle: Callable[[], None],
    ) -> None:  # fmt: skip
        """`migrate` moves rows between the tiers; `settle` waits until every update has reached its row."""
        self._index, self._space, self._seed = index, index.space, seed
        self._hot, self._cold, self._peers = hot, cold, peers
        self._migrate, self._settle = migrate, settle
        self._drawn: deque[_Drawn] = deque()
        """Rows that were drawn since the last step."""

    def export(self, table: int, first: int = 0, end: int | None = None) -> Arrays:
        """Return copies of a table's rows and optimizer state from all tiers, those of this rank from a first one to an end, by
        default all. No row moves. Raises TrainingError where a row has become too large for its type."""
        self._settle()
        self._hot.check_range()
        pool, low, high = self._space.table_range(table)
        low, high = low + first, high if end is None else low + end
        weights, state = self._room(pool, high - low)
        slot_R = self._index.slots_of_pool(pool)[low:high]
        for begin in range(0, high - low, COPIED_ROWS):
            is_absent = self._hot.absent(pool, slot_R[begin : begin + COPIED_ROWS])
            cold, hot = begin + np.flatnonzero(is_absent), begin + np.flatnonzero(~is_absent)
            weights[cold], state[cold] = self._read_cold(pool, low + cold)
            if len(hot):
                weights[hot], state[hot] = self._hot.read(pool, slot_R[hot].astype(np.int64))
        return weights, state

    def import_rows(self, table: int, first: int, weights_ND: NDArray[Any], state_NK: NDArray[Any]) -> None:
        """Set a table's rows from number `first` on. Only before training, when every row is cold."""
        assert self._index.placement.version == 0, "rows are imported before the first migration"
        pool, low, _ = self._space.table_range(table)
        row_C, line_C = self._peers.own_range(table, first, len(weights_ND))
        self._cold.overwrite(pool, low + row_C, (weights_ND[line_C], state_NK[line_C]))

    def replace_table(self, table: int, weights_ND: NDArray[Any] | None, state_NK: NDArray[Any] | None) -> None:
        """Set all rows of a table, or their optimizer state, or both. Hot rows are hot again afterwards."""
        pool, low, high = self._space.table_range(table)
        self._replace(pool, np.arange(low, high), (weights_ND, state_NK))

    def replace_rows(self, table: int, row_N: NDArray[np.int64], weights_ND: NDArray[Any]) -> None:
        """Set some rows of a table, by their numbers in the table, each given once."""
        pool, low, _ = self._space.table_range(table)
        self._replace(pool, low + row_N, (weights_ND, None))

    def _replace(self, pool: int, host_rows: NDArray[np.int64], given: GivenRows) -> None:
        """Set rows in the host tier, while none of them is hot."""
        rows = self._index.joint_rows(pool, host_rows)
        hot = self._make_cold(rows)
        self._cold.overwrite(pool, host_rows, given)
        self._index.changed_R[rows] = True
        self._index.renew()  # even if no row is hot
        self._migrate(Migration(promote=hot, demote=NO_ROWS))

    def draw_rows(self, table: int, row_C: NDArray[np.int64], key_C: NDArray[np.int64], rows: int) -> None:
        """Set rows of a table, by their numbers in it, to the first values of keys, as in a table of `rows`. No batch may have
        looked these rows up yet. One thread may call it beside the training thread, which calls `finish_draws`."""
        pool, low, _ = self._space.table_range(table)
        here, own_C = self._peers.owned_of(table, row_C)
        weights, state = self._room(pool, len(own_C))
        fill_rows(np.uint64(self._seed % 2**64), table, first_bound(rows), key_C[here], weights)
        self._set_ahead(pool, low + own_C, (weights, state))

    def restore_rows(self, table: int, row_C: NDArray[np.int64], values: Arrays) -> None:
        """Set rows that were drawn to other values, which `read_rows` has returned, under the same conditions."""
        pool, low, _ = self._space.table_range(table)
        self._set_ahead(pool, low + row_C, values)

    def _set_ahead(self, pool: int, host_rows: NDArray[np.int64], values: Arrays) -> None:
        self._cold.draw(pool, host_rows, values)
        self._drawn.append(_Drawn(pool, host_rows, values, self._any_hot(pool, host_rows)))

    def finish_draws(self) -> None:
        """Set drawn rows again if some were or are hot: a policy may make rows hot that nobody has looked up. The training thread
        calls it before each step. It counts no moves, as how many there are depends on how far is read ahead."""
        while self._drawn:
            drawn = self._drawn.popleft()
            if drawn.any_hot or self._any_hot(drawn.pool, drawn.host_rows):
                self._settle()  # batches on their way home count
                with self._index.uncounted():
                    self._replace(drawn.pool, drawn.host_rows, drawn.values)

    def _any_hot(self, pool: int, host_rows: NDArray[np.int64]) -> bool:
        """Return whether some rows are on the device or have a place in host memory of their own."""
        is_hot = (self._index.slots_of_pool(pool)[host_rows] != COLD).any()
        return bool(is_hot) or self._cold.is_near(pool, host_rows)

    def read_rows(self, table: int, row_C: NDArray[np.int64]) -> Arrays:
        """Make rows of a table cold, by their numbers in it, and return them with their optimizer state, as the host tier has
        them."""
        pool, low, _ = self._space.table_range(table)
        self._make_cold(self._space.table_first_row[table] + row_C)
        return self._read_cold(pool, low + row_C)

    def _make_cold(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Make rows cold. Returns those that were hot."""
        hot = self._index.hot_among(rows)
        self._migrate(Migration(promote=NO_ROWS, demote=hot))
        self._settle()
        return hot

    def _read_cold(self, pool: int, host_rows: NDArray[np.int64]) -> Arrays:
        found = self._room(pool, len(host_rows))
        self._cold.read(pool, host_rows, found)
        return found

    def _room(self, pool: int, rows: int) -> Arrays:
        """Return zeros for some rows of a pool."""
        return room_like(self._cold.arrays(pool), rows)

    def clear_rows(self, table: int, row_C: NDArray[np.int64]) -> NDArray[np.int64]:
        """Set rows of a table, by their numbers in this rank's part of it, and their optimizer state to zero, and make them cold.
        No batch that is ahead may have looked them up. Returns the rows."""
        pool, low, _ = self._space.table_range(table)
        rows = self._space.table_first_row[table] + row_C
        self._make_cold(rows)
        self._cold.overwrite(pool, low + row_C, self._room(pool, len(row_C)))
        self._index.changed_R[rows] = True
        return rows

    def flag_changed(self, table: int, row_C: NDArray[np.int64]) -> None:
        """Have rows of a table, by their numbers in it, in the next snapshot."""
        own_C = self._peers.owned_of(table, row_C)[1]
        self._index.changed_R[self._space.table_first_row[table] + own_C] = True
