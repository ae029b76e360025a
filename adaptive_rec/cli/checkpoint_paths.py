"""The checkpoints that a path names: one, or those of a run, which may remove some of them at the same time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from adaptive_rec.errors import CheckpointError, UsageError

T = TypeVar("T")


def checkpoints_at(path: Path) -> list[Path]:
    """Return the checkpoint itself, or those of a run, oldest first. Raises UsageError where there is none."""
    from adaptive_rec.checkpoint.files import DISK
    from adaptive_rec.checkpoint.generation import generations, names_in
    from adaptive_rec.checkpoint.manifest import MANIFEST

    if (path / MANIFEST).exists() or generations([path.name]):
        return [path if generations([path.name]) and not path.is_symlink() else path.resolve()]
    folder = path / "checkpoints"
    found = [folder / name for name in generations(names_in(DISK, folder))]
    if not found:
        raise UsageError(f"RUN must be a run directory with a checkpoint, or a checkpoint, {path} is neither")
    return found


def is_of_run(found: list[Path], path: Path) -> bool:
    """Whether these are all checkpoints of a run, not a single named one."""
    return found[0].parent == path / "checkpoints"


def with_found(work: Callable[..., T], *paths: Path) -> tuple[list[Path], T]:
    """Return the checkpoints and the result of `work` on them. Tries again where the run removes one of them meanwhile."""
    found = [one_at(path) for path in paths]
    try:
        return found, work(*found)
    except CheckpointError:
        if all(path.exists() for path in found):
            raise
    found = [one_at(path) for path in paths]
    return found, work(*found)


def one_at(path: Path) -> Path:
    """Return the checkpoint itself, or the newest whole one of a run."""
    from adaptive_rec.checkpoint.files import DISK
    from adaptive_rec.checkpoint.history import newest_valid

    paths = checkpoints_at(path)
    if not is_of_run(paths, path):
        return paths[0]
    found = newest_valid(DISK, path / "checkpoints")
    for name, why in found.skipped:
        print(f"note: {name} is skipped: {why}", file=sys.stderr)
    if found.generation is None:
        raise CheckpointError(f"a checkpoint of {path} must be whole, all {len(found.skipped)} are damaged")
    return found.generation
