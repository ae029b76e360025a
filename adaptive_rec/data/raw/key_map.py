"""Which keys of the tables have a row of their own, and which are counted until they get one.

Keys without a row share the first rows of their table. A sketch counts their lookups; a key gets a row with the batch in which
its estimate reaches `admit_after` (after Einziger, Friedman and Manes, "TinyLFU", 2017, which admits to a cache by a sketch).
Batches are taken in the order of their steps, some steps ahead. So there are two states: what the newest batch has admitted and
counted, and what is *settled*, the state after a step that was made. Keys of which only one of them knows are flagged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.raw.changes import NO_KEYS, Change, NewKeys, changes_state, distinct_keys, saved_changes
from adaptive_rec.data.raw.free_rows import FreeRows
from adaptive_rec.data.raw.kept_keys import KeptKeys
from adaptive_rec.data.raw.salts import salts
from adaptive_rec.errors import CheckpointError, ConfigError
from adaptive_rec.kernels import key_map as kernels
from adaptive_rec.saved import ANY, Saved
from adaptive_rec.tracking.count_min import CountMinSketch, width_for

FULLEST = 0.78
"""The largest part of the slots that is taken: beyond it there are twice as many, or new ones without the keys that left."""

MOST_LEFT = 1 / 32
"""The part of the slots that keys must have left for new slots to be no more than before."""

FIRST_SLOTS = 1 << 12

SKETCH_BYTES = 64 << 20
"""Limit of the sketch that counts keys without a row."""


class KeyMap:
    """The keys of some tables. One thread at a time may call it."""

    def __init__(self, rows_T: Sequence[int], table_F: Sequence[int], shared_rows: int, seed: int) -> None:
        """`rows_T`: rows of each table, of which keys without a row of their own share the first `shared_rows`; `table_F`: the
        table of each feature."""
        if sum(rows_T) > kernels.MOST_ROWS:
            rule = f"tables that are read by raw keys must have at most {kernels.MOST_ROWS:,} rows in all"
            raise ConfigError(f"{rule}, got {sum(rows_T):,}")
        self._first_T1 = np.concatenate([[0], np.cumsum(rows_T, dtype=np.int64)])
        shared_T = np.full(len(rows_T), shared_rows, dtype=np.int64)
        self._tables = kernels.KeyTables(salts(seed, len(rows_T)), self._first_T1, shared_T)
        self._table_F = np.array(table_F, dtype=np.int64)
        self._slots = np.zeros((FIRST_SLOTS, kernels.WORDS), dtype=np.uint32)
        self._taken_slots = 0
        """At least as many slots as are taken, those that keys have left included."""
        self._left_slots = 0
        """Slots that keys have left since there are new slots."""
        self._rows = FreeRows(self._first_T1[:-1] + shared_T, self._first_T1[1:])
        self.taken = self.settled = 0
        """Batches that were taken, and those whose steps were made."""
        self._changes: list[Change] = []
        """Changes that are not settled, in the order of their batches."""
        self._changed = 0
        """How many of them the newest batch has made."""
        width = width_for(sum(rows_T), sum(rows_T), SKETCH_BYTES)
        self._counted, self._settled = (CountMinSketch(width, seed=seed) for _ in range(2))

    @property
    def most_bytes(self) -> int:
        """The most memory that it takes: while slots for all rows are filled from half as many."""
        slots = FIRST_SLOTS
        while (FULLEST - MOST_LEFT) * slots < self._first_T1[-1]:
            slots *= 2
        return (slots + slots // 2) * self._slots[0].nbytes + self._counted.bytes + self._settled.bytes

    # Batches ---------------------------------------------------------------------------------------------------------

    def look_up(self, key_N: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ids for keys, by what is settled; nothing changes."""
        return self._find(key_N, offsets, kernels.NEW)[0]

    def counted(self, table: int, key_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many lookups of keys of a table were counted while they had no row, by what is settled, as the sketch
        remembers them: rather too many than too few."""
        name_N = np.empty(len(key_N), dtype=np.int64)
        kernels.scramble(self._tables, key_N, np.full(len(key_N), table), name_N)
        return self._settled.estimate(name_N).astype(np.int64)

    def take(
        self, key_N: NDArray[np.int64], offsets: NDArray[np.int64], admit_after: int, kept: KeptKeys | None = None,
        last: bool = True,
    ) -> tuple[NDArray[np.int64], NewKeys]:  # fmt: skip
        """Return ids for the keys of the next batch, and what it has changed. A key is admitted with an estimate of `admit_after`
        lookups; 1 admits all, uncounted. `kept`: the kept ones of keys that have left. `last`: whether the batch has no more
        keys; a user's loop takes those of each call."""
        self._make_changes()
        id_N, unknown_C, table_C = self._find(key_N, offsets, kernels.LEAVING)
        key_U, table_U, lookups_U = distinct_keys(key_N[unknown_C], table_C)
        names_U, wanted_U = np.empty(0, dtype=np.int64), np.ones(len(key_U), dtype=np.bool_)
        if admit_after > 1:
            names_U = np.empty(len(key_U), dtype=np.int64)
            kernels.scramble(self._tables, key_U, table_U, names_U)
            self._counted.add(names_U, lookups_U)
            wanted_U = self._counted.estimate(names_U) >= admit_after
        place_U = np.full(len(key_U), -1)
        if kept is not None:
            waits_U, place_U = kept.find(key_U, table_U, self.taken)
            wanted_U &= ~waits_U
        key_W, table_W = key_U[wanted_U], table_U[wanted_U]
        got, row_A = self._rows.give(table_W, self.taken)
        key_A, table_A = key_W[got], table_W[got]
        if len(got):
            self._add(key_A, table_A, row_A, kernels.NEW)
            id_N, unknown_C, _ = self._find(key_N, offsets, kernels.LEAVING)
        refused_T = np.bincount(np.delete(table_W, got), minlength=len(self._first_T1) - 1)
        id_A = row_A - self._first_T1[table_A]
        self.taken += last
        lookups = len(key_N), len(unknown_C)
        return id_N, NewKeys(
            names_U, lookups_U[: len(names_U)], key_A, table_A, id_A, refused_T, *lookups, self._rows.given, id_N, offsets,
            place_U[wanted_U][got], last,
        )  # fmt: skip

    def settle(self, new: NewKeys) -> Change | None:
        """Note that the step of a batch, or of a part of one, was made. They are settled in the order in which they were taken.
        Returns the change that was made before this batch, if there was one, with the batch's first part."""
        change = self._changes[0] if self._changes and self._changes[0].batch == self.settled else None
        if change is not None:
            self._flag(change.key_L, change.table_L, kernels.LEAVING, kernels.LEAVING | kernels.NEW)
            self._left_slots += len(change.key_L)
            self._settled.decay(change.decay)
            self._changes, self._changed = self._changes[1:], self._changed - 1
        self._flag(new.key_A, new.table_A, kernels.NEW, 0)
        self._settled.add(new.names_C, new.lookups_C)
        self._rows.settle(new.given)
        self.settled += new.last
        return change

    def forget_ahead(self) -> None:
        """Go back to what is settled: the batches taken since then will be taken again, or never."""
        self._move(kernels.NEW, len(self._slots))
        self._rows.forget_ahead()
        self._counted.set_state(Saved(self._settled.state()))
        self.taken, self._changed = self.settled, 0

    def _make_changes(self) -> None:
        """Make the changes that come before the next batch."""
        while self._changed < len(self._changes) and self._changes[self._changed].batch <= self.taken:
            change = self._changes[self._changed]
            self._flag(change.key_L, change.table_L, 0, kernels.LEAVING)
            self._counted.decay(change.decay)
            self._changed += 1

    def _find(
        self, key_N: NDArray[np.int64], offsets: NDArray[np.int64], hidden: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return ids, and the lookups of keys without a row, or with a hidden flag, with their tables."""
        id_N, unknown_N, table_N = (np.empty(len(key_N), dtype=np.int64) for _ in range(3))
        keys = kernels.Keys(key_N, offsets, self._table_F)
        unknown = kernels.find_ids(self._slots, self._tables, keys, hidden, id_N, unknown_N, table_N)
        return id_N, unknown_N[:unknown], table_N[:unknown]

    def _flag(self, key_C: NDArray[np.int64], table_C: NDArray[np.int64], before: int, after: int) -> None:
        kernels.change_flags(self._slots, self._tables, key_C, table_C, before, after)

    def _add(self, key_C: NDArray[np.int64], table_C: NDArray[np.int64], row_C: NDArray[np.int64], flags: int) -> None:
        """Add keys, with more slots or newer ones where they would be too full."""
        slots, taken = len(self._slots), self._taken_slots + len(key_C)
        if taken > FULLEST * slots:
            while taken - self._left_slots > (FULLEST - MOST_LEFT) * slots:
                slots *= 2
            self._move(0, slots)
        self._taken_slots += len(key_C)
        kernels.add_keys(self._slots, self._tables, key_C, table_C, row_C, flags)

    def _move(self, hidden: int, slots: int) -> None:
        """Have new slots, with the keys that have no hidden flag."""
        others = np.zeros((slots, kernels.WORDS), dtype=np.uint32)
        self._taken_slots, self._left_slots = kernels.move_slots(self._slots, self._tables, hidden, others), 0
        self._slots = others

    # Keys that leave -------------------------------------------------------------------------------------------------

    def change(self, change: Change) -> None:
        """Have a change made before a batch that was not taken yet, and comes after those of all earlier changes. Its keys must
        have rows that are settled."""
        self._changes = [*self._changes, change]

    def free(self, table: int, id_C: NDArray[np.int64], batch: int) -> None:
        """Let rows of keys that have left be given again, from a batch on that was not taken yet."""
        self._rows.leave(table, self._first_T1[table] + id_C, batch)

    @property
    def own_T(self) -> NDArray[np.int64]:
        """How many rows of each table keys may have."""
        return np.diff(self._first_T1) - self._tables.shared_T

    def free_T(self) -> NDArray[np.int64]:
        """Return how many rows of each table are free, or will be with the changes to come."""
        leaving = np.concatenate([NO_KEYS, *(change.table_L for change in self._changes)])
        return self._rows.free_T() + np.bincount(leaving, minlength=len(self._first_T1) - 1)

    @property
    def end_T(self) -> NDArray[np.int64]:
        """The end of the ids of each table that keys ever had, or share, as far as settled."""
        return self._rows.settled.end_T - self._first_T1[:-1]

    @property
    def shared_T(self) -> NDArray[np.int64]:
        """How many rows of each table other keys share: its first ones."""
        return self._tables.shared_T

    def some_keys(
        self, low: int, high: int, wanted_T: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the settled keys of wanted tables whose hash is at least `low` and at most `high`, but for those that are to
        leave, with their tables and ids; sorted by these."""
        key_C, table_C, row_C = kernels.list_part(self._slots, self._tables, np.uint64(low), np.uint64(high), wanted_T)
        leaving = np.concatenate([NO_KEYS, *(self._first_T1[each.table_L] + each.id_L for each in self._changes)])
        order = np.argsort(row_C)
        order = order[~np.isin(row_C[order], leaving)]
        table_C, row_C = table_C[order], row_C[order]
        return key_C[order], table_C, row_C - self._first_T1[table_C]

    # Keys ------------------------------------------------------------------------------------------------------------

    def keys_of(self, table: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of a table's rows that have a key of their own, rising, and their keys, as far as settled."""
        key_R, has_R = self._listed(table)
        (places,) = np.nonzero(has_R)
        return self._tables.shared_T[table] + places, key_R[places]

    def _listed(self, table: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the keys of the rows of a table that were ever given, and which have one."""
        first = int(self._first_T1[table] + self._tables.shared_T[table])
        rows = int(self._rows.settled.end_T[table]) - first
        key_R, has_R = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.bool_)
        kernels.list_keys(self._slots, kernels.NEW, first, key_R, has_R)
        return key_R, has_R

    def begin_with(self, table: int, key_K: NDArray[np.int64], id_K: NDArray[np.int64] | None = None) -> None:
        """Give distinct keys rows of a table that has none, before any batch is taken: those with these ids, or the first ones in
        order. Rows in between are free. Raises CheckpointError where there are fewer rows."""
        if len(key_K) > self.own_T[table]:
            raise CheckpointError(f"table {table} must have at most {self.own_T[table]} keys, got {len(key_K)}")
        own = int(self._tables.shared_T[table])
        row_K = self._first_T1[table] + (np.arange(own, own + len(key_K)) if id_K is None else id_K)
        end = int(row_K.max(initial=self._first_T1[table] + own - 1)) + 1
        _, row_R = self._rows.give(np.full(end - self._first_T1[table] - own, table), 0)
        self._rows.settle(self._rows.given)
        self._add(key_K, np.full(len(key_K), table), row_K, 0)
        self._rows.leave(table, np.setdiff1d(row_R, row_K), 0)

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what is settled."""
        keys: dict[str, Any] = {}
        for table in range(len(self._first_T1) - 1):
            keys[f"keys_{table}"], has_R = self._listed(table)
            keys[f"without_{table}"] = np.flatnonzero(~has_R)
        counted = self._settled.counters.any() or self._settled.decays
        return {
            "tables": keys,
            "shared_T": self._tables.shared_T,
            "rows": self._rows.state(),
            "sketch": self._settled.state() if counted else None,
            "batches": self.settled,
            "changes": changes_state(self._changes),
        }

    def set_state(self, found: Saved) -> None:
        """Restore a state, before any batch is taken. Raises CheckpointError where it does not fit."""
        tables = len(self._first_T1) - 1
        listed, shared_T = found.part("tables"), found.array("shared_T", np.int64, tables)
        if (shared_T != self._tables.shared_T).any():
            raise CheckpointError(
                f"keys must share as many rows as in the checkpoint, {shared_T.tolist()} of each table"
            )
        first_T = self._rows.settled.end_T
        self._rows.set_state(found.part("rows"))
        self._changes = saved_changes(found.part("changes"))
        for table, (first, end) in enumerate(zip(first_T.tolist(), self._rows.settled.end_T.tolist(), strict=True)):
            key_R = listed.array(f"keys_{table}", np.int64, end - first)
            without = listed.array(f"without_{table}", np.int64, ANY)
            if len(without) and not 0 <= without.min() <= without.max() < len(key_R):
                raise CheckpointError(f"rows without a key must lie in [0, {len(key_R)}), got {without.max()}")
            rows = np.delete(np.arange(first, end), without)
            self._add(np.delete(key_R, without), np.full(len(rows), table), rows, 0)
            for change in self._changes:
                change.check(table, int(shared_T[table]), key_R, without)
        self.taken = self.settled = found.integer("batches")
        if (sketch := found.maybe("sketch")) is not None:
            self._settled.set_state(sketch)
            self._counted.set_state(Saved(self._settled.state()))
