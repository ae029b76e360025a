"""The tables of a generation in files for other programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.generation import read_json_file, verify
from adaptive_rec.checkpoint.safetensors_file import BLOCK_BYTES, DTYPES, ArraysFile, write_arrays
from adaptive_rec.checkpoint.synced_file import telling
from adaptive_rec.errors import CheckpointError, UsageError

STATE = "state.json"

_TABLE_FILE = re.compile(r"table-([0-9]{4,9})\.safetensors")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def export(generation: Path, out: Path, form: str) -> list[Path]:
    """Write the weights of every table to a new folder, and return the files.

    `safetensors`: ``NAME.safetensors`` with `weight`. `npy`: ``NAME.npy``; bfloat16, which NumPy has not, as float32. `torchrec`:
    ``state_dict.safetensors`` with all tables under TorchRec's names, for `load_state_dict` of an EmbeddingBagCollection.
    """
    files = [entry.name for entry in verify(DISK, generation).files]
    names = _own_names(generation) if STATE in files else {}
    numbers = {int(numbered[1]): file for file in files if (numbered := _TABLE_FILE.fullmatch(file))}
    tables = {names.get(number, f"table-{number:04d}"): generation / file for number, file in numbers.items()}
    if not tables:
        raise CheckpointError(f"{generation} must hold tables, it has none")
    try:
        DISK.make_folder(out)
    except OSError as error:
        raise UsageError(f"--out {out} must be a folder that can be made: {error.strerror}") from None
    if form == "torchrec":
        keys = {f"embedding_bags.{name}.weight": path for name, path in tables.items()}
        return [_write(out / "state_dict.safetensors", keys)]
    if form == "safetensors":
        return [_write(out / f"{name}.safetensors", {"weight": path}) for name, path in tables.items()]
    return [_write_npy(out / f"{name}.npy", path) for name, path in tables.items()]


def _own_names(generation: Path) -> dict[int, str]:
    """Names of tables by their numbers, as the run knows them; those that cannot be a file's, or could be taken for another
    table's number, are left out."""
    found = read_json_file(DISK, generation / STATE)
    for key in ("run", "tables"):
        found = found.get(key) if isinstance(found, dict) else None
    tables = found if isinstance(found, list) else []
    names = [table.get("name") if isinstance(table, dict) else None for table in tables]
    plain = [name if isinstance(name, str) and _PLAIN_NAME.fullmatch(name) else "" for name in names]
    return {
        number: name
        for number, name in enumerate(plain)
        if name and plain.count(name) == 1 and not re.fullmatch(r"table-[0-9]+", name)
    }


def _write(path: Path, weights: Mapping[str, Path]) -> Path:
    """A safetensors file of the weights in other ones, which are mapped: no table is held in memory."""
    arrays, types = {}, {}
    for key, source in weights.items():
        arrays[key], types[key] = _mapped(source)
    with telling("creation", path):
        out = DISK.create(path)
    try:
        with telling("write", path):
            write_arrays(out, arrays, types)
    finally:
        out.close()
    return path


def _write_npy(path: Path, source: Path) -> Path:
    weight, kind = _mapped(source)
    dtype = np.dtype(np.float32) if kind == "BF16" else weight.dtype
    with telling("write", path):
        target = np.lib.format.open_memmap(path, "w+", dtype, weight.shape)
        rows = max(1, BLOCK_BYTES // max(1, weight.nbytes // max(1, len(weight))))
        for start in range(0, len(weight), rows):
            part = weight[start : start + rows]
            target[start : start + rows] = (part.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else part
        target.flush()
    return path


def _mapped(path: Path) -> tuple[NDArray[Any], str]:
    stored = ArraysFile(DISK, path).arrays.get("weight")
    if stored is None or len(stored.shape) != 2:
        raise CheckpointError(f"{path} must hold the weights of a table")
    if not stored.size_bytes:
        return np.zeros(stored.shape, DTYPES[stored.type]), stored.type
    with telling("reading", path):
        return np.memmap(path, DTYPES[stored.type], "r", stored.start_byte, stored.shape), stored.type
