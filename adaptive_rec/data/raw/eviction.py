"""Which keys lose their rows at the end of a window, as their tables are full and other keys are due for a row.

Rows pass by in the order of their keys' hashes, a part of them in each window; of these the least popular leave. The lookups
that count are those that the tracker remembers, so popularity decays (after Einziger, Friedman and Manes, "TinyLFU", 2017).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.raw.changes import NO_KEYS, Change, NewKeys, row_names
from adaptive_rec.data.raw.key_map import KeyMap
from adaptive_rec.errors import CheckpointError
from adaptive_rec.saved import ANY, Saved

EXAMINED = 8
"""Keys that pass by for each one that is to leave."""
LEAST_PART = 1 / 64
"""The smallest part of all keys that passes by."""
PARTS = 1 << 32
"""All hashes, in as many parts of 2^32 hashes."""

Popularity = Callable[[int, NDArray[np.int64]], NDArray[np.float64]]
"""Returns how many lookups are remembered of rows of a table, by their ids."""


class Eviction:
    """Chooses the keys that leave. Knows what is settled."""

    def __init__(self, keys: KeyMap, tables: int) -> None:
        self._keys = keys
        self._due_T = np.zeros(tables, dtype=np.int64)
        """Times that a key of each table was due for a row in this window, whether it got one or not."""
        self._young: list[list[NDArray[np.int64]]] = [[], []]
        """The names of rows that keys got in the last window, and in this one."""
        self._left: list[NDArray[np.int64]] = []
        """The names of rows that keys have left, which are not cleared yet."""
        self._hand = 0
        """The part of all hashes that the next window begins with."""

    def settle(self, new: NewKeys, change: Change | None) -> None:
        """Note what the batch of a step has changed, and the change before it."""
        self._due_T += new.refused_T + np.bincount(new.table_A, minlength=len(self._due_T))
        if len(new.id_A):
            self._young[1].append(row_names(new.table_A, new.id_A))
        if change is not None and len(change.key_L):
            self._left.append(row_names(change.table_L, change.id_L))

    def take_left(self) -> list[tuple[int, NDArray[np.int64]]]:
        """Return the tables and ids of rows that keys have left, once each: no step will look them up."""
        names = np.concatenate([NO_KEYS, *self._left])
        self._left = []
        table_C = names >> 32
        return [(int(table), names[table_C == table] & (1 << 32) - 1) for table in np.unique(table_C)]

    def choose(
        self, most_ratio: float, admit_after: int, popularity: Popularity
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the keys that are to leave, their tables and ids: at most this part of a table's rows, as many as keys will
        likely be due for in the two windows until other keys can have the rows. A key stays that has `admit_after`
        remembered lookups, one that got its row in this window or the last, and one that is leaving already."""
        (before, now), due_T = self._young, self._due_T
        self._young, self._due_T = [now, []], np.zeros_like(due_T)
        own_T, free_T = self._keys.own_T, self._keys.free_T()
        need_T = np.clip(2 * due_T - free_T, 0, (most_ratio * own_T).astype(np.int64))
        if not need_T.any():
            return NO_KEYS, NO_KEYS, NO_KEYS
        part = max(LEAST_PART, float(np.max(EXAMINED * need_T / np.maximum(own_T - free_T, 1))))
        first = self._hand
        end = min(first + int(min(part, 1.0) * PARTS), PARTS)
        self._hand = end % PARTS
        key_C, table_C, id_C = self._keys.some_keys(first << 32, (end << 32) - 1, need_T > 0)
        young = np.concatenate([NO_KEYS, *before, *now])
        old = ~np.isin(row_names(table_C, id_C), young)
        key_C, table_C, id_C = key_C[old], table_C[old], id_C[old]
        chosen = [NO_KEYS]
        for table in np.unique(table_C).tolist():
            (own,) = np.nonzero(table_C == table)
            lookups = popularity(table, id_C[own])
            lookups -= lookups.min()  # the sketch counts too much, of rows that nobody looks up as well
            order = np.argsort(lookups, kind="stable")[: need_T[table]]
            chosen.append(own[order[lookups[order] < admit_after]])
        leaving = np.concatenate(chosen)
        return key_C[leaving], table_C[leaving], id_C[leaving]

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        before, now = (np.concatenate([NO_KEYS, *names]) for names in self._young)
        return {
            "due_T": self._due_T,
            "before": before,
            "now": now,
            "left": np.concatenate([NO_KEYS, *self._left]),
            "hand": self._hand,
        }

    def set_state(self, found: Saved) -> None:
        """Restore a state. Raises CheckpointError."""
        self._due_T = found.array("due_T", np.int64, len(self._due_T))
        self._young = [[found.array(name, np.int64, ANY)] for name in ("before", "now")]
        self._left = [found.array("left", np.int64, ANY)]
        self._hand = found.integer("hand")
        if not 0 <= self._hand < PARTS:
            raise CheckpointError(f"the hashes that leave next must begin in [0, {PARTS}), got {self._hand}")
        first_T, end_T, table_C = self._keys.shared_T, self._keys.shared_T + self._keys.own_T, self._left[0] >> 32
        table_C, id_C = np.clip(table_C, 0, len(end_T) - 1), self._left[0] & (1 << 32) - 1
        own = (id_C >= first_T[table_C]) & (id_C < end_T[table_C]) & (row_names(table_C, id_C) == self._left[0])
        if not own.all():
            raise CheckpointError("rows that keys have left must be rows that keys may have")
