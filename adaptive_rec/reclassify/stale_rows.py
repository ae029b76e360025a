"""The stale class of every hot row, as the device tier holds it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.store import EmbeddingStore


class StaleRows:
    """Marks hot rows as stale, finds them in a batch, and counts them by table."""

    def __init__(self, store: EmbeddingStore) -> None:
        self._store = store
        self.rows_T = np.zeros(len(store.space.tables), dtype=np.int64)
        """Stale rows of each table."""

    def of(self, work: ClassifiedBatch) -> NDArray[np.bool_]:
        """Return which distinct rows of a batch are hot and stale."""
        return self._store.peers.stale_of(work)

    def rows(self) -> NDArray[np.int64]:
        """Return the joint rows that are stale."""
        device = self._store.hot.tier
        return np.concatenate([rows[stale_H] for rows, stale_H in zip(device.row_of_slot, device.stale, strict=True)])

    def mark(self, stale_H: NDArray[np.bool_]) -> None:
        """Set the class of every slot; slots of all pools stand in one line (H)."""
        first = 0
        for stale in self._store.hot.tier.stale:
            stale[:] = stale_H[first : first + len(stale)]
            first += len(stale)
        self.count()

    def mark_rows(self, rows: NDArray[np.int64]) -> None:
        """Mark these rows, where they are hot, and no others. Restores the classes after all rows changed their slots."""
        row_of_slot = self._store.hot.tier.row_of_slot
        self.mark(np.concatenate([np.isin(slots, rows) & (slots >= 0) for slots in row_of_slot]))

    def clear(self) -> None:
        """Mark no row as stale."""
        self.mark(np.zeros(sum(self._store.hot.tier.capacities), dtype=np.bool_))

    def count(self) -> None:
        """Count the stale rows of each table, after rows were marked or moved."""
        self.rows_T = self._store.space.count_by_table(self.rows())

    def restore(self, rows_T: NDArray[np.int64]) -> None:
        """Restore the counts of a checkpoint; the store has the classes again."""
        self.rows_T = rows_T
