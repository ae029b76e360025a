"""Which keys lose their rows at the end of a window: those whose rows nobody has looked up for long, and the least popular ones
of full tables, where other keys are due for a row.

Rows pass by in the order of their keys' hashes, a part of them in each window; keys leave from among these. The lookups that make
a row popular are those that the tracker remembers, so popularity decays (after Einziger, Friedman and Manes, "TinyLFU", 2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.raw.changes import NO_KEYS, Change, NewKeys, row_names
from adaptive_rec.data.raw.key_map import KeyMap
from adaptive_rec.data.raw.last_lookups import LastLookups
from adaptive_rec.errors import CheckpointError
from adaptive_rec.saved import ANY, Saved

EXAMINED = 8
"""Keys that pass by for each one that is to leave."""
LEAST_PART = 1 / 64
"""The smallest part of all keys that passes by."""
AGED_PART = 1 / 8
"""The largest part of a table's rows that keys leave at the end of one window as nobody looks them up."""
PARTS = 1 << 32
"""All hashes, in as many parts of 2^32 hashes."""

Popularity = Callable[[int, NDArray[np.int64]], NDArray[np.float64]]
"""Returns how many lookups are remembered of rows of a table, by their ids."""


class Limits(NamedTuple):
    """The knobs that say which keys leave."""

    evict_ratio: float
    """The largest part of a table's rows that keys may lose to others; 0: none."""
    evict_after: int
    """Steps without a lookup after which a key leaves; 0: never."""
    admit_after: int


class Leaving(NamedTuple):
    """Keys that are to leave (L), with their tables and ids."""

    key_L: NDArray[np.int64]
    table_L: NDArray[np.int64]
    id_L: NDArray[np.int64]
    aged_L: NDArray[np.bool_]
    """Which of them nobody has looked up for long; the others make room."""

    def per_table(self, aged: bool) -> dict[int, int]:
        """Return how many leave each table, for one of the two reasons."""
        tables, keys = np.unique(self.table_L[self.aged_L == aged], return_counts=True)
        return dict(zip(tables.tolist(), keys.tolist(), strict=True))


NOBODY = Leaving(NO_KEYS, NO_KEYS, NO_KEYS, np.empty(0, dtype=np.bool_))


class Eviction:
    """Chooses the keys that leave. Knows what is settled."""

    def __init__(self, keys: KeyMap, last: LastLookups, tables: int) -> None:
        self._keys = keys
        self._last = last
        self._chosen_at = 0
        """Steps made when keys were chosen last."""
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
        self._last.settle(new, self._keys.settled + (not new.last))
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

    def choose(self, limits: Limits, popularity: Popularity) -> Leaving:
        """Return the keys that are to leave, of those that pass by in this window. A key stays that got its row in this window or
        the last, and one that is leaving already.

        By age at most AGED_PART of a table's keys leave, the oldest first. To make room at most `evict_ratio` of them leave, as
        many as keys will likely be due for a row in the two windows until these can have theirs, without those that leave by age;
        a key that has `admit_after` remembered lookups does not leave to make room."""
        (before, now), due_T = self._young, self._due_T
        self._young, self._due_T = [now, []], np.zeros_like(due_T)
        steps, self._chosen_at = self._keys.settled - self._chosen_at, self._keys.settled
        self._last.want(limits.evict_after > 0, self._keys.settled)
        own_T, free_T = self._keys.own_T, self._keys.free_T()
        need_T = np.clip(2 * due_T - free_T, 0, (limits.evict_ratio * own_T).astype(np.int64))
        part = steps / limits.evict_after if limits.evict_after else 0.0  # in so many steps all keys pass by
        if need_T.any():
            part = max(part, LEAST_PART, float(np.max(EXAMINED * need_T / np.maximum(own_T - free_T, 1))))
        if not part:
            return NOBODY
        key_C, table_C, id_C = self._pass_by(part, (need_T > 0) | (limits.evict_after > 0))
        old = ~np.isin(row_names(table_C, id_C), np.concatenate([NO_KEYS, *before, *now]))
        key_C, table_C, id_C = key_C[old], table_C[old], id_C[old]
        aged, others = [NO_KEYS], [NO_KEYS]
        for table in np.unique(table_C).tolist():
            (own,) = np.nonzero(table_C == table)
            ids, need = id_C[own], need_T[table]
            is_aged = self._are_aged(table, ids, limits.evict_after)
            aged.append(own[is_aged])
            if need:
                lookups = popularity(table, ids)
                lookups -= lookups.min()  # the sketch counts too much, of rows that nobody looks up as well
                order = np.argsort(lookups, kind="stable")
                order = order[~is_aged[order]][: max(need - len(aged[-1]), 0)]
                others.append(own[order[lookups[order] < limits.admit_after]])
        chosen = np.concatenate(aged + others)
        aged_L = np.arange(len(chosen)) < sum(map(len, aged))
        return Leaving(key_C[chosen], table_C[chosen], id_C[chosen], aged_L)

    def _pass_by(
        self, part: float, wanted_T: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the keys of wanted tables in the next part of all hashes, with their tables and ids."""
        first = self._hand
        end = min(first + math.ceil(min(part, 1.0) * PARTS), PARTS)  # rounded down, a third would take four windows
        self._hand = end % PARTS
        return self._keys.some_keys(first << 32, (end << 32) - 1, wanted_T)

    def _are_aged(self, table: int, id_C: NDArray[np.int64], evict_after: int) -> NDArray[np.bool_]:
        """Return which rows of a table nobody has looked up for so many steps, the oldest ones where they are too many."""
        age_C = self._last.ages(table, id_C, self._keys.settled)
        is_aged = (age_C >= evict_after) & (evict_after > 0)
        oldest = np.argsort(-age_C, kind="stable")[: math.ceil(AGED_PART * self._keys.own_T[table])]
        return is_aged & np.isin(np.arange(len(id_C)), oldest)

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        before, now = (np.concatenate([NO_KEYS, *names]) for names in self._young)
        return {
            "due_T": self._due_T,
            "before": before,
            "now": now,
            "left": np.concatenate([NO_KEYS, *self._left]),
            "hand": self._hand,
            "chosen_at": self._chosen_at,
            "last": self._last.state(self._keys.end_T),
        }

    def set_state(self, found: Saved) -> None:
        """Restore a state. Raises CheckpointError."""
        self._due_T = found.array("due_T", np.int64, len(self._due_T))
        self._young = [[found.array(name, np.int64, ANY)] for name in ("before", "now")]
        self._left = [found.array("left", np.int64, ANY)]
        self._hand = found.integer("hand")
        self._chosen_at = found.integer("chosen_at")
        self._last.set_state(found.maybe("last"), self._keys.end_T, self._keys.settled)
        if not 0 <= self._hand < PARTS:
            raise CheckpointError(f"the hashes that leave next must begin in [0, {PARTS}), got {self._hand}")
        first_T, end_T, table_C = self._keys.shared_T, self._keys.shared_T + self._keys.own_T, self._left[0] >> 32
        table_C, id_C = np.clip(table_C, 0, len(end_T) - 1), self._left[0] & (1 << 32) - 1
        own = (id_C >= first_T[table_C]) & (id_C < end_T[table_C]) & (row_names(table_C, id_C) == self._left[0])
        if not own.all():
            raise CheckpointError("rows that keys have left must be rows that keys may have")
