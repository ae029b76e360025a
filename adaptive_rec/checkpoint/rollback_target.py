"""Which of its checkpoints a run goes back to, and what becomes of the newer ones."""

from __future__ import annotations

from pathlib import Path

from adaptive_rec.checkpoint.files import DISK, Files, os_errors
from adaptive_rec.checkpoint.generation import (
    generations,
    names_in,
    newest_of_step,
    remove_generations,
    set_aside,
    step_of,
)
from adaptive_rec.checkpoint.history import verify_all
from adaptive_rec.errors import CheckpointError, ConfigError, ConflictError

SHOWN_NAMES = 8


def newest_up_to(folder: Path, step: int | None = None, files: Files = DISK) -> str | None:
    """Return the name of the newest checkpoint at or before a step, by its name alone; of all where no step is given. None where
    there is none."""
    names = generations(names_in(files, folder))
    return next((name for name in reversed(names) if step is None or step_of(name) <= step), None)


def whole_of_step(folder: Path, step: int, files: Files = DISK) -> str | None:
    """Return the name of the newest checkpoint of a step, after every byte of it was read; None where there is no whole one."""
    names = newest_of_step(names_in(files, folder), step)
    try:
        for name in names:
            verify_all(files, folder / name)
    except CheckpointError:
        return None
    return names[0] if names else None


def newer_than(folder: Path, name: str, files: Files = DISK) -> list[str]:
    """Return the names of the checkpoints that came after one, oldest first."""
    names = generations(names_in(files, folder))
    return names[names.index(name) + 1 :]


def checked_checkpoint(folder: Path, name: str | None, step: int | None, files: Files = DISK) -> str:
    """Return the name of the checkpoint to go back to, after every byte of it was read.

    Raises ConfigError for a name or a step that has none, ConflictError where the run has none, it is damaged, or a newer one is
    being read.
    """
    names = generations(names_in(files, folder))
    if not names:
        raise ConflictError("a run must have a checkpoint to go back to, this one has written none yet")
    if name is not None and name not in names:
        shown = ", ".join(names[-SHOWN_NAMES:])
        raise ConfigError(f"checkpoint must be one of this run's ({shown}), got {name[:50]!r}")
    found = name or newest_up_to(folder, step, files)
    if found is None:
        raise ConfigError(f"to_step must be {step_of(names[0])} or more, the step of the oldest checkpoint, got {step}")
    try:
        verify_all(files, folder / found)
        read = [each for each in names[names.index(found) + 1 :] if not _is_unread(files, folder / each)]
    except CheckpointError as error:
        raise ConflictError(f"the run cannot go back to checkpoint {found}: {error}") from None
    if read:
        rule = f"checkpoints newer than {found} must not be in use, as a rollback removes them"
        raise ConflictError(f"{rule}; another process reads {', '.join(read)}, try again when it has ended")
    return found


def remove_newer(folder: Path, name: str, files: Files = DISK) -> list[str]:
    """Remove the checkpoints that came after one, so that no resume takes them for a newer state. Returns their names. One that
    somebody has begun to read meanwhile is set aside instead."""
    newer = newer_than(folder, name, files)
    removed = remove_generations(files, folder, newer)
    set_aside(files, folder, [each for each in newer if each not in removed])
    return newer


def _is_unread(files: Files, generation: Path) -> bool:
    with os_errors("locking", generation), files.unread(generation) as unread:
        return unread
