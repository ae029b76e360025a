"""The checkpoints that a path names: one, or those of a run, which may remove some of them at the same time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from adaptive_rec.cli.output import say
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
    if path.is_file():
        raise UsageError(f"RUN must be a run directory with a checkpoint, or a checkpoint, {path} is a file")
    found = [folder / name for name in generations(names_in(DISK, folder))]
    if not found:
        raise UsageError(f"RUN must be a run directory with a checkpoint, or a checkpoint, {path} is neither")
    return found


def is_of_run(found: list[Path], path: Path) -> bool:
    """Whether these are all checkpoints of a run, not a single named one."""
    return found[0].parent == path / "checkpoints"


def with_found(work: Callable[..., T], *paths: Path) -> tuple[list[Path], T]:
    """Return checkpoints, and the result of `work` on them. A run under way does not remove them meanwhile; on a file system
    without locks it may, and what it has then is taken."""
    for last in (False, True):
        with ExitStack() as holding:
            found = [holding.enter_context(one_at(path)) for path in paths]
            try:
                return found, work(*found)
            except CheckpointError:
                if last or all(path.exists() for path in found):
                    raise
    raise AssertionError("the second try returns or raises")


@contextmanager
def one_at(path: Path) -> Iterator[Path]:
    """Hold a checkpoint itself, or the newest of a run that is whole."""
    from adaptive_rec.checkpoint.files import DISK
    from adaptive_rec.checkpoint.history import hold_generation, newest_held

    paths = checkpoints_at(path)
    if not is_of_run(paths, path):
        with hold_generation(DISK, paths[0]):
            yield paths[0]
        return
    with newest_held(DISK, path / "checkpoints") as found:
        for name, why in found.skipped:
            say(f"note: {name} is skipped: {why}", sys.stderr)
        if found.generation is None:
            raise CheckpointError(f"a checkpoint of {path} must be whole, all {len(found.skipped)} are damaged")
        yield found.generation
