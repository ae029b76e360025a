"""Which keys that lose their rows are kept: each has a place for the values of its row, and comes back with them.

A key has an entry from the moment it is chosen to leave. From the batch on that does not find it any more until its row can be
given again it has no row; after that it comes back with its values if it is admitted. Where places are lacking, the keys that
left first are dropped, or those that leave now where no other could have come back yet. Like all changes of the map these take
effect at batches that no thread may have taken yet: what a batch finds depends on its number alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.raw.changes import NO_KEYS
from adaptive_rec.errors import CheckpointError
from adaptive_rec.saved import ANY, Saved

NEVER = 1 << 62
GONE = -1
"""No batch finds an entry that ends with this one: its key is back."""

FIELDS = ("place", "row", "left", "first", "end")
ENTRY = np.dtype([(name, np.int64) for name in FIELDS])
"""Of a key: its place, the id of the row that it has left, the batch that it left with, the first batch with which it may come
back (NEVER: its values are not kept yet), and the first batch with which it may no more."""


class KeptKeys:
    """The kept keys of some tables, up to a number of each. One thread at a time may call it."""

    def __init__(self, most: int, tables: int) -> None:
        self._most = most
        self._key = [NO_KEYS for _ in range(tables)]
        """The keys of each table, rising."""
        self._entry = [np.empty(0, dtype=ENTRY) for _ in range(tables)]

    @property
    def most_bytes(self) -> int:
        return self._most * len(self._key) * (NO_KEYS.itemsize + ENTRY.itemsize)

    # Batches ---------------------------------------------------------------------------------------------------------

    def find(
        self, key_C: NDArray[np.int64], table_C: NDArray[np.int64], batch: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return which keys without a row may have none with this batch, and the places of the others, -1 where none is kept."""
        waits_C, place_C = np.zeros(len(key_C), dtype=np.bool_), np.full(len(key_C), -1, dtype=np.int64)
        for table in np.unique(table_C).tolist():
            if not len(self._key[table]):
                continue
            (of_table,) = np.nonzero(table_C == table)
            line, is_there = self._lines(table, key_C[of_table])
            some, entry = of_table[is_there], self._entry[table][line[is_there]]
            waits_C[some] = (batch < entry["first"]) & (batch < entry["end"])
            may = (entry["first"] <= batch) & (batch < entry["end"])
            place_C[some[may]] = entry["place"][may]
        return waits_C, place_C

    def settle_back(self, key_A: NDArray[np.int64], table_A: NDArray[np.int64]) -> None:
        """Note that keys are back, with a batch whose step was made."""
        for table in np.unique(table_A).tolist():
            line, is_there = self._lines(table, key_A[table_A == table])
            assert is_there.all(), "a key comes back that is kept"
            self._entry[table]["end"][line] = GONE

    def _lines(self, table: int, key_C: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        keys = self._key[table]
        line = np.searchsorted(keys, key_C)
        return line, keys[np.minimum(line, len(keys) - 1)] == key_C if len(keys) else np.zeros(len(key_C), np.bool_)

    # The end of a window ---------------------------------------------------------------------------------------------

    def forget_ended(self, settled: int) -> int:
        """Remove the entries that no batch after so many finds. Returns how many keys were dropped: all that are not back."""
        dropped = 0
        for table, entry in enumerate(self._entry):
            stays = entry["end"] > settled
            dropped += int(np.count_nonzero(~stays & (entry["end"] != GONE)))
            self._key[table], self._entry[table] = self._key[table][stays], entry[stays]
        return dropped

    def keep(self, table: int, id_C: NDArray[np.int64], later: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return those of some rows that keys have left whose values are to be kept, by their ids, and the places. From batch
        `later` on their keys may come back."""
        entry = self._entry[table]
        (waiting,) = np.nonzero((entry["first"] == NEVER) & (entry["end"] == NEVER))
        waiting = waiting[np.isin(entry["row"][waiting], id_C)]
        entry["first"][waiting] = later
        return entry["row"][waiting], entry["place"][waiting]

    def leave(self, table: int, key_C: NDArray[np.int64], id_C: NDArray[np.int64], later: int) -> int:
        """Have keys of a table, which have rows until batch `later`, wait for their values to be kept. Where places are lacking,
        of those that may come back before that batch the ones that left first end with it. Returns how many of the keys got
        no place: they are dropped."""
        entry = self._entry[table]
        (lasting,) = np.nonzero(entry["end"] == NEVER)
        free = np.ones(self._most, dtype=np.bool_)
        free[entry["place"][lasting]] = False
        ripe = lasting[entry["first"][lasting] < later]  # others would be gone before they could come back
        oldest = ripe[np.argsort(entry["left"][ripe], kind="stable")]
        ending = oldest[: max(len(key_C) - int(np.count_nonzero(free)), 0)]
        entry["end"][ending] = later
        free[entry["place"][ending]] = True
        places = np.flatnonzero(free)[: len(key_C)]
        order = np.argsort(key_C[: len(places)])
        made = np.empty(len(places), dtype=ENTRY)
        for name, values in zip(FIELDS, (places, id_C[order], later, NEVER, NEVER), strict=True):
            made[name] = values
        at = np.searchsorted(self._key[table], key_C[order])
        self._key[table] = np.insert(self._key[table], at, key_C[order])
        self._entry[table] = np.insert(entry, at, made)
        return len(key_C) - len(places)

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def places(self, table: int) -> NDArray[np.int64]:
        """Return the places of a table that have values of keys that may come back, as far as settled."""
        entry = self._entry[table]
        return np.unique(entry["place"][(entry["first"] < NEVER) & (entry["end"] != GONE)])

    def state(self) -> dict[str, Any]:
        tables = range(len(self._key))
        keys = {f"key_{table}": self._key[table] for table in tables}
        return keys | {
            f"{name}_{table}": np.ascontiguousarray(self._entry[table][name]) for table in tables for name in FIELDS
        }

    def set_state(self, found: Saved) -> None:
        """Restore a state. Raises CheckpointError."""
        for table in range(len(self._key)):
            keys = found.array(f"key_{table}", np.int64, ANY)
            if (keys[1:] <= keys[:-1]).any():
                raise CheckpointError(f"kept keys of table {table} must be distinct and rising")
            entry = np.empty(len(keys), dtype=ENTRY)
            for name in FIELDS:
                entry[name] = found.array(f"{name}_{table}", np.int64, len(keys))
            lasting = entry["place"][entry["end"] == NEVER]
            inside = not len(keys) or 0 <= entry["place"].min() <= entry["place"].max() < self._most
            if not inside or len(np.unique(lasting)) < len(lasting):
                raise CheckpointError(f"kept keys of table {table} must each have one of {self._most} places")
            self._key[table], self._entry[table] = keys, entry
