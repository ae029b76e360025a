"""Rows that raw ids get in a user's loop: their first values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.raw.changes import NewKeys
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.embedding.tiered_rows import NO_ROWS
from adaptive_rec.placement import COLD, Migration


class DrawnRows:
    """Draws rows from the seed, their table and their key, as a run of the command line does."""

    def __init__(self, store: EmbeddingStore, own_rows_T: Sequence[int]) -> None:
        """`own_rows_T`: rows of each table for keys of their own."""
        self._store, self._own_rows_T = store, own_rows_T

    def draw(self, new: NewKeys) -> None:
        """Set the rows of new keys in host memory, or on the disk. The thread that takes keys calls it."""
        for table, id_A, key_A in _by_table(new):
            self._store.draw_rows(table, id_A, key_A, self._own_rows_T[table])

    def draw_hot(self, new: NewKeys) -> None:
        """Draw those rows again that were on the device before a key had them. The training thread calls it."""
        store = self._store
        for table, id_A, key_A in _by_table(new):
            pool, low, _ = store.space.table_range(table)
            row_A = store.space.pools[pool].first_row + low + id_A
            is_hot = store.slot_of_row[row_A] != COLD
            if is_hot.any():
                hot = np.sort(row_A[is_hot])
                store.migrate(Migration(promote=NO_ROWS, demote=hot))
                store.draw_rows(table, id_A[is_hot], key_A[is_hot], self._own_rows_T[table])
                store.migrate(Migration(promote=hot, demote=NO_ROWS))


def _by_table(new: NewKeys) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield each table of admitted keys, with their ids and the keys."""
    for table in np.unique(new.table_A).tolist():
        some = new.table_A == table
        yield table, new.id_A[some], new.key_A[some]
