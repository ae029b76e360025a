"""The checkpoints of a run as a list: by their manifests and the sizes of their files, of which no byte is read. Loads nothing
heavy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

from adaptive_rec.checkpoint.files import DISK, Disk
from adaptive_rec.checkpoint.generation import generations, names_in, step_of
from adaptive_rec.checkpoint.history import Verified
from adaptive_rec.checkpoint.manifest import MANIFEST
from adaptive_rec.checkpoint.rows import is_shard
from adaptive_rec.errors import CheckpointError

LONGEST_SECONDS = 2.0
"""Time after which no further file is looked at: a stranger may have made large ones, and many of them."""


class _OutOfTimeError(Exception):
    """The list has taken its time. This says nothing of a checkpoint."""


class _TimedFiles(Disk):
    """The file system until a time is over."""

    def __init__(self, seconds: float) -> None:
        self._until = monotonic() + seconds

    def names(self, folder: Path) -> list[str]:
        self._check()
        return super().names(folder)

    def size_bytes(self, path: Path) -> int:
        self._check()
        return super().size_bytes(path)

    def _check(self) -> None:
        if monotonic() > self._until:
            raise _OutOfTimeError


def newest_entries(folder: Path, most: int) -> tuple[list[dict[str, Any]], int]:
    """Return the newest checkpoints of a folder with their steps, newest first, as `entries` does, and how many there are. Raises
    CheckpointError where the folder cannot be read."""
    names = generations(names_in(DISK, folder))
    return [{"step": step_of(entry["name"]), **entry} for entry in entries(folder, names[: -most - 1 : -1])], len(names)


def newest_by_sizes(folder: Path) -> str | None:
    """Return the name of the newest checkpoint of a folder that is whole by manifests and sizes, None where there is none at all.
    Raises CheckpointError where something is wrong with each."""
    verified, names = Verified(DISK, folder, by_sizes=True), generations(names_in(DISK, folder))
    if not names:
        return None
    found = next((name for name in reversed(names) if not verified.damage(name)), None)
    if found is None:
        raise CheckpointError(
            f"a checkpoint in {folder} must be whole, none is: {verified.damage(names[-1])}", faq="damaged-checkpoint"
        )
    return found


def entries(folder: Path, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the manifests of checkpoints, each with the `error` in it, in those that it builds on, or in the sizes of their files
    and of its rows on a disk. One that there is no time left for has the reason in `not_looked_at`: that is no error."""
    verified = Verified(_TimedFiles(LONGEST_SECONDS), folder, by_sizes=True)
    for name in names:
        entry: dict[str, Any] = {"name": name, "error": None, "not_looked_at": None}
        try:
            manifest = verified.manifest(name)
            entry |= manifest.model_dump(include={"format", "step", "description"})
            entry |= {"kind": manifest.kind, "builds_on": manifest.since.name if manifest.since else None}
            rows_bytes = sum(file.size_bytes for file in manifest.files if is_shard(file.name))
            entry |= {"files": len(manifest.files), "rows_bytes": rows_bytes, "size_bytes": manifest.size_bytes}
            entry["written"] = (folder / name / MANIFEST).stat().st_mtime
            entry["error"] = verified.damage(name).replace(f"{folder}/", "") or None
        except _OutOfTimeError:
            entry["not_looked_at"] = f"the list took longer than {LONGEST_SECONDS:g} s"
        except (CheckpointError, OSError) as error:  # OSError: the run just removed it
            entry["error"] = str(error).replace(f"{folder}/", "")
        yield entry
