"""The keys of a user's loop: which raw ids of its tables have rows, what was counted of the others, and which lose theirs.

A batch of keys is an item of a loop over `prefetch`, and otherwise what is looked up until a step is made.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.raw.calls import Clear, FoundKeys, Keep
from adaptive_rec.data.raw.changes import NO_KEYS, NewKeys
from adaptive_rec.data.raw.eviction import NOBODY, Leaving, Popularity
from adaptive_rec.data.raw.key_map import KeyMap
from adaptive_rec.data.raw.keys_in_use import KeysInUse
from adaptive_rec.data.raw.raw_ids import LATER
from adaptive_rec.data.raw.salts import salts
from adaptive_rec.modules.loop.own_rows import TableIds
from adaptive_rec.saved import Saved


class LoopKeys:
    """The keys of all tables. One thread takes keys, the training thread or the reader of a loop that looks ahead; any thread may
    ask where keys are."""

    def __init__(self, rows_T: Sequence[int], shared_rows: int, seed: int, admit_after: int) -> None:
        """`rows_T`: rows of each table, of which keys without a row of their own share the first `shared_rows`."""
        self._rows_T, self.shared_rows, self._seed = tuple(rows_T), shared_rows, seed
        self._in_use = self._new_keys(admit_after)
        self._window_ended = -1
        """Batches that were settled when the last window ended."""
        self._loaded: dict[int, NDArray[np.int64]] = {}
        """Keys of tables, with the numbers of their rows (K, 2), that were loaded and are not in the map yet."""
        self._lock = threading.Lock()

    def _new_keys(self, admit_after: int) -> KeysInUse:
        return KeysInUse(self._rows_T, range(len(self._rows_T)), self.shared_rows, self._seed, admit_after)

    def _begin_with(self, keys: KeysInUse, window_ended: int = -1) -> None:
        """Go on with other keys."""
        self._in_use, self._window_ended, self._loaded = keys, window_ended, {}
        keys.restart_digest()

    @property
    def _keys(self) -> KeyMap:
        return self._in_use.map

    def _known(self) -> dict[str, int]:
        """Return what processes that train together must have alike before they take keys, by name."""
        self._put_loaded()
        return {
            "seed": self._seed,
            "steps with raw ids": self._keys.taken,
            "knobs.admit_after": self._in_use.admit_after.at(self._keys.taken),
            "the digest of raw ids with rows": self._in_use.digest,
        }

    # Batches ---------------------------------------------------------------------------------------------------------

    def _look_up(self, ids: TableIds) -> list[NDArray[np.int64]]:
        """Return the rows of keys, by what is settled; nothing changes."""
        with self._lock:
            self._put_loaded()
            id_N = self._keys.look_up(*self._joined(ids))
        return _split(id_N, ids)

    def _take(self, ids: TableIds, last: bool = False) -> tuple[list[NDArray[np.int64]], NewKeys]:
        """Return the rows of keys of the next batch, and what they have changed. `last`: whether the batch has no more keys."""
        with self._lock:
            self._put_loaded()
            id_N, new = self._in_use.take(*self._joined(ids), last=last)
        return _split(id_N, ids), new

    def _joined(self, ids: TableIds) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of all tables, and the bounds of bags that are of the tables in turn."""
        tables, lengths, bag = len(self._rows_T), [0], -1
        for table, id_N in ids:
            begun = bag - bag % tables if bag >= 0 else 0
            bag = begun + table + (tables if bag >= begun + table else 0)
            lengths += [0] * (bag + 2 - len(lengths))
            lengths[bag + 1] = len(id_N)
        lengths += [0] * (-(len(lengths) - 1) % tables)
        return np.concatenate([NO_KEYS, *(id_N for _, id_N in ids)]), np.cumsum(lengths, dtype=np.int64)

    def _settle(self, news: Sequence[NewKeys]) -> None:
        """Have everybody see what taking keys has changed."""
        with self._lock:
            for new in news:
                self._in_use.settle(new)

    def end_window(
        self, evict_ratio: float, evict_after: int, decay: float, popularity: Popularity, clear: Clear, keep: Keep
    ) -> Leaving:
        """Have keys leave as `RawIds.end_window` does; no values are kept. The training thread calls it between two steps; a
        window in which no batch began changes nothing."""
        with self._lock:
            self._put_loaded()
            if self._keys.settled == self._window_ended:
                return NOBODY
            self._window_ended, later = self._keys.settled, self._keys.settled + LATER
            left = self._in_use.eviction.take_left()
        for table, ids in left:
            clear(table, ids)
        with self._lock:
            for table, ids in left:
                self._keys.free(table, ids, later)
            return self._in_use.leave(evict_ratio, evict_after, decay, popularity, later)

    # Keys ------------------------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return the keys that have a row now, and over all calls so far: keys that lost theirs, keys that were refused one,
        lookups, those of shared rows."""
        with self._lock:
            self._put_loaded()
            return dict(self._in_use.counts)

    def find(self, table: int, key_N: NDArray[np.int64]) -> FoundKeys:
        """Return where keys of a table are. Any thread may call it."""
        with self._lock:
            self._put_loaded()
            return self._in_use.find(table, *self._joined([(table, key_N)]))

    def keys_and_rows(self, table: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the keys of a table that have a row of their own (K), and the numbers of these rows (K), rising."""
        with self._lock:
            self._put_loaded()
            row_K, key_K = self._keys.keys_of(table)
        return key_K, row_K

    def salt(self, table: int) -> int:
        """Return the number that keys of a table are hashed with."""
        return int(salts(self._seed, len(self._rows_T))[table])

    def why_not_loadable(self, table: int, keys_K2: NDArray[Any]) -> str:
        """Return why a table cannot have these keys with the numbers of their rows, or nothing."""
        first, end = self.shared_rows, self._rows_T[table]
        if keys_K2.dtype != np.int64 or keys_K2.ndim != 2 or keys_K2.shape[1] != 2:
            return f"must be of shape (K, 2) and int64, got {keys_K2.shape} and {keys_K2.dtype}"
        if len(keys_K2) > end - first:
            return f"must be at most {end - first}, got {len(keys_K2)}"
        row_K = np.sort(keys_K2[:, 1])
        if len(row_K) and not first <= row_K[0] <= row_K[-1] < end:
            return f"must have rows in [{first}, {end}), after those that are shared, got {row_K[0]} to {row_K[-1]}"
        for what, some in (("rows", row_K), ("ids", keys_K2[:, 0])):
            if len(np.unique(some)) < len(some):
                return f"must have different {what}, some are given twice"
        return ""

    def load_keys(self, table: int, keys_K2: NDArray[np.int64]) -> None:
        """Set the keys of a table with the numbers of their rows, whose values are loaded beside them. Where they are others than
        before, lookups are counted anew."""
        keys_K2 = keys_K2[np.argsort(keys_K2[:, 1])]
        if table in self._loaded or not np.array_equal(keys_K2, self._pairs(table)):
            self._loaded[table] = keys_K2

    def _pairs(self, table: int) -> NDArray[np.int64]:
        row_K, key_K = self._keys.keys_of(table)
        return np.stack([key_K, row_K], axis=1)

    def _put_loaded(self) -> None:
        """Have a new map with the keys that were loaded, and those of other tables, all at once: nothing is counted in it."""
        if not self._loaded:
            return
        made = self._new_keys(self._in_use.admit_after.newest)
        for table in range(len(self._rows_T)):
            made.begin_with(table, *(self._loaded[table] if table in self._loaded else self._pairs(table)).T)
        self._begin_with(made)

    # Kept in a state dict --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the keys and counts of all that is settled."""
        with self._lock:
            self._put_loaded()
            return {"map": self._keys.state(), **self._in_use.state(), "window_ended": self._window_ended}

    def set_state(self, found: Saved) -> None:
        """Restore a state. Raises CheckpointError, and changes nothing, where it does not fit. Knobs stay as they are."""
        made = self._new_keys(self._in_use.admit_after.newest)
        made.set_state(found, found.part("map"), later=0)
        self._begin_with(made, found.integer("window_ended"))


def _split(id_N: NDArray[np.int64], ids: TableIds) -> list[NDArray[np.int64]]:
    return np.split(id_N, np.cumsum([len(some) for _, some in ids])[:-1])
