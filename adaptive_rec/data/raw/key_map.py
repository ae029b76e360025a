"""Which keys of the tables have a row of their own, and which are counted until they get one.

Keys without a row share the first rows of their table. A sketch counts their lookups; a key gets a row with the batch in which
its estimate reaches `admit_after` (after Einziger, Friedman and Manes, "TinyLFU", 2017, which admits to a cache by a sketch).
Batches are taken in the order of their steps, some steps ahead. So there are two ends: what the newest batch has admitted and
counted, and what is *settled*, the state after a step that was made. Rows are given in order, so what is settled is all rows
below a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import CheckpointError, ConfigError
from adaptive_rec.kernels import key_map as kernels
from adaptive_rec.saved import ANY, Saved
from adaptive_rec.tracking.count_min import CountMinSketch, width_for

FULLEST = 0.78
"""The largest part of the slots that is taken: beyond it there are twice as many."""

FIRST_SLOTS = 1 << 12

SKETCH_BYTES = 64 << 20
"""Limit of the sketch that counts keys without a row."""


@dataclass(frozen=True)
class NewKeys:
    """What one batch has changed."""

    names_C: NDArray[np.int64]
    """The keys without a row in it that were counted, as the sketch counts them, and their lookups."""
    lookups_C: NDArray[np.int64]
    key_A: NDArray[np.int64]
    """The keys that were admitted, their tables and ids."""
    table_A: NDArray[np.int64]
    id_A: NDArray[np.int64]
    refused: int
    """Keys that should have been admitted, for which their table has no row."""
    lookups: int
    lookups_shared: int
    """Lookups of all keys, and of those without a row of their own."""
    end_T: NDArray[np.int64]
    """The end of each table's rows that are taken, in joint rows."""


