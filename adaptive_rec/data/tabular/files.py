"""The files of a user's own data: one, or those of a folder and its subfolders in natural order.

A folder is read as Spark and DuckDB read it: names that begin with a dot, or with an underscore, are left out, and a subfolder
called ``day=2024-01-01`` gives its files a column `day`. What else is no file of rows is left out too, and named.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from adaptive_rec.data.file_kind import BINARY, JSON_LINES, NAMES, TEXT, is_served, kind_of
from adaptive_rec.data.lines import chunks
from adaptive_rec.data.packed import ENDINGS as COMPRESSED
from adaptive_rec.errors import DataError
from adaptive_rec.units import counted

TEXTS = (".csv", ".tsv")
ENDINGS = (*TEXTS, ".parquet", ".pq", ".jsonl", ".ndjson", ".feather", ".arrow", ".ipc")
PART = re.compile(r"(part-|\d+_\d+).*")
"""Names without an ending that Spark, Hadoop and Hive give to files of rows."""
PARTITION = re.compile(r"([^=/]+)=([^/]*)")
NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
MARKS = re.compile(r"_SUCCESS|_metadata|_common_metadata|_(started|committed)_.*|\..*\.crc|\.DS_Store")
"""Hidden files that never have rows: nothing is said of them."""
SHOWN = 4
SMALL_BYTES = 256
"""Above the size of a packed file of nothing."""
TABLES = (
    ("_delta_log", "a Delta table", "delta_scan('{path}')"),
    (".hoodie", "a Hudi table", ""),
    ("metadata", "an Iceberg table", "iceberg_scan('{path}')"),
)
"""Folders within a table of a table format: its old rows are still there, beside the new ones."""


@dataclass(frozen=True)
class DataFiles:
    """The files of --data."""

    files: list[Path]
    left_out: str = ""
    """What of a folder is not read, in words."""
    partitions: tuple[str, ...] = ()
    """The columns that names of subfolders give."""


def files_of(data: Path) -> list[Path]:
    """Return the files of --data in natural order: the file itself, or all files of rows in a folder and its subfolders."""
    return find_files(data).files


def find_files(data: Path) -> DataFiles:
    """Return the files of --data in natural order, and what is left out. Raises DataError where there is none, where they are of
    both kinds, or where a folder is a table of a table format."""
    if not os.path.exists(data):
        raise DataError(f"--data must be a file or a folder that exists, got {data}", faq="no-such-data")
    if not data.is_dir():
        return DataFiles([data])
    found, others, hidden = _walk(data)
    files = [path for path in found if _has_bytes(path)] or found
    empty = len(found) - len(files)
    if not files:
        for path in others:
            kind_of(path)  # names a format that is not read
        there = f"; it has {', '.join(path.name for path in others[:SHOWN])}" if others else ""
        raise DataError(
            f"a folder of --data must hold files that end in {', '.join(ENDINGS)} (also packed: .gz, .zst, .bz2, .xz, .zip), "
            f"{data} has none{there}"
        )
    check_one_kind(data, files)
    files.sort(key=lambda path: natural_in(path, data))
    left_out = [_listed(data, hidden, "hidden file"), _listed(data, others, "other file")]
    left_out.append(f"{counted(empty, 'file')} without a byte" if empty else "")
    return DataFiles(files, ", ".join(filter(None, left_out)), _partitions(data, files))


def followed(data: Path) -> list[Path]:
    """Return the files of --data that is followed, at least one: those of a folder by their names, without its subfolders. Raises
    DataError where there is none, or where a subfolder has some."""
    if not data.is_dir():
        return files_of(data)
    within = next((path for path in data.glob("*/*") if is_by_name(path) and not is_hidden(path.parent.name)), None)
    if within is not None:
        raise DataError(f"a folder that is followed must have all files in itself, {data} has {within.relative_to(data)}")
    found = found_in(data)
    if not found:
        raise DataError(f"a folder of --data must hold files that end in {', '.join(ENDINGS)}, {data} has none")
    return found


def found_in(folder: Path) -> list[Path]:
    """Return the files of rows in a folder that is followed, by their names, in natural order; there may be none. Raises
    DataError where it is gone or has both kinds."""
    try:
        found = [path for path in folder.iterdir() if is_by_name(path) and not is_hidden(path.name) and path.is_file()]
    except OSError as error:
        raise DataError(f"{folder} must be a folder that can be read: {error.strerror}") from None
    if len({ending(path) in TEXTS for path in found}) > 1:
        raise _of_both_kinds(folder)
    return sorted(found, key=natural)


def check_one_kind(folder: Path, files: list[Path]) -> None:
    """Raise DataError where some files of a folder hold typed columns and others texts."""
    if len({kind_of(path) in (*BINARY, JSON_LINES) for path in files}) > 1:
        raise _of_both_kinds(folder)


def _of_both_kinds(folder: Path) -> DataError:
    return DataError(
        f"a folder of --data must hold Parquet files (or Arrow or JSON Lines), or CSV and TSV files, {folder} has both"
    )


def _walk(data: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """Return the files of rows in a folder and its subfolders, other files, and those with hidden names. Raises DataError."""
    found: list[Path] = []
    json_lines: list[Path] = []
    others: list[Path] = []
    hidden: list[Path] = []

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename} must be a folder that can be read: {error.strerror}") from None

    seen: set[str] = set()
    for place, folders, names in os.walk(data, onerror=fail, followlinks=True):
        folder = Path(place)
        seen.add(os.path.realpath(folder))
        check_no_table(folder, folders)
        hidden += [folder / name for name in folders if is_hidden(name)]
        folders[:] = sorted(name for name in folders if not is_hidden(name) and os.path.realpath(folder / name) not in seen)
        for name in names:
            path = folder / name
            if is_hidden(name):
                hidden += [] if MARKS.fullmatch(name) else [path]
            elif not path.is_file():
                others.append(path)
            else:
                kind = TEXT if is_by_name(path) else _kind_by_content(path)
                (json_lines if kind == JSON_LINES else found if kind else others).append(path)
    if found:  # a description in JSON beside them is none of the parts
        return found, [*others, *json_lines], hidden
    return json_lines, others, hidden


def check_no_table(folder: Path, folders: list[str]) -> None:
    """Raise DataError where a folder with these subfolders is a table of a table format."""
    for name, what, scan in TABLES:
        if name not in folders or (name == "metadata" and not any((folder / name).glob("*.metadata.json"))):
            continue
        rows = f"duckdb -c \"COPY (FROM {scan.format(path=folder)}) TO 'rows.parquet'\"" if scan else ""
        way = f"write its rows as they are now: {rows}" if rows else "write its rows as they are now to Parquet with Spark"
        raise DataError(
            f"--data must be files of rows, {folder} is {what}, whose files hold rows that were overwritten or deleted too; {way}"
        )


def is_hidden(name: str) -> bool:
    """Whether a name is left out, as Spark has it."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def is_by_name(path: Path) -> bool:
    """Whether the name of a file says that it holds rows."""
    return ending(path) in ENDINGS


