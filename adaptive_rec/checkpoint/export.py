"""Export of a generation's tables to files for other programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from adaptive_rec.checkpoint.files import DISK, Output, os_errors
from adaptive_rec.checkpoint.history import verify_all
from adaptive_rec.checkpoint.rows import SavedRows, SavedTable, saved_tables
from adaptive_rec.checkpoint.safetensors_file import ArrayInParts, as_numbers, write_parts
from adaptive_rec.checkpoint.saved_keys import saved_keys
from adaptive_rec.checkpoint.saved_state import DENSE
from adaptive_rec.data.prepare.arrays import npy_header
from adaptive_rec.system.durable import new_folder

KEYS = "keys.safetensors"
"""File of the raw keys of all tables."""

_TAKEN = {Path(KEYS).stem, Path(DENSE).stem}
"""Names of files that are no table's."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def export_weights(generation: Path, out: Path, form: str) -> list[Path]:
    """Write the weights of all tables to a new folder, as a whole or not at all, and return the files.

    `safetensors`: ``NAME.safetensors`` with the array `weight`. `npy`: ``NAME.npy``, with bfloat16 as float32. `torchrec`:
    ``state_dict.safetensors`` with all tables under TorchRec's names, for `load_state_dict` of an EmbeddingBagCollection.

    Where ids are raw keys, ``keys.safetensors`` has for each table the arrays ``NAME.key`` and ``NAME.row``: the keys that have a
    row of their own, and the number of that row in `weight`.
    """
    with new_folder(out) as draft:
        verify_all(DISK, generation)
        return write_tables(generation, draft, out, form)


def write_tables(generation: Path, draft: Path, out: Path, form: str) -> list[Path]:
    """Write the tables of a whole generation to the folder `draft`, which will be `out`, and return the files by their later
    names."""
    files = _files(SavedRows(DISK, generation), form)
    with os_errors("creation", out):
        DISK.make_folder(draft)
    for name, arrays in files.items():
        write_file(draft / name, out / name, arrays, form)
    if keys := _keys(generation):
        files[KEYS] = keys
        write_file(draft / KEYS, out / KEYS, keys, "safetensors")
    return [out / name for name in files]


def file_names(tables: list[SavedTable]) -> list[str]:
    """Return the names of tables; ``table-N`` for a name that cannot be a file name, is that of another file or
    looks like another table's number."""
    plain = [table.name if _PLAIN_NAME.fullmatch(table.name) and table.name not in _TAKEN else "" for table in tables]
    return [
        name if name and plain.count(name) == 1 and not re.fullmatch(r"table-[0-9]+", name) else f"table-{number:04d}"
        for number, name in enumerate(plain)
    ]


def _files(saved: SavedRows, form: str) -> dict[str, dict[str, ArrayInParts]]:
    """Return arrays by name, by file name."""
    tables = dict(zip(file_names(saved.tables), saved.tables, strict=True))
    if form == "torchrec":
        keys = {f"embedding_bags.{name}.weight": _weights(saved, table) for name, table in tables.items()}
        return {"state_dict.safetensors": keys}
    return {f"{name}.{form}": {"weight": _weights(saved, table)} for name, table in tables.items()}


def _keys(generation: Path) -> dict[str, ArrayInParts]:
    """Return raw keys and their rows by name; nothing where ids are rows."""
    tables, found = saved_tables(DISK, generation), dict[str, ArrayInParts]()
    if (saved := saved_keys(generation, tables)) is None:
        return {}
    for index, name in enumerate(file_names(tables)):
        keys = saved.table(index)
        for what, values in (("key", keys.key_K), ("row", keys.row_K)):
            found[f"{name}.{what}"] = ArrayInParts(values.shape, "I64", [values])
    return found


def _weights(saved: SavedRows, table: SavedTable) -> ArrayInParts:
    kind, _ = saved.types(table)
    parts = (saved.read(table, first, end)[0] for first, end in saved.chunks(table))
    return ArrayInParts((table.rows, *kind.shape[1:]), kind.type, parts)


def write_file(draft: Path, path: Path, arrays: Mapping[str, ArrayInParts], form: str) -> None:
    """Write the file that will be `path`, part by part: no table is held in memory, and no file is mapped, as a full disk kills
    a process that writes to a mapped file."""
    with os_errors("creation", path):
        out = DISK.create(draft)
    try:
        with os_errors("write", path):
            (_write_npy if form == "npy" else write_parts)(out, arrays)
            out.sync()
    finally:
        out.close()


def _write_npy(out: Output, arrays: Mapping[str, ArrayInParts]) -> None:
    (weights,) = arrays.values()
    out.write(npy_header(np.dtype(np.float32) if weights.type == "BF16" else weights.dtype, weights.shape))
    for part in weights.parts:
        out.write(np.ascontiguousarray(as_numbers(part, weights.type)).data)
