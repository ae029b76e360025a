"""The checkpoints of a run as a list: by their manifests and the sizes of their files, of which no byte is read. Loads nothing
heavy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.generation import generations, names_in, read_manifest
from adaptive_rec.checkpoint.going_back import step_of
from adaptive_rec.checkpoint.history import check_sizes
from adaptive_rec.checkpoint.manifest import MANIFEST
from adaptive_rec.checkpoint.rows import is_shard
from adaptive_rec.errors import CheckpointError

LONGEST_SECONDS = 2.0
"""Time after which no further manifest is read: a stranger may have made large ones."""


def newest(folder: Path, most: int) -> tuple[list[dict[str, Any]], int]:
    """Return the newest checkpoints of a folder, newest first, as `entry_of` does, and how many there are. Raises
    CheckpointError where the folder cannot be read."""
    names = generations(names_in(DISK, folder))
    began, found = time.monotonic(), []
    for name in reversed(names[-most:]):
        if time.monotonic() - began > LONGEST_SECONDS:
            entry: dict[str, Any] = {"name": name, "error": "it was not looked at, as those before it took too long"}
        else:
            entry = entry_of(folder / name, with_rows=True)
        found.append({"step": step_of(name), **entry})
    return found, len(names)


def entry_of(path: Path, with_rows: bool = False) -> dict[str, Any]:
    """Return a checkpoint's manifest, with the error in it, in those that it builds on, or in the sizes of their files.
    `with_rows`: also of those of its rows that lie on a disk."""
    entry: dict[str, Any] = {"name": path.name, "error": None}
    try:
        manifest = read_manifest(DISK, path)
        entry |= manifest.model_dump(include={"format", "step", "description"})
        entry |= {"kind": manifest.kind, "builds_on": manifest.since.name if manifest.since else None}
        rows_bytes = sum(file.size_bytes for file in manifest.files if is_shard(file.name))
        entry |= {"files": len(manifest.files), "rows_bytes": rows_bytes, "size_bytes": manifest.size_bytes}
        entry["written"] = written(path)
        check_sizes(DISK, path, with_rows)
    except (CheckpointError, OSError) as error:  # OSError: the run just removed it
        entry["error"] = str(error).replace(f"{path.parent}/", "")
    return entry


def written(path: Path) -> float:
    """Return when a checkpoint was written, in seconds since 1970."""
    return (path / MANIFEST).stat().st_mtime
