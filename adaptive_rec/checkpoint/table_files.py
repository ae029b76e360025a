"""Files of tables for other programs, written part by part: no table is held in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.checkpoint.files import DISK, Output, os_errors
from adaptive_rec.checkpoint.safetensors_file import DTYPES, ArrayInParts, as_numbers, write_parts
from adaptive_rec.checkpoint.saved_state import DENSE
from adaptive_rec.data.prepare.arrays import npy_header
from adaptive_rec.errors import UsageError
from adaptive_rec.units import parse_size

KEYS = "keys.safetensors"
"""File of the raw keys of all tables."""

TABLES = "tables.json"
"""What the other files have: the tables, and the rows of each file."""

FORMAT = 1

_TAKEN = {Path(KEYS).stem, Path(DENSE).stem}
"""Names of files that are no table's."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
PART = re.compile("-[0-9]+-of-[0-9]+$")
"""End of the name of a file that has a part of a table."""


@dataclass(frozen=True)
class TableKeysOut:
    """The raw keys of a table that is written."""

    key_K: NDArray[np.int64]
    """Keys that have a row of their own."""
    row_K: NDArray[np.int64]
    shared_rows: int
    salt: int
    """What decides which of the shared rows a key without a row of its own has."""


@dataclass(frozen=True)
class TableOut:
    """A table that is written."""

    name: str
    rows: int
    dim: int
    type: str
    """Name of the rows' type in the format of safetensors."""
    between: Callable[[int, int], Iterable[NDArray[Any]]]
    """Returns the rows from a first one to an end, in parts that are read when they are requested."""
    keys: TableKeysOut | None = None

    @property
    def row_bytes(self) -> int:
        return self.dim * DTYPES[self.type].itemsize

    def array(self, first: int = 0, end: int | None = None) -> ArrayInParts:
        """Return the rows from a first one to an end, by default all."""
        end = self.rows if end is None else end
        return ArrayInParts((end - first, self.dim), self.type, self.between(first, end))


def bytes_of_part(form: str, part_size: int | str | None, option: str) -> int:
    """Return the size of the parts that tables are written in; 0: each in one file. Raises UsageError, which names the option."""
    if part_size is None:
        return 0
    try:
        part_bytes = parse_size(part_size) if isinstance(part_size, str) else part_size
    except ValueError:
        part_bytes = 0
    if part_bytes < 1:
        raise UsageError(f'{option} must be a number of bytes, 1 or more, or a text such as "2GiB", got {part_size!r}')
    if form != "safetensors":
        raise UsageError(f"{option} goes with the form safetensors, whose tables may have several files, got {form}")
    return part_bytes


def check_parts(tables: Sequence[TableOut], part_bytes: int) -> None:
    """Raise UsageError where a part has no room for a row. `part_bytes`: 0 where tables have one file each."""
    widest = max(tables, key=lambda table: table.row_bytes)
    if part_bytes and part_bytes < widest.row_bytes:
        raise UsageError(f"parts must have room for a row of {widest.name}, {widest.row_bytes} bytes, got {part_bytes}")


def write_table_files(
    tables: Sequence[TableOut], draft: Path, out: Path, form: str, part_bytes: int = 0
) -> list[Path]:
    """Write tables, their raw keys where they have some, and what the files have to the folder `draft`, which will be `out`.
    Returns the files by their later names. Raises UsageError where a part has no room for a row."""
    check_parts(tables, part_bytes)
    with os_errors("creation", out):
        DISK.make_folder(draft)
    names = file_names([table.name for table in tables])
    files, entries = dict[str, dict[str, ArrayInParts]](), []
    for name, table in zip(names, tables, strict=True):
        array, own = files_of_table(name, table, form, part_bytes)
        for file, first, end in own:
            files.setdefault(file, {})[array] = table.array(first, end)
        entries.append(_entry(table, form, array, own))
    keys = _keys(names, tables)
    for file, arrays in {**files, **({KEYS: keys} if keys else {})}.items():
        write_file(draft / file, out / file, arrays)
    write_json(draft / TABLES, out / TABLES, {"format": FORMAT, "tables": entries, "keys": KEYS if keys else None})
    return [*(out / file for file in files), *([out / KEYS] if keys else []), out / TABLES]


