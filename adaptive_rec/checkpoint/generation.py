"""A generation: a folder that holds one checkpoint, is written once and never changed.

``step-000000123/`` holds safetensors and JSON files, and ``MANIFEST.json`` with the size of each file and a crc32 of each chunk.
Until all files are on the disk the folder is called ``.step-000000123.draft`` (`draft.py`). A second generation of the same step
is ``step-000000123.1``. A generation that is removed is called ``.step-000000123.removed`` before its first file goes, so a
folder with a generation's name always holds a whole one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from zlib import crc32

from adaptive_rec.checkpoint.files import Files, os_errors
from adaptive_rec.checkpoint.limited_json import parse_limited_json
from adaptive_rec.checkpoint.manifest import (
    CHUNK_BYTES,
    FORMAT,
    GENERATION_NAME,
    MANIFEST,
    FileEntry,
    Manifest,
    unsealed,
)
from adaptive_rec.errors import CheckpointError

OLD_DESCRIPTION = "checkpoint.json"
"""The file that format 1 had instead of a manifest."""

_GENERATION = re.compile(GENERATION_NAME)
_LEFTOVER = re.compile(r"\.step-[0-9.]+\.(draft|removed)")


def read_manifest(files: Files, generation: Path) -> Manifest:
    """Read the manifest of a generation. Raises CheckpointError where it cannot be trusted."""
    path, names = generation / MANIFEST, names_in(files, generation)
    if OLD_DESCRIPTION in names and MANIFEST not in names:
        raise CheckpointError(f"{generation} must be a checkpoint of format {FORMAT}, got one of format 1")
    with os_errors("reading", path):
        data = files.read(path)
    manifest = unsealed(data, path)
    named = _GENERATION.fullmatch(generation.name)
    if named is not None and int(named[1]) != manifest.step:
        raise CheckpointError(f"{path} must be of step {int(named[1])}, as its folder, got {manifest.step}")
    return manifest


def verify_generation(files: Files, generation: Path) -> Manifest:
    """Read every byte of a generation. Raises CheckpointError with the file and place of anything that has changed."""
    manifest = read_manifest(files, generation)
    verify_names(files, generation, manifest)
    for entry in manifest.files:
        verify_file(files, generation / entry.name, entry)
    return manifest


def verify_sizes(files: Files, generation: Path, manifest: Manifest) -> None:
    """Look at the files of a generation without reading them. Raises CheckpointError where one is missing, or of another size."""
    verify_names(files, generation, manifest)
    for entry in manifest.files:
        path = generation / entry.name
        with os_errors("reading", path):
            size_bytes = files.size_bytes(path)
        _check_size(path, entry, size_bytes)


def verify_names(files: Files, generation: Path, manifest: Manifest) -> None:
    """Raise CheckpointError for a missing file, or one that the manifest does not name."""
    expected = {MANIFEST, *(entry.name for entry in manifest.files)}
    for name in sorted(expected ^ set(names_in(files, generation))):
        wrong = "is missing" if name in expected else f"must not be there, as {MANIFEST} does not name it"
        raise CheckpointError(f"{generation / name} {wrong}")


def verify_file(files: Files, path: Path, entry: FileEntry) -> None:
    """Raise CheckpointError where the size of a file or the checksum of a chunk has changed."""
    start = 0
    with os_errors("reading", path):
        _check_size(path, entry, files.size_bytes(path))
        for number, chunk in enumerate(files.chunks(path, CHUNK_BYTES)):
            expected, got = entry.crc32[8 * number : 8 * number + 8], f"{crc32(chunk):08x}"
            if got != expected:
                place = f"between byte {start} and {start + len(chunk)}"
                raise CheckpointError(f"{path} is damaged {place}: crc32 must be {expected or 'of nothing'}, got {got}")
            start += len(chunk)
    _check_size(path, entry, start)


def _check_size(path: Path, entry: FileEntry, size_bytes: int) -> None:
    if size_bytes != entry.size_bytes:
        raise CheckpointError(f"{path} must have {entry.size_bytes} bytes, got {size_bytes}")


def read_json_file(files: Files, path: Path) -> Any:
    """Read a JSON file of a generation."""
    with os_errors("reading", path):
        data = files.read(path)
    return parse_limited_json(data, path)


# Names -----------------------------------------------------------------------------------------------------------------


def names_in(files: Files, folder: Path) -> list[str]:
    """Return all names in a folder; none where it does not exist."""
    with os_errors("listing", folder):
        try:
            return files.names(folder)
        except FileNotFoundError:
            return []


def generations(names: list[str]) -> list[str]:
    """Return the names of generations among these, oldest first."""
    found = [(int(match[1]), int(match[2] or 0), match[0]) for name in names if (match := _GENERATION.fullmatch(name))]
    return [name for *_, name in sorted(found)]


def step_of(name: str) -> int:
    """Return the step that a generation's name has."""
    return int(name.removeprefix("step-").partition(".")[0])


def newest_of_step(names: list[str], step: int | None) -> list[str]:
    """Return the newest of these generations that is of a step, alone in a list; an empty one where there is none."""
    found = [name for name in generations(names) if step_of(name) == step]
    return found[-1:]


def remove_leftovers(files: Files, folder: Path, names: list[str]) -> list[str]:
    """Remove drafts that were never committed, and the rest of removed generations. Returns their names. None of them is in use,
    as a folder has one writer."""
    found = [name for name in names if _LEFTOVER.fullmatch(name)]
    for name in found:
        _remove_folder(files, folder / name)
    return found


def remove_generations(files: Files, folder: Path, names: list[str]) -> list[str]:
    """Remove generations, those that build on others first. Returns the names of the removed, oldest first. One that is being
    read stays for the next time, and so do older ones, as it may build on them.

    Each gets another name, and that is on the disk, before the next one does and before any file goes. So a kill or a loss of
    power leaves every visible generation whole.
    """
    hidden: dict[str, Path] = {}
    for name in reversed(generations(names)):
        with os_errors("locking", folder / name), files.unread(folder / name) as unread:
            if not unread:
                break
            hidden[name] = hide(files, folder / name)
        with os_errors("sync", folder):
            files.sync_folder(folder)
    for path in hidden.values():
        _remove_folder(files, path)
    return generations(list(hidden))


def hide(files: Files, generation: Path) -> Path:
    """Give a generation a name that no reader takes for one. Returns its new path."""
    hidden = generation.with_name(f".{generation.name}.removed")
    with os_errors("renaming", generation):
        files.rename(generation, hidden)
    return hidden


def _remove_folder(files: Files, path: Path) -> None:
    with os_errors("removal", path):
        files.remove_folder(path)


def free_name(step: int, names: list[str]) -> str:
    """Return the name of the next generation of a step."""
    found = [match for name in names if (match := _GENERATION.fullmatch(name)) and int(match[1]) == step]
    return f"step-{step:09d}" + (f".{max(int(match[2] or 0) for match in found) + 1}" if found else "")


def set_aside(files: Files, folder: Path, names: list[str]) -> None:
    """Rename generations that a resumed run has skipped, so that none of them is taken for a newer state later."""
    taken = names_in(files, folder)
    for name in names:
        places = (f"{name}.set-aside{f'-{number}' if number else ''}" for number in range(len(taken) + 1))
        place = next(place for place in places if place not in taken)
        with os_errors("renaming", folder / name):
            files.rename(folder / name, folder / place)
        taken.append(place)
    if names:
        with os_errors("sync", folder):
            files.sync_folder(folder)
