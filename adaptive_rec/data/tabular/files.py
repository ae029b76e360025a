"""The files of a user's own data: one, or those of a folder in natural order."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from adaptive_rec.errors import DataError

ENDINGS = (".csv", ".tsv", ".parquet")
COMPRESSED = (".gz", ".zst")


def files_of(data: Path) -> list[Path]:
    """Return the files of --data in natural order: the file itself, or all CSV, TSV and Parquet files of a folder."""
    if not os.path.exists(data):
        raise DataError(f"--data must be a file or a folder that exists, got {data}")
    if not data.is_dir():
        return [data]
    found = found_in(data)
    if not found:
        raise DataError(
            f"a folder of --data must hold files that end in {', '.join(ENDINGS)} (also .gz, .zst), {data} has none"
        )
    return found


def found_in(folder: Path) -> list[Path]:
    """Return all CSV, TSV and Parquet files of a folder in natural order, which may be none. Raises DataError where it is gone or
    has both kinds."""
    try:
        found = [path for path in folder.iterdir() if path.is_file() and ending(path) in ENDINGS]
    except OSError as error:
        raise DataError(f"{folder} must be a folder that can be read: {error.strerror}") from None
    if len({ending(path) == ".parquet" for path in found}) > 1:
        raise DataError(f"a folder of --data must hold Parquet files, or CSV and TSV files, {folder} has both")
    return sorted(found, key=natural)


def ending(path: Path) -> str:
    """Return the ending of a file's name without that of a compression."""
    return (path.with_suffix("") if path.suffix in COMPRESSED else path).suffix


def natural(path: Path) -> list[Any]:
    """Return a key by which names are sorted with their numbers as numbers; 01 comes before 1."""
    parts = [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", path.name) if part]
    return [parts, path.name]
