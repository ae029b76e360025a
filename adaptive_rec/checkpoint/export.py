"""The tables of a generation in files for other programs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.history import verify_all
from adaptive_rec.checkpoint.rows import SavedRows, SavedTable
from adaptive_rec.checkpoint.safetensors_file import Parts, write_parts
from adaptive_rec.checkpoint.synced_file import telling
from adaptive_rec.errors import UsageError

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def export(generation: Path, out: Path, form: str) -> list[Path]:
    """Write the weights of every table to a new folder, and return the files.

    `safetensors`: ``NAME.safetensors`` with `weight`. `npy`: ``NAME.npy``; bfloat16, which NumPy has not, as float32. `torchrec`:
    ``state_dict.safetensors`` with all tables under TorchRec's names, for `load_state_dict` of an EmbeddingBagCollection.
    """
    verify_all(DISK, generation)
    saved = SavedRows(DISK, generation)
    tables = dict(zip(file_names(saved.tables), saved.tables, strict=True))
    try:
        DISK.make_folder(out)
    except OSError as error:
        raise UsageError(f"--out {out} must be a folder that can be made: {error.strerror}") from None
    if form == "torchrec":
        keys = {f"embedding_bags.{name}.weight": table for name, table in tables.items()}
        return [_write(out / "state_dict.safetensors", saved, keys)]
    if form == "safetensors":
        return [_write(out / f"{name}.safetensors", saved, {"weight": table}) for name, table in tables.items()]
    return [_write_npy(out / f"{name}.npy", saved, table) for name, table in tables.items()]


def file_names(tables: list[SavedTable]) -> list[str]:
    """Names of tables as the run knows them; for those that cannot be a file's, or could be taken for another table's number,
    ``table-N``."""
    plain = [table.name if _PLAIN_NAME.fullmatch(table.name) else "" for table in tables]
    return [
        name if name and plain.count(name) == 1 and not re.fullmatch(r"table-[0-9]+", name) else f"table-{number:04d}"
        for number, name in enumerate(plain)
    ]


def _weights(saved: SavedRows, table: SavedTable) -> Parts:
    kind, _ = saved.types(table)
    parts = (saved.read(table, first, end)[0] for first, end in saved.chunks(table))
    return Parts((table.rows, *kind.shape[1:]), kind.type, parts)


def _write(path: Path, saved: SavedRows, tables: dict[str, SavedTable]) -> Path:
    """A safetensors file of some tables, put together part by part: none is held in memory."""
    with telling("creation", path):
        out = DISK.create(path)
    try:
        with telling("write", path):
            write_parts(out, {key: _weights(saved, table) for key, table in tables.items()})
    finally:
        out.close()
    return path


def _write_npy(path: Path, saved: SavedRows, table: SavedTable) -> Path:
    weights = _weights(saved, table)
    dtype = np.dtype(np.float32) if weights.type == "BF16" else weights.dtype
    with telling("write", path):
        target = np.lib.format.open_memmap(path, "w+", dtype, weights.shape)
        start = 0
        for part in weights.parts:
            target[start : start + len(part)] = _as_numbers(part, weights.type)
            start += len(part)
        target.flush()
    return path


def _as_numbers(rows: NDArray[Any], kind: str) -> NDArray[Any]:
    return (rows.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else rows
