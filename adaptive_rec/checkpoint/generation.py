"""A generation: a folder of files that is written once, becomes visible whole, and tells by checksums whether it still is.

``step-000000123/`` holds safetensors and JSON files and ``MANIFEST.json``, written last: what there is, its sizes, and a crc32 of
each chunk. Until everything is on the disk the folder is called ``.step-000000123.draft``. The order is what makes it
safe: every file synced, the manifest synced, the draft's folder synced, the draft renamed, the parent synced. So a loss of power
leaves a generation that is whole, or a draft. A second generation of one step is ``step-000000123.1``: none is ever changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

from numpy.typing import NDArray

from adaptive_rec.checkpoint.files import Files
from adaptive_rec.checkpoint.manifest import (
    CHUNK_BYTES,
    FILE_NAME,
    FORMAT,
    GENERATION_NAME,
    MANIFEST,
    FileEntry,
    Manifest,
    Since,
    sealed,
    unsealed,
)
from adaptive_rec.checkpoint.plain_json import read_json, to_json
from adaptive_rec.checkpoint.safetensors_file import write_arrays
from adaptive_rec.checkpoint.synced_file import SyncedFile, telling
from adaptive_rec.errors import CheckpointError

OLD_DESCRIPTION = "checkpoint.json"
"""What format 1 had in place of a manifest."""

_GENERATION = re.compile(GENERATION_NAME)
_DRAFT = re.compile(r"\.step-[0-9.]+\.draft")


class Draft:
    """A generation that is being written, by one thread at a time; invisible until `commit`.

    Whatever fails, by an error of the system or another one, ends the draft: nothing is tried again, older generations stay as
    they are, and its files go at once, or where that fails as well, with the next draft. Names of files are given in full:
    ``rows-00000.safetensors``, ``state.json``.
    """

    def __init__(self, files: Files, folder: Path, step: int) -> None:
        """Begin a generation of a folder, which is made where its parent is there."""
        self._files, self._folder, self._step = files, folder, step
        self._entries: list[FileEntry] = []
        names = names_in(files, folder)
        remove_leftovers(files, folder, names)
        self._target = folder / _free_name(step, names)
        self.name = self._target.name
        self.size_bytes = 0
        """Of what was written so far."""
        if not generations(names):  # of a first one the folder itself may be lost
            self._make_folder()
            with telling("sync", folder.parent):
                files.sync_folder(folder.parent)
        self._draft: Path | None = folder / f".{self._target.name}.draft"
        with self._or_abandon() as draft, telling("creation", draft):
            files.make_folder(draft)

    def arrays(self, name: str, arrays: Mapping[str, NDArray[Any]], types: Mapping[str, str] | None = None) -> None:
        """Write and sync a safetensors file; `types` as in `write_arrays`."""
        with self._file(name) as file:
            write_arrays(file, arrays, types)

    def json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write and sync a JSON file; floats keep every bit, infinities and NaN are refused."""
        with self._file(name) as file:
            file.write(to_json(value, file.path))

    def commit(self, description: Mapping[str, Any], since: Since | None = None) -> Path:
        """Make the generation visible, and return its folder when nothing can take it away again.

        `since` names the generation that this one builds on.
        """
        with self._or_abandon() as draft:
            files = tuple(self._entries)
            manifest = Manifest(step=self._step, since=since, description=dict(description), files=files)
            with SyncedFile(self._files, draft / MANIFEST) as file:
                file.write(sealed(manifest, file.path))
            with telling("sync", draft):
                self._files.sync_folder(draft)
            with telling("renaming", draft):
                self._files.rename(draft, self._target)
            self._draft = self._target  # what has to go where the parent cannot be synced
            with telling("sync", self._folder):
                self._files.sync_folder(self._folder)
            self._draft = None
        return self._target

    def abandon(self) -> None:
        """Give up. Never raises."""
        draft, self._draft = self._draft, None
        if draft is not None:
            try:
                self._files.remove_folder(draft)
            except OSError:
                pass  # the error that led here is the one to tell; what is left goes with the next draft

    def _make_folder(self) -> None:
        try:
            self._files.make_folder(self._folder)
        except FileExistsError:
            pass
        except OSError as error:
            raise CheckpointError(f"{self._folder}: creation failed: {error.strerror}") from None

    @contextmanager
    def _file(self, name: str) -> Iterator[SyncedFile]:
        with self._or_abandon() as draft:
            if re.fullmatch(FILE_NAME, name) is None:
                raise CheckpointError(
                    f"a file of a checkpoint must be called NAME.safetensors or NAME.json, got {name}"
                )
            with SyncedFile(self._files, draft / name) as file:
                yield file
            self._entries.append(file.entry())
            self.size_bytes += self._entries[-1].size_bytes

    @contextmanager
    def _or_abandon(self) -> Iterator[Path]:
        if self._draft is None:
            raise CheckpointError(f"{self._target} is committed or given up: nothing can be written to it")
        try:
            yield self._draft
        except BaseException:
            self.abandon()
            raise