class KeyMap:
    """The keys of some tables. One thread takes batches; any may look keys up that are settled."""

    def __init__(self, rows_T: Sequence[int], table_F: Sequence[int], shared_rows: int, seed: int) -> None:
        """`rows_T`: rows of each table, of which keys without a row of their own share the first `shared_rows`; `table_F`: the
        table of each feature."""
        if sum(rows_T) > kernels.MOST_ROWS:
            rule = f"tables that are read by raw keys must have at most {kernels.MOST_ROWS:,} rows in all"
            raise ConfigError(f"{rule}, got {sum(rows_T):,}")
        self._first_T1 = np.concatenate([[0], np.cumsum(rows_T, dtype=np.int64)])
        shared_T = np.full(len(rows_T), shared_rows, dtype=np.int64)
        salt_T = np.random.default_rng(seed).integers(0, 2**64, len(rows_T), dtype=np.uint64)
        self._tables = kernels.KeyTables(salt_T, self._first_T1, shared_T)
        self._table_F = np.array(table_F, dtype=np.int64)
        self._slots = np.zeros((FIRST_SLOTS, kernels.WORDS), dtype=np.uint32)
        self._keys = 0
        self._end_T = self._first_T1[:-1] + shared_T
        self.settled_T = self._end_T.copy()
        """The end of each table's rows that were taken by steps made so far."""
        width = width_for(sum(rows_T), sum(rows_T), SKETCH_BYTES)
        self._counted, self._settled = (CountMinSketch(width, seed=seed) for _ in range(2))

    @property
    def most_bytes(self) -> int:
        """The most memory that it takes: while slots for all rows are filled from half as many."""
        slots = FIRST_SLOTS
        while FULLEST * slots < self._first_T1[-1]:
            slots *= 2
        return (slots + slots // 2) * self._slots[0].nbytes + self._counted.bytes + self._settled.bytes

    # Batches ---------------------------------------------------------------------------------------------------------

    def look_up(self, key_N: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ids for keys, by what is settled; nothing changes."""
        return self._find(key_N, offsets, self.settled_T)[0]

    def take(
        self, key_N: NDArray[np.int64], offsets: NDArray[np.int64], admit_after: int
    ) -> tuple[NDArray[np.int64], NewKeys]:
        """Return ids for the keys of the next batch, and what it has changed. A key is admitted with an estimate of `admit_after`
        lookups; 1 admits all, uncounted."""
        id_N, unknown_C, table_C = self._find(key_N, offsets, self._end_T)
        key_U, table_U, lookups_U = _distinct(key_N[unknown_C], table_C)
        names_U, wanted = np.empty(0, dtype=np.int64), np.ones(len(key_U), dtype=np.bool_)
        if admit_after > 1:
            names_U = np.empty(len(key_U), dtype=np.int64)
            kernels.scramble(self._tables, key_U, table_U, names_U)
            self._counted.add(names_U, lookups_U)
            wanted = self._counted.estimate(names_U) >= admit_after
        admitted, row_A = self._give_rows(table_U, np.flatnonzero(wanted))
        key_A, table_A = key_U[admitted], table_U[admitted]
        if len(admitted):
            self._make_room(len(admitted))
            kernels.add_keys(self._slots, self._tables, key_A, table_A, row_A)
            id_N, unknown_C, _ = self._find(key_N, offsets, self._end_T)
        refused = int(np.count_nonzero(wanted)) - len(admitted)
        id_A = row_A - self._first_T1[table_A]
        counts = refused, len(key_N), len(unknown_C)
        return id_N, NewKeys(names_U, lookups_U[: len(names_U)], key_A, table_A, id_A, *counts, self._end_T.copy())

    def settle(self, new: NewKeys) -> None:
        """Note that the step of a batch was made. Batches are settled in the order in which they were taken."""
        self._settled.add(new.names_C, new.lookups_C)
        self.settled_T = new.end_T

    def forget_ahead(self) -> None:
        """Go back to what is settled: the batches taken since then will be taken again, or never."""
        self._keys = self._move(self.settled_T, len(self._slots))
        self._end_T = self.settled_T.copy()
        self._counted.counters[:] = self._settled.counters

    def _find(
        self, key_N: NDArray[np.int64], offsets: NDArray[np.int64], limit_T: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return ids, and the lookups of keys without a row below its table's limit, with their tables."""
        id_N, unknown_N, table_N = (np.empty(len(key_N), dtype=np.int64) for _ in range(3))
        keys = kernels.Keys(key_N, offsets, self._table_F)
        unknown = kernels.find_ids(self._slots, self._tables, keys, limit_T, id_N, unknown_N, table_N)
        return id_N, unknown_N[:unknown], table_N[:unknown]

    def _give_rows(
        self, table_U: NDArray[np.int64], wanted: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give rows to keys, sorted by table, as long as their tables have some. Returns which got one, and the joint rows."""
        tables, first_C, count_C = np.unique(table_U[wanted], return_index=True, return_counts=True)
        got, rows = [wanted[:0]], [wanted[:0]]
        for table, first, count in zip(tables.tolist(), first_C.tolist(), count_C.tolist(), strict=True):
            end = int(self._end_T[table])
            given = min(count, int(self._first_T1[table + 1]) - end)
            got.append(wanted[first : first + given])
            rows.append(np.arange(end, end + given))
            self._end_T[table] += given
        return np.concatenate(got), np.concatenate(rows)

    def _make_room(self, keys: int) -> None:
        """Have slots for so many more keys."""
        self._keys += keys
        slots = len(self._slots)
        while self._keys > FULLEST * slots:
            slots *= 2
        if slots > len(self._slots):
            self._move(self._first_T1[1:], slots)

    def _move(self, limit_T: NDArray[np.int64], slots: int) -> int:
        """Have new slots, with the keys whose rows are below the limits: other threads may read the present ones.
        Returns how many these keys are."""
        others = np.zeros((slots, kernels.WORDS), dtype=np.uint32)
        kept = kernels.move_slots(self._slots, self._tables, limit_T, others)
        self._slots = others
        return kept

    @property
    def settled_ids(self) -> NDArray[np.int64]:
        """The end of the ids of each table that keys have, or share, as far as settled."""
        return self.settled_T - self._first_T1[:-1]

    # Keys ------------------------------------------------------------------------------------------------------------

    def keys_of(self, table: int) -> tuple[int, NDArray[np.int64]]:
        """Return the first id of a table's rows that have a key of their own, and the keys of these rows, as far as settled."""
        first = int(self._first_T1[table] + self._tables.shared_T[table])
        key_R = np.zeros(int(self.settled_T[table]) - first, dtype=np.int64)
        kernels.list_keys(self._slots, key_R, first)
        return int(self._tables.shared_T[table]), key_R

    def state(self) -> dict[str, Any]:
        """Return what is settled."""
        tables = range(len(self.settled_T))
        keys = {f"keys_{table}": self.keys_of(table)[1] for table in tables}
        sketch = self._settled.state() if self._settled.counters.any() else None
        return {"tables": keys, "shared_T": self._tables.shared_T, "sketch": sketch}

    def set_state(self, found: Saved) -> None:
        """Restore a state, before any batch is taken. Raises CheckpointError where it does not fit."""
        listed, shared_T = found.part("tables"), found.array("shared_T", np.int64, len(self.settled_T))
        if (shared_T != self._tables.shared_T).any():
            raise CheckpointError(f"keys must share as many rows as in the checkpoint, {shared_T.tolist()} of each table")
        for table in range(len(self.settled_T)):
            key_R, first = listed.array(f"keys_{table}", np.int64, ANY), int(self._end_T[table])
            if first + len(key_R) > self._first_T1[table + 1]:
                room = int(self._first_T1[table + 1]) - first
                raise CheckpointError(f"table {table} must have at most {room} keys, the checkpoint has {len(key_R)}")
            self._make_room(len(key_R))
            rows = np.arange(first, first + len(key_R))
            kernels.add_keys(self._slots, self._tables, key_R, np.full(len(key_R), table), rows)
            self._end_T[table] += len(key_R)
        self.settled_T = self._end_T.copy()
        if (sketch := found.maybe("sketch")) is not None:
            self._settled.set_state(sketch)
            self._counted.counters[:] = self._settled.counters


def _distinct(
    key_C: NDArray[np.int64], table_C: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct keys of tables in order, their tables, and how often each occurs."""
    order = np.lexsort((key_C, table_C))
    key_C, table_C = key_C[order], table_C[order]
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (key_C[1:] != key_C[:-1]) | (table_C[1:] != table_C[:-1])
    first_U = np.flatnonzero(is_new)
    return key_C[first_U], table_C[first_U], np.diff(first_U, append=len(order))
