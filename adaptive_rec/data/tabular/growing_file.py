"""A text file that may grow while it is read, and must not change otherwise."""

from __future__ import annotations

from pathlib import Path

from adaptive_rec.data.file_kind import is_plain_text
from adaptive_rec.data.packed import ENDINGS as COMPRESSED
from adaptive_rec.data.tabular.files import TEXTS, ending
from adaptive_rec.errors import DataError

PROBE_BYTES = 1 << 16
TAIL_BYTES = 64
"""Bytes before a place by which a file is known again."""


def may_grow(path: Path) -> bool:
    """Whether a file is read as it grows, as plain text is; others must be complete. One that is gone is judged by its name."""
    by_name = ending(path) in TEXTS and path.suffix not in COMPRESSED
    return is_plain_text(path) if path.exists() else by_name


def has_line(path: Path) -> bool:
    """Whether the line that names the columns is there. Raises DataError where the file is gone."""
    return b"\n" in _part(path, 0, PROBE_BYTES)


def bytes_before(path: Path, place: int) -> str:
    """Return the last bytes before a place, in hexadecimal digits. Raises DataError where the file is gone."""
    first = max(place - TAIL_BYTES, 0)
    return _part(path, first, place - first).hex()


def _part(path: Path, first: int, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(first)
            return file.read(size)
    except OSError as error:
        raise gone(path, error) from None


def gone(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} must stay where it is while it is followed: {error.strerror}")
