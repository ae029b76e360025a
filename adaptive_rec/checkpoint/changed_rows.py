"""Rows that differ between two checkpoints, found by their ids: raw keys, or the rows' numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.checkpoint.files import Files
from adaptive_rec.checkpoint.generation import read_manifest
from adaptive_rec.checkpoint.rows import SavedRows, saved_seed
from adaptive_rec.checkpoint.saved_keys import KeyChanges, TableKeys, key_changes, saved_keys
from adaptive_rec.data.raw.salts import salts
from adaptive_rec.errors import CheckpointError


@dataclass(frozen=True)
class RowNumbers:
    """The ids of a table whose ids are the numbers of its rows."""

    rows: int
    shared_rows: int = 0

    def between(self, first: int, end: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return which rows of a range have an id, and the ids."""
        return np.ones(end - first, dtype=np.bool_), np.arange(first, end)

    def __len__(self) -> int:
        return self.rows


NO_CHANGES = KeyChanges(0, 0, np.empty(0, dtype=np.int64))


class IdentifiedRows:
    """The rows of a whole checkpoint with their ids."""

    def __init__(self, generation: Path, files: Files) -> None:
        self.path, self.manifest = generation, read_manifest(files, generation)
        self.rows = SavedRows(files, generation)
        self.keys = saved_keys(generation, self.rows.tables, files)
        self.salts = None if self.keys is None else salts(saved_seed(files, generation), len(self.rows.tables))
        """What decides, where ids are raw, which shared row of a table a key has."""

    def ids(self, index: int) -> TableKeys | RowNumbers:
        """Return the ids of a table's rows."""
        return RowNumbers(self.rows.tables[index].rows) if self.keys is None else self.keys.table(index)

    def facts(self) -> dict[str, Any]:
        """Return by name what must be equal of two checkpoints for their rows to be compared."""
        found: dict[str, Any] = {"the kind of ids (data.ids)": "rows" if self.keys is None else "raw"}
        found["names of tables"] = [table.name[:80] for table in self.rows.tables]
        for table in self.rows.tables:
            shape = f"{table.rows} rows of dim {table.dim}, {self.rows.types(table)[0].type}"
            found[f"table {table.name[:80]!r}"] = shape
        if self.keys is not None and self.salts is not None:
            found["shared rows of the tables"] = self.keys.shared_T.tolist()
            found["what decides who shares which row (run.seed)"] = [f"{salt:016x}" for salt in self.salts.tolist()]
        return found


@dataclass(frozen=True)
class TableChanges:
    """What differs between a table of a checkpoint and the same of an earlier one; all of it, where there is no earlier one."""

    ids: TableKeys | RowNumbers
    changed_R: NDArray[np.bool_]
    """Rows that have an id, or are shared, whose values differ or which had another id, or none."""
    keys: KeyChanges


def check_comparable(newer: IdentifiedRows, older: IdentifiedRows) -> None:
    """Raise CheckpointError where changes from one checkpoint to the other have no meaning. They need not be of one run."""
    if older.manifest.step > newer.manifest.step:
        rule = f"step of {older.path}, since which rows changed, must be at most that of {newer.path}"
        raise CheckpointError(f"{rule}, {newer.manifest.step}, got {older.manifest.step}")
    now, was = newer.facts(), older.facts()
    for name in dict.fromkeys([*now, *was]):
        if now.get(name) != was.get(name):
            rule = f"{name} of {older.path}, since which rows changed, must be as in {newer.path}"
            raise CheckpointError(f"{rule}, {now.get(name, 'none')}, got {was.get(name, 'none')}")


def changes_of(index: int, newer: IdentifiedRows, older: IdentifiedRows | None) -> TableChanges:
    """Compare the weights of a table bit by bit, block by block. Memory: a byte for each row, and the keys of the table."""
    table, ids = newer.rows.tables[index], newer.ids(index)
    changed_R = np.zeros(table.rows, dtype=np.bool_)
    if older is None:
        for first, end in newer.rows.chunks(table):
            changed_R[first:end] = ids.between(first, end)[0]
        changed_R[: ids.shared_rows] = True
        return TableChanges(ids, changed_R, KeyChanges(len(ids), 0, np.empty(0, dtype=np.int64)))
    was = older.ids(index)
    for first, end in newer.rows.chunks(table):
        (has_C, id_C), (had_C, was_C) = (each.between(first, end) for each in (ids, was))
        stays_C = has_C & had_C & (id_C == was_C)
        changed_C, compared_C = has_C & ~stays_C, stays_C | (np.arange(first, end) < ids.shared_rows)
        if compared_C.any():
            sides = ((newer, table), (older, older.rows.tables[index]))
            changed_C |= compared_C & _differing(*(side.rows.read(each, first, end)[0] for side, each in sides))
        changed_R[first:end] = changed_C
    if isinstance(was, TableKeys) and isinstance(ids, TableKeys):
        return TableChanges(ids, changed_R, key_changes(was, ids))
    return TableChanges(ids, changed_R, NO_CHANGES)


def _differing(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows differ in any bit."""
    return (np.ascontiguousarray(a).view(np.uint8) != np.ascontiguousarray(b).view(np.uint8)).any(axis=1)