# Reading ---------------------------------------------------------------------------------------------------------------


def read_manifest(files: Files, generation: Path) -> Manifest:
    """What a generation says it holds. Raises CheckpointError, with the reason, where that cannot be relied on."""
    path, names = generation / MANIFEST, names_in(files, generation)
    if OLD_DESCRIPTION in names and MANIFEST not in names:
        raise CheckpointError(f"{generation} must be a checkpoint of format {FORMAT}, got one of format 1")
    with telling("reading", path):
        data = files.read(path)
    manifest = unsealed(data, path)
    named = _GENERATION.fullmatch(generation.name)
    if named is not None and int(named[1]) != manifest.step:
        raise CheckpointError(f"{path} must be of step {int(named[1])}, as its folder, got {manifest.step}")
    return manifest


def verify(files: Files, generation: Path, told: Callable[[FileEntry], None] | None = None) -> Manifest:
    """Read every byte of a generation. Raises CheckpointError that names file and place of what is not as it was written.

    `told` hears of each file that is whole.
    """
    manifest = read_manifest(files, generation)
    verify_names(files, generation, manifest)
    for entry in manifest.files:
        verify_file(files, generation / entry.name, entry)
        if told is not None:
            told(entry)
    return manifest


def verify_names(files: Files, generation: Path, manifest: Manifest) -> None:
    """Raise CheckpointError where a file is missing, or there is one too many."""
    expected = {MANIFEST, *(entry.name for entry in manifest.files)}
    for name in sorted(expected ^ set(names_in(files, generation))):
        wrong = "is missing" if name in expected else f"must not be there, as {MANIFEST} does not name it"
        raise CheckpointError(f"{generation / name} {wrong}")


def verify_file(files: Files, path: Path, entry: FileEntry) -> None:
    """Raise CheckpointError where a file has another size, or a chunk another checksum, than it was written with."""
    start = 0
    with telling("reading", path):
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
    """The value of a JSON file of a generation."""
    with telling("reading", path):
        data = files.read(path)
    return read_json(data, path)


# Names -----------------------------------------------------------------------------------------------------------------


def names_in(files: Files, folder: Path) -> list[str]:
    """All names in a folder; none where it is absent."""
    with telling("listing", folder):
        try:
            return files.names(folder)
        except FileNotFoundError:
            return []


def generations(names: list[str]) -> list[str]:
    """Those names that are generations', oldest first."""
    found = [(int(match[1]), int(match[2] or 0), match[0]) for name in names if (match := _GENERATION.fullmatch(name))]
    return [name for *_, name in sorted(found)]


def remove_leftovers(files: Files, folder: Path, names: list[str]) -> list[str]:
    """Remove drafts that were never committed: nobody can be writing them, as a folder has one writer."""
    drafts = [name for name in names if _DRAFT.fullmatch(name)]
    for name in drafts:
        with telling("removal", folder / name):
            files.remove_folder(folder / name)
    return drafts


def _free_name(step: int, names: list[str]) -> str:
    found = [match for name in names if (match := _GENERATION.fullmatch(name)) and int(match[1]) == step]
    return f"step-{step:09d}" + (f".{max(int(match[2] or 0) for match in found) + 1}" if found else "")