def file_names(names: Sequence[str]) -> list[str]:
    """Return names of files for tables; ``table-N`` for a name that cannot be a file name, is that of another file or looks like
    another table's number or part."""
    fit = [_PLAIN_NAME.fullmatch(name) is not None and name not in _TAKEN and not PART.search(name) for name in names]
    plain = [name if fits else "" for name, fits in zip(names, fit, strict=True)]
    return [
        name if name and plain.count(name) == 1 and not re.fullmatch(r"table-[0-9]+", name) else f"table-{number:04d}"
        for number, name in enumerate(plain)
    ]


def files_of_table(name: str, table: TableOut, form: str, part_bytes: int) -> tuple[str, list[tuple[str, int, int]]]:
    """Return the name of a table's array in its files, and the files, each with the first of the table's rows and their end."""
    if form == "torchrec":
        return f"embedding_bags.{name}.weight", [("state_dict.safetensors", 0, table.rows)]
    step = part_bytes // table.row_bytes if part_bytes else table.rows
    firsts = range(0, table.rows, step)
    if len(firsts) == 1:
        return "weight", [(f"{name}.{form}", 0, table.rows)]
    return "weight", [
        (f"{name}-{number:05d}-of-{len(firsts):05d}.{form}", first, min(first + step, table.rows))
        for number, first in enumerate(firsts, start=1)
    ]


def _entry(table: TableOut, form: str, array: str, files: list[tuple[str, int, int]]) -> dict[str, Any]:
    keys = table.keys
    return {
        "name": table.name,
        "rows": table.rows,
        "dim": table.dim,
        "type": "F32" if form == "npy" and table.type == "BF16" else table.type,
        "array": array,
        "files": [{"file": file, "first_row": first, "rows": end - first} for file, first, end in files],
        "shared_rows": 0 if keys is None else keys.shared_rows,
        "salt": None if keys is None else f"{keys.salt:016x}",
    }


def _keys(names: list[str], tables: Sequence[TableOut]) -> dict[str, ArrayInParts]:
    """Return raw keys and their rows by name; nothing where ids are rows."""
    found = dict[str, ArrayInParts]()
    for name, table in zip(names, tables, strict=True):
        if table.keys is not None:
            for what, values in (("key", table.keys.key_K), ("row", table.keys.row_K)):
                found[f"{name}.{what}"] = ArrayInParts(values.shape, "I64", [values])
    return found


def write_file(draft: Path, path: Path, arrays: Mapping[str, ArrayInParts]) -> None:
    """Write the file that will be `path`, part by part: no table is held in memory, and no file is mapped, as a full disk kills
    a process that writes to a mapped file."""
    _write(draft, path, lambda out: (_write_npy if path.suffix == ".npy" else write_parts)(out, arrays))


def write_json(draft: Path, path: Path, value: dict[str, Any]) -> None:
    """Write the file that will be `path`."""
    _write(draft, path, lambda out: out.write(f"{json.dumps(value, indent=1)}\n".encode()))


def _write(draft: Path, path: Path, write: Callable[[Output], object]) -> None:
    with os_errors("creation", path):
        out = DISK.create(draft)
    try:
        with os_errors("write", path):
            write(out)
            out.sync()
    finally:
        out.close()


def _write_npy(out: Output, arrays: Mapping[str, ArrayInParts]) -> None:
    (weights,) = arrays.values()
    out.write(npy_header(np.dtype(np.float32) if weights.type == "BF16" else weights.dtype, weights.shape))
    for part in weights.parts:
        out.write(np.ascontiguousarray(as_numbers(part, weights.type)).data)
