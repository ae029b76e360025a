"""Files that a loss of power leaves: what a name stands for is on the disk before the name is, and then the name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def sync_files(paths: Iterable[Path]) -> None:
    """Return when what was written to these files is on the disk, and their names are."""
    written = list(paths)
    for path in written:
        _sync(path, os.O_RDONLY)
    for folder in {path.parent for path in written}:
        sync_folder(folder)


def sync_folder(path: Path) -> None:
    """Return when the names in a folder are on the disk, such as they are now."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all, and to stay."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    _sync(draft, os.O_RDONLY)
    draft.replace(path)
    sync_folder(path.parent)


def _sync(path: Path, flags: int) -> None:
    file = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
