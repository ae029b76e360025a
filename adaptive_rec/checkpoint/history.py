"""All generations of a run: which one is good, and which may go."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from adaptive_rec.checkpoint.files import Files
from adaptive_rec.checkpoint.generation import generations, names_in, remove_leftovers, verify
from adaptive_rec.checkpoint.synced_file import telling
from adaptive_rec.errors import CheckpointError

KEEP_AT_LEAST = 2


@dataclass
class Found:
    generation: Path | None
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(name, why) of those newer than it, or of all if there is none."""


def newest_valid(files: Files, folder: Path) -> Found:
    """The newest generation of a folder that is whole, by every checksum; none where the folder is absent."""
    found = Found(None)
    for name in reversed(generations(names_in(files, folder))):
        why = _damage(files, folder / name)
        if not why:
            found.generation = folder / name
            break
        found.skipped.append((name, why))
    return found


def set_aside(files: Files, folder: Path, names: list[str]) -> None:
    """Rename generations that a run did not go on from, so that none of them is taken for a newer state of it later."""
    taken = names_in(files, folder)
    for name in names:
        places = (f"{name}.set-aside{f'-{number}' if number else ''}" for number in range(len(taken) + 1))
        place = next(place for place in places if place not in taken)
        with telling("renaming", folder / name):
            files.rename(folder / name, folder / place)
        taken.append(place)
    if names:
        with telling("sync", folder):
            files.sync_folder(folder)


def prune(files: Files, folder: Path, keep: int) -> list[str]:
    """Remove what is older than the newest `keep` whole generations, and what drafts have left; the names of what went.

    Nothing goes before `keep` newer ones were read again, from the newest on, and found whole. Damaged ones among those stay
    where they are. Raises CheckpointError where the newest is one, so that it is known as soon as it was written.
    """
    if keep < KEEP_AT_LEAST:
        raise CheckpointError(f"generations to keep must be {KEEP_AT_LEAST} or more, got {keep}")
    names = names_in(files, folder)
    removed = remove_leftovers(files, folder, names)
    ordered = generations(names)
    looked_at = ordered if len(ordered) > keep else ordered[-1:]
    damage, whole = "", 0
    for name in reversed(looked_at):
        why = _damage(files, folder / name)
        whole += not why
        damage = why if name == ordered[-1] else damage
        if whole == keep:
            removed += _remove(files, folder, ordered[: ordered.index(name)])
            break
    if damage:
        raise CheckpointError(damage)
    return removed


def _damage(files: Files, generation: Path) -> str:
    """What is wrong with a generation, or nothing."""
    try:
        verify(files, generation)
    except CheckpointError as error:
        return str(error)
    return ""


def _remove(files: Files, folder: Path, names: list[str]) -> list[str]:
    for name in names:
        with telling("removal", folder / name):
            files.remove_folder(folder / name)
    return names
