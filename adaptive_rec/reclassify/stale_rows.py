"""The stale class of every hot row, as the device tier holds it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.saved import Saved


class StaleRows:
    """Marks hot rows as stale, finds them in a batch, and counts them by table."""

    def __init__(self, store: EmbeddingStore) -> None:
        self._store = store
        self.rows_T = np.zeros(len(store.space.tables), dtype=np.int64)
        """Stale rows of each table."""
        self._compared = np.zeros(2, dtype=np.int64)
        """Rows that were stale at both of the last two judgements, and at one of them; 0 where none was at the first one."""

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

    def compare(self, before_H: NDArray[np.bool_], now_H: NDArray[np.bool_]) -> None:
        """Count on how many hot rows of all ranks a judgement agrees with the one before. Rows that became hot between them were
        not stale before, and rows that became cold are not there any more."""
        twice, once = (np.count_nonzero(found_H) for found_H in (before_H & now_H, before_H | now_H))
        self._compared[:] = (twice, once) if before_H.any() else (0, 0)

    @property
    def agreement(self) -> float:
        """Share of the rows stale at one of the last two judgements that was stale at both; not a number before there were
        two. Of rows marked at random, a share p of all, it is about p / (2 - p)."""
        twice, once = self._compared.tolist()
        return twice / once if once else math.nan

    def clear(self) -> None:
        """Mark no row as stale."""
        self._compared[:] = 0
        self.mark(np.zeros(sum(self._store.hot.tier.capacities), dtype=np.bool_))

    def count(self) -> None:
        """Count the stale rows of each table, after rows were marked or moved."""
        self.rows_T = self._store.space.count_by_table(self.rows())

    def state(self) -> dict[str, NDArray[np.int64]]:
        return {"stale_rows_T": self.rows_T, "stale_compared": self._compared.copy()}

    def set_state(self, found: Saved) -> None:
        """Restore the counts of a checkpoint; the store has the classes again."""
        self.rows_T = found.array("stale_rows_T", np.int64, len(self.rows_T))
        if found.has("stale_compared"):  # older versions did not count them
            self._compared[:] = found.array("stale_compared", np.int64, 2)
