"""What batches change in a map of keys, and what is changed before a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.raw.free_rows import Given
from adaptive_rec.errors import CheckpointError
from adaptive_rec.saved import ANY, Saved

NO_KEYS = np.empty(0, dtype=np.int64)

COUNTED = ("keys", "evicted", "refused", "lookups", "lookups_shared")
"""What is counted: keys that have a row now, that have lost theirs, that were refused one; lookups, and those of shared rows."""


def row_names(table_C: NDArray[np.int64], id_C: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each row, by its table and id."""
    return table_C << 32 | id_C


def distinct_keys(
    key_C: NDArray[np.int64], table_C: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct keys of tables in order, their tables, and how often each occurs."""
    order = np.lexsort((key_C, table_C))
    key_C, table_C = key_C[order], table_C[order]
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (key_C[1:] != key_C[:-1]) | (table_C[1:] != table_C[:-1])
    first_U = np.flatnonzero(is_new)
    return key_C[first_U], table_C[first_U], np.diff(first_U, append=len(order))


@dataclass(frozen=True)
class Change:
    """What becomes of the map before a batch that was not taken yet when this was decided."""

    batch: int
    """The batch, counted from the first one of the run."""
    key_L: NDArray[np.int64] = field(default_factory=NO_KEYS.copy)
    """Keys that lose their rows, their tables and ids."""
    table_L: NDArray[np.int64] = field(default_factory=NO_KEYS.copy)
    id_L: NDArray[np.int64] = field(default_factory=NO_KEYS.copy)
    decay: float = 1.0
    """Factor of the counts of all keys without a row."""
    aged: int = 0
    """How many of the keys leave as nobody has looked them up for long."""

    def check(self, table: int, first: int, key_R: NDArray[np.int64], without: NDArray[np.int64]) -> None:
        """Raise CheckpointError where the keys of a table have other rows. `key_R`: the keys of the rows from id `first` on;
        `without`: which of these rows have none."""
        own = self.table_L == table
        places = self.id_L[own] - first
        known = (places >= 0) & (places < len(key_R)) & ~np.isin(places, without)
        if not known.all() or (key_R[places] != self.key_L[own]).any() or len(np.unique(places)) < len(places):
            raise CheckpointError(f"keys of table {table} that leave must have rows of their own, each once")


@dataclass(frozen=True)
class NewKeys:
    """What one batch, or a part of one, has changed."""

    names_C: NDArray[np.int64]
    """The keys without a row in it that were counted, as the sketch counts them, and their lookups."""
    lookups_C: NDArray[np.int64]
    key_A: NDArray[np.int64]
    """The keys that were admitted, their tables and ids."""
    table_A: NDArray[np.int64]
    id_A: NDArray[np.int64]
    refused_T: NDArray[np.int64]
    """Keys that should have been admitted, for which their table had no row."""
    lookups: int
    lookups_shared: int
    """Lookups of all keys, and of those without a row of their own."""
    given: Given
    """How far the rows of each table are given with this batch."""
    id_N: NDArray[np.int64]
    """The ids of all lookups, bag by bag, and the bounds of the bags."""
    offsets: NDArray[np.int64]
    place_A: NDArray[np.int64]
    """Where the values of admitted keys are kept that come back; -1 of the others."""
    last: bool = True
    """Whether the batch has no more keys."""

    def admitted(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each table of admitted keys, with their ids and the keys."""
        for table in np.unique(self.table_A).tolist():
            some = self.table_A == table
            yield table, self.id_A[some], self.key_A[some]

    def back(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each table of admitted keys that come back, with their ids and the places of their values."""
        for table in np.unique(self.table_A[self.place_A >= 0]).tolist():
            some = (self.table_A == table) & (self.place_A >= 0)
            yield table, self.id_A[some], self.place_A[some]

    def count_into(self, counts: dict[str, int], evicted: int = 0) -> None:
        """Add this batch to counts of these names (COUNTED). `evicted`: keys that lost their rows before it."""
        counts["keys"] += len(self.key_A) - evicted
        counts["evicted"] += evicted
        counts["refused"] += int(self.refused_T.sum())
        counts["lookups"] += self.lookups
        counts["lookups_shared"] += self.lookups_shared


def changes_state(changes: Sequence[Change]) -> dict[str, Any]:
    """Return changes as a part of a saved state."""
    parts = {name: [NO_KEYS, *(getattr(change, name) for change in changes)] for name in ("key_L", "table_L", "id_L")}
    return {
        "batch": np.array([change.batch for change in changes], dtype=np.int64),
        "keys": np.array([len(change.key_L) for change in changes], dtype=np.int64),
        "decay": np.array([change.decay for change in changes], dtype=np.float64),
        "aged": np.array([change.aged for change in changes], dtype=np.int64),
        **{name: np.concatenate(arrays) for name, arrays in parts.items()},
    }


def saved_changes(found: Saved) -> list[Change]:
    """Return the changes of a saved state. Raises CheckpointError; whether their keys are there is not checked."""
    batch_C = found.array("batch", np.int64, ANY)
    keys_C, decay_C = found.array("keys", np.int64, len(batch_C)), found.array("decay", np.float64, len(batch_C))
    aged_C = found.array("aged", np.int64, len(batch_C))
    if (keys_C < 0).any():
        raise CheckpointError(f"keys that leave must not be fewer than none, got {keys_C.min()}")
    if (aged_C < 0).any() or (aged_C > keys_C).any():
        raise CheckpointError(f"keys that leave by age must be some of those that leave, got {aged_C.max()}")
    ends = np.cumsum(keys_C)
    arrays = [found.array(name, np.int64, int(keys_C.sum())) for name in ("key_L", "table_L", "id_L")]
    key_L, table_L, id_L = (
        [array[end - keys : end] for keys, end in zip(keys_C, ends, strict=True)] for array in arrays
    )
    changes = zip(batch_C.tolist(), key_L, table_L, id_L, decay_C.tolist(), aged_C.tolist(), strict=True)
    return [Change(*change) for change in changes]
