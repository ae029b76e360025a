"""Export of a generation's rows by their ids, for a serving store: all of them, or what changed since an earlier generation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.checkpoint.changed_rows import IdentifiedRows, TableChanges, changes_of, check_comparable
from adaptive_rec.checkpoint.files import DISK, os_errors
from adaptive_rec.checkpoint.history import chain, verify_all
from adaptive_rec.checkpoint.rows import SavedTable
from adaptive_rec.checkpoint.safetensors_file import ArrayInParts, ArraysFile
from adaptive_rec.checkpoint.saved_state import DENSE
from adaptive_rec.checkpoint.table_files import file_names, write_file, write_json
from adaptive_rec.errors import CheckpointError
from adaptive_rec.system.durable import new_folder

FORMAT = 1
STORE = "store.json"
"""What the other files of an export are of."""


def export_for_store(generation: Path, since: Path | None, out: Path) -> list[Path]:
    """Write rows with their ids to a new folder, as a whole or not at all, and return the files.

    ``NAME.safetensors`` of each table: `id` (N) and `weight` (N, D), `removed` (M), the ids that have no row any more,
    `shared_row` (S) and `shared_weight` (S, D). ``dense.safetensors``: the dense part, where it differs. ``store.json``: which
    checkpoints these are, and what it takes to find the shared row of an id.
    """
    with new_folder(out) as draft:
        verify_all(DISK, generation)
        if since is not None and since.resolve() not in [link.path.resolve() for link in chain(DISK, generation)]:
            verify_all(DISK, since)
        newer, older = IdentifiedRows(generation, DISK), None if since is None else IdentifiedRows(since, DISK)
        if older is not None:
            check_comparable(newer, older)
        with os_errors("creation", out):
            DISK.make_folder(draft)
        written, tables = [], []
        for index, name in enumerate(file_names([table.name for table in newer.rows.tables])):
            changes = changes_of(index, newer, older)
            file = f"{name}.safetensors"
            write_file(draft / file, out / file, _arrays(newer, newer.rows.tables[index], changes))
            tables.append(_entry(newer, index, file, changes))
            written.append(file)
        if dense := _dense(newer, older):
            write_file(draft / DENSE, out / DENSE, dense)
            written.append(DENSE)
        entry = {
            "format": FORMAT,
            **_named(newer),
            "since": None if older is None else _named(older),
            "ids": "rows" if newer.keys is None else "raw",
            "dense": bool(dense),
            "tables": tables,
        }
        write_json(draft / STORE, out / STORE, entry)
        return [out / name for name in (*written, STORE)]


def _named(side: IdentifiedRows) -> dict[str, Any]:
    return {"checkpoint": side.path.resolve().name, "step": side.manifest.step, "crc32": side.manifest.crc32}


def _entry(newer: IdentifiedRows, index: int, file: str, changes: TableChanges) -> dict[str, Any]:
    table, shared_rows = newer.rows.tables[index], changes.ids.shared_rows
    written = int(np.count_nonzero(changes.changed_R[shared_rows:]))
    salt = None if newer.salts is None else f"{newer.salts[index]:016x}"
    return {
        "name": table.name,
        "file": file,
        "dim": table.dim,
        "type": newer.rows.types(table)[0].type,
        "ids": len(changes.ids),
        "written": written,
        "new": changes.keys.new,
        "moved": changes.keys.moved,
        "removed": len(changes.keys.removed),
        "shared_rows": shared_rows,
        "salt": salt,
    }


def _arrays(side: IdentifiedRows, table: SavedTable, changes: TableChanges) -> dict[str, ArrayInParts]:
    """Return the arrays of a table's file. Rows are read when they are written."""
    shared, kind = changes.ids.shared_rows, side.rows.types(table)[0]
    shared_S = np.flatnonzero(changes.changed_R[:shared])
    rows = int(np.count_nonzero(changes.changed_R[shared:]))
    return {
        "id": ArrayInParts((rows,), "I64", _ids(side, table, changes)),
        "weight": ArrayInParts(
            (rows, table.dim), kind.type, _weights(side, table, changes.changed_R, shared, table.rows)
        ),
        "removed": ArrayInParts(changes.keys.removed.shape, "I64", [changes.keys.removed]),
        "shared_row": ArrayInParts(shared_S.shape, "I64", [shared_S]),
        "shared_weight": ArrayInParts(
            (len(shared_S), table.dim), kind.type, _weights(side, table, changes.changed_R, 0, shared)
        ),
    }


def _ids(side: IdentifiedRows, table: SavedTable, changes: TableChanges) -> Iterator[NDArray[np.int64]]:
    for first, end in side.rows.chunks(table):
        first = max(first, changes.ids.shared_rows)
        if first < end:
            yield changes.ids.between(first, end)[1][changes.changed_R[first:end]]


def _weights(
    side: IdentifiedRows, table: SavedTable, changed_R: NDArray[np.bool_], low: int, high: int
) -> Iterator[NDArray[Any]]:
    """Yield the weights of those rows from `low` to `high` that changed."""
    for first, end in side.rows.chunks(table):
        first, end = max(first, low), min(end, high)
        if first < end and changed_R[first:end].any():
            yield side.rows.read(table, first, end)[0][changed_R[first:end]]


def _dense(newer: IdentifiedRows, older: IdentifiedRows | None) -> dict[str, ArrayInParts]:
    """Return the dense part without its optimizer; nothing where it is as it was."""
    now, was = _dense_arrays(newer), {} if older is None else _dense_arrays(older)
    shapes, before = ({name: list(array.shape) for name, array in side.items()} for side in (now, was))
    if older is not None and shapes != before:
        rule = f"the dense part of {older.path}, since which rows changed, must be as in {newer.path}"
        raise CheckpointError(f"{rule}, {shapes}, got {before}")
    if older is not None and all(_bits(array) == _bits(was[name]) for name, array in now.items()):
        return {}
    return now


def _dense_arrays(side: IdentifiedRows) -> dict[str, ArrayInParts]:
    if DENSE not in {entry.name for entry in side.manifest.files}:
        return {}
    file = ArraysFile(DISK, side.path / DENSE)
    return {
        name: ArrayInParts(stored.shape, stored.type, [file.rows(name)])
        for name, stored in file.arrays.items()
        if name.startswith("model.")
    }


def _bits(array: ArrayInParts) -> tuple[str, bytes]:
    return array.type, b"".join(part.tobytes() for part in array.parts)

