"""The raw keys that a checkpoint has, table by table, and the columns of a user's own files. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.checkpoint.files import DISK, Files
from adaptive_rec.checkpoint.flatten import unflatten
from adaptive_rec.checkpoint.generation import read_json_file
from adaptive_rec.checkpoint.rows import SavedTable, state_file_names
from adaptive_rec.checkpoint.safetensors_file import ArraysFile
from adaptive_rec.checkpoint.saved_state import read_values
from adaptive_rec.data.tabular.trained import TrainedColumns
from adaptive_rec.errors import CheckpointError
from adaptive_rec.saved import Saved

KEYS_OF_TABLES = "keys/tables/"
"""What the names of the arrays begin with that have the keys of the tables."""
COLUMNS = "columns"


@dataclass(frozen=True)
class TableKeys:
    """The keys of a table that have a row of their own."""

    shared_rows: int
    """The table's first rows, which all other keys share."""
    key_K: NDArray[np.int64]
    row_K: NDArray[np.int64]
    """The row of each key within its table, rising."""

    def between(self, first: int, end: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return which rows of a range have a key, and the keys; 0 for rows without one."""
        some = slice(*np.searchsorted(self.row_K, (first, end)))
        has_R, key_R = np.zeros(end - first, dtype=np.bool_), np.zeros(end - first, dtype=np.int64)
        place = self.row_K[some] - first
        has_R[place], key_R[place] = True, self.key_K[some]
        return has_R, key_R

    def __len__(self) -> int:
        return len(self.key_K)


@dataclass(frozen=True)
class KeyChanges:
    """How the keys of a table differ from those that it had earlier."""

    new: int
    """Keys that had no row of their own."""
    moved: int
    """Keys that had another row of the table."""
    removed: NDArray[np.int64]
    """Keys that have no row of their own any more, rising."""


def key_changes(older: TableKeys, newer: TableKeys) -> KeyChanges:
    """Compare the keys of a table. Only those are sorted whose row has another key."""
    place_K = np.minimum(np.searchsorted(older.row_K, newer.row_K), max(0, len(older) - 1))
    stays_K = np.zeros(len(newer), dtype=np.bool_)
    if len(older):
        stays_K = (older.row_K[place_K] == newer.row_K) & (older.key_K[place_K] == newer.key_K)
    goes_K = np.ones(len(older), dtype=np.bool_)
    goes_K[place_K[stays_K]] = False
    lost, got = older.key_K[goes_K], newer.key_K[~stays_K]
    removed = np.sort(np.setdiff1d(lost, got, assume_unique=True))
    moved = len(lost) - len(removed)
    return KeyChanges(len(got) - moved, moved, removed)


class SavedKeys:
    """The raw keys of a whole checkpoint. The keys of a table are read when they are requested."""

    def __init__(self, checkpoint: Path, tables: list[SavedTable], files: Files) -> None:
        self._file = ArraysFile(files, checkpoint / state_file_names(0)[1])
        self._path, self.tables = checkpoint / state_file_names(0)[1], tables
        self.shared_T = self._array("keys/shared_T")
        """Rows of each table that keys without one of their own share."""
        if len(self.shared_T) != len(tables):
            raise CheckpointError(f"{self._path} must have keys of {len(tables)} tables, got {len(self.shared_T)}")

    def table(self, index: int) -> TableKeys:
        """Read the keys of a table. Raises CheckpointError unless they are distinct and fit its rows."""
        table, shared_rows = self.tables[index], int(self.shared_T[index])
        key_R, without = (self._array(f"{KEYS_OF_TABLES}{what}_{index}") for what in ("keys", "without"))
        name = f"table {table.name[:80]!r} in {self._path}"
        if not 1 <= shared_rows <= table.rows - len(key_R):
            rule = f"rows for {len(key_R)} keys and at least 1 shared one"
            raise CheckpointError(f"{name} must have {rule}, got {table.rows} rows, {shared_rows} of them shared")
        if len(without) and not 0 <= without.min() <= without.max() < len(key_R):
            raise CheckpointError(f"rows without a key of {name} must lie in [0, {len(key_R)}), got {without.max()}")
        key_K, row_K = np.delete(key_R, without), shared_rows + np.delete(np.arange(len(key_R)), without)
        sorted_K = np.sort(key_K)
        if (twice := sorted_K[1:][sorted_K[1:] == sorted_K[:-1]]).size:
            raise CheckpointError(f"keys of {name} must be distinct, got {twice[0]} twice")
        return TableKeys(shared_rows, key_K, row_K)

    def _array(self, name: str) -> NDArray[np.int64]:
        stored = self._file.arrays.get(name)
        if stored is None or (stored.type, len(stored.shape)) != ("I64", 1):
            raise CheckpointError(f"{self._path} must hold {name} (K) of I64; it is missing")
        return self._file.rows(name).astype(np.int64, copy=False)


def saved_keys(checkpoint: Path, tables: list[SavedTable], files: Files = DISK) -> SavedKeys | None:
    """Return the raw keys of a whole checkpoint with these tables; None where ids are rows."""
    found = read_json_file(files, checkpoint / state_file_names(0)[0])
    state = found.get("state") if isinstance(found, dict) else None
    if not isinstance(state, dict) or state.get("keys") is None:  # other ids, or an older version
        return None
    return SavedKeys(checkpoint, tables, files)


def saved_columns(checkpoint: Path, files: Files = DISK) -> TrainedColumns | None:
    """Return the columns that a run has read by raw keys; None where it has read no such files, or the checkpoint is of a version
    that kept none. Raises CheckpointError where it is damaged."""
    state, _, _ = read_values(checkpoint, files)
    if state.get(COLUMNS) is None:
        return None
    file = ArraysFile(files, checkpoint / state_file_names(0)[1])
    arrays = {name: file.rows(name) for name in file.arrays if name.startswith(f"{COLUMNS}/")}
    return TrainedColumns.saved(Saved(unflatten({COLUMNS: state[COLUMNS]}, arrays)).part(COLUMNS))