def _has_bytes(path: Path) -> bool:
    """Whether a file holds more than white space, once it is unpacked; one that is damaged is told when it is read."""
    size = path.stat().st_size
    try:
        return size > SMALL_BYTES or (size > 0 and any(each.strip(b" \t\r\n\xef\xbb\xbf") for each in chunks(path)))
    except DataError:
        return True


def _kind_by_content(path: Path) -> str:
    """Return the format of a file of another name that holds rows: Parquet, Arrow or JSON Lines, or text in a part of Spark's or
    Hive's; empty for what is left out."""
    if not path.stat().st_size or not is_served(path):
        return ""
    kind = kind_of(path)
    return kind if kind in NAMES or ("." not in path.name and PART.fullmatch(path.name)) else ""


def _listed(data: Path, paths: list[Path], what: str) -> str:
    """Name some of the files that are left out."""
    if not paths:
        return ""
    names = ", ".join(sorted(str(path.relative_to(data)) for path in paths)[:SHOWN])
    return f"{counted(len(paths), what)} ({names}{', ...' if len(paths) > SHOWN else ''})"


def _partitions(data: Path, files: list[Path]) -> tuple[str, ...]:
    """Return the columns that the subfolders of files name."""
    names: dict[str, None] = {}
    for path in files:
        names.update(dict.fromkeys(partition_values(path.relative_to(data))))
    return tuple(names)


def partition_values(path: Path) -> dict[str, str | None]:
    """Return the values that the folders of a path name; None is a missing one."""
    found = [PARTITION.fullmatch(part) for part in path.parts[:-1]]
    parts = [(unquote(each[1]), unquote(each[2])) for each in found if each]
    return {name: None if value in (NO_PARTITION, "") else value for name, value in parts}


def ending(path: Path) -> str:
    """Return the ending of a file's name without that of a compression."""
    return (path.with_suffix("") if path.suffix in COMPRESSED else path).suffix


def natural(path: Path) -> list[Any]:
    """Return a key by which names are sorted with their numbers as numbers; 01 comes before 1."""
    return _natural(path.name)


def natural_in(path: Path, folder: Path) -> list[Any]:
    """Return a key by which files of a folder and its subfolders are sorted, part by part of their path."""
    return [_natural(part) for part in path.relative_to(folder).parts]


def _natural(name: str) -> list[Any]:
    parts = [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name) if part]
    return [parts, name]
