"""Rows of keys that have left a store, on a disk beside it: their vectors and optimizer state, by table and place.

They lie in the log that cold rows on a disk have (`row_log.py`), whatever the store. Each place is a row of it. The folder goes
with the process: a checkpoint has the rows themselves. Of several processes each has the rows that have left any of them: which
one will own the row that a key comes back to is not known before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.disk.disk_tier import DiskTier
from adaptive_rec.embedding.disk.scratch import ScratchFolder
from adaptive_rec.embedding.first_values import FreshRows
from adaptive_rec.embedding.host import Arrays
from adaptive_rec.embedding.shard_arrays import OPTIMIZER_STATE, ROW, WEIGHT
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.placement import RowSpace

SHARD_BYTES = 32 << 20
"""Size of the rows and optimizer state that are saved at a time."""


class KeptRows:
    """Keeps rows of a store, and restores them."""

    def __init__(self, store: EmbeddingStore, places: int, folder: ScratchFolder) -> None:
        """`places`: those of each table; `folder` goes with the store."""
        tables = tuple(replace(table, rows=places) for table in store.space.tables)
        pool_T = [store.space.table_range(table)[0] for table in range(len(tables))]
        self._store, self._space = store, RowSpace.of(tables, (), kinds=pool_T)
        self._tier = DiskTier(self._space, store.rules, store.cold.types.dtype, folder.path, FreshRows(store.seed, tables))
        folder.keep_for(store)

    def keep(self, table: int, row_C: NDArray[np.int64], place_C: NDArray[np.int64]) -> None:
        """Keep rows of a table, by their numbers in it, which become cold. No batch that is ahead may have looked them up. Raises
        DiskError. The training threads of all processes call it together."""
        if not len(row_C):
            return
        pool, low, _ = self._space.table_range(table)
        here, own_C = self._store.peers.owned_of(table, row_C)
        own = place_C[here], *self._store.contents.read_rows(table, own_C)
        place_C, weights, state = map(self._store.group.everyone, own)
        self._tier.append(pool, low + place_C, np.arange(len(place_C)), weights, state)

    def restore(self, table: int, row_C: NDArray[np.int64], place_C: NDArray[np.int64]) -> None:
        """Set rows of a table that were just drawn to what is kept at places, those that this process owns. Raises DiskError. The
        thread that draws does it."""
        pool, low, _ = self._space.table_range(table)
        here, own_C = self._store.peers.owned_of(table, row_C)
        part = self._tier.room_for(pool, len(own_C))
        self._tier.read(pool, low + place_C[here], np.arange(len(own_C)), *part.arrays)
        self._store.contents.restore_rows(table, own_C, part.arrays)

    def close(self) -> None:
        """Stop the writing thread. Rows can still be kept and restored."""
        self._tier.close()

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def begin_snapshot(self, places: Callable[[int], NDArray[np.int64]]) -> KeptSnapshot:
        """Start a snapshot of what is at some places of each table now, for another thread to save."""
        tables = range(len(self._space.tables))
        rows = np.sort(np.concatenate([self._space.table_first_row[table] + places(table) for table in tables]))
        return KeptSnapshot(self._tier, self._space, rows)

    def set_rows(self, row_N: NDArray[np.int64], values: Arrays) -> None:
        """Keep saved rows of one pool, by the numbers that `KeptSnapshot.shards` gives. Raises DiskError."""
        for pool, spec in enumerate(self._space.pools):
            lines = np.flatnonzero(spec.contains(row_N))
            self._tier.append(pool, row_N[lines] - spec.first_row, lines, *values)

    @property
    def rows(self) -> int:
        """The end of the numbers of all places."""
        return self._space.rows

    def types(self, row: int) -> Arrays:
        """Return no rows like that of a number: they show the types."""
        return self._tier.arrays(next(pool for pool, spec in enumerate(self._space.pools) if row < spec.end_row))


class KeptSnapshot:
    """The kept rows of one moment. Another thread calls `shards`."""

    def __init__(self, tier: DiskTier, space: RowSpace, rows: NDArray[np.int64]) -> None:
        """`rows` are rising."""
        self._tier, self._space = tier, space
        self._held = tier.hold_live()  # compaction may move rows until their addresses are known
        self._rows = [spec.select(rows) - spec.first_row for spec in space.pools]
        self._addresses = [log.address_R[row_C] for log, row_C in zip(tier.logs, self._rows, strict=True)]
        for log, held in zip(tier.logs, self._held, strict=True):
            held += log.segments.hold_live(held)

    def shards(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the rows part by part, with numbers for their tables and places. Raises DiskError."""
        for pool, (row_C, address_C) in enumerate(zip(self._rows, self._addresses, strict=True)):
            row_bytes = sum(array.shape[1] * array.itemsize for array in self._tier.arrays(pool))
            some_rows = max(1, SHARD_BYTES // row_bytes)
            for first in range(0, len(row_C), some_rows):
                some = slice(first, first + some_rows)
                part = self._tier.room_for(pool, len(row_C[some]))
                self._tier.logs[pool].read_at(address_C[some], row_C[some], *part.arrays)
                rows = self._space.pools[pool].first_row + row_C[some]
                yield dict(zip((ROW, WEIGHT, OPTIMIZER_STATE), (rows, *part.arrays), strict=True))

    def end(self) -> None:
        """Let go of the files that it needed. Raises DiskError."""
        self._tier.release([[segment.entry for segment in held] for held in self._held])
