"""A generation while it is written: a draft that becomes visible as a whole, in an order that survives a loss of power.

Every file is synced, then the manifest, then the draft's folder; the draft is renamed and its parent synced. A loss of power
leaves either a whole generation or a draft.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from numpy.typing import NDArray

from adaptive_rec.checkpoint.files import Files, os_errors
from adaptive_rec.checkpoint.generation import free_name, generations, hide, names_in, remove_leftovers
from adaptive_rec.checkpoint.limited_json import render_json
from adaptive_rec.checkpoint.manifest import (
    CHUNK_BYTES,
    FILE_NAME,
    MANIFEST,
    DiskEntry,
    FileEntry,
    Manifest,
    Since,
    sealed,
)
from adaptive_rec.checkpoint.safetensors_file import write_arrays
from adaptive_rec.errors import CheckpointError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class SyncedFile:
    """A new file with checksums of its chunks. It is on the disk when its `with` block has ended without an error."""

    def __init__(self, files: Files, path: Path) -> None:
        self.path = path
        self._sums: list[int] = []
        self._size_bytes = 0
        with os_errors("creation", path):
            self._out = files.create(path)

    def write(self, data: Buffer) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            filled_bytes = self._size_bytes % CHUNK_BYTES
            if not filled_bytes:
                self._sums.append(0)
            part = rest[: CHUNK_BYTES - filled_bytes]
            self._sums[-1] = crc32(part, self._sums[-1])
            with os_errors("write", self.path):
                self._out.write(part)
            self._size_bytes += len(part)
            rest = rest[len(part) :]

    def sync(self) -> None:
        with os_errors("sync", self.path):
            self._out.sync()

    def close(self) -> None:
        with os_errors("closing", self.path):
            self._out.close()

    def entry(self) -> FileEntry:
        """Return what the manifest says of the file."""
        sums = "".join(f"{value:08x}" for value in self._sums)
        return FileEntry(name=self.path.name, size_bytes=self._size_bytes, crc32=sums)

    def __enter__(self) -> SyncedFile:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        closing: AbstractContextManager[object, bool | None] = suppress(
            CheckpointError
        )  # another error is being raised
        try:
            if kind is None:
                self.sync()
                closing = nullcontext()
        finally:
            with closing:
                self.close()


class DraftPart:
    """Files of a draft. Their names are given in full: ``rows-00000.safetensors``, ``state.json``."""

    def __init__(self, files: Files, folder: Path, name: str) -> None:
        """Write to the draft of the generation of this name."""
        self._files, self._folder = files, folder
        self.entries: list[FileEntry] = []
        """The files written so far."""
        self.name = name
        self._target = folder / name
        self.size_bytes = 0
        """Bytes written so far."""
        self._draft: Path | None = folder / f".{name}.draft"

    def arrays(self, name: str, arrays: Mapping[str, NDArray[Any]], types: Mapping[str, str] | None = None) -> None:
        """Write and sync a safetensors file; `types` as in `write_arrays`."""
        with self._file(name) as file:
            write_arrays(file, arrays, types)

    def json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write and sync a JSON file. Floats keep every bit; infinities and NaN are errors."""
        with self._file(name) as file:
            file.write(render_json(value, file.path))

    def abandon(self) -> None:
        """Write no more. What was written is removed with the draft, unless it is committed."""
        self._draft = None

    @contextmanager
    def _file(self, name: str) -> Iterator[SyncedFile]:
        with self._or_abandon() as draft:
            if re.fullmatch(FILE_NAME, name) is None:
                raise CheckpointError(f"a file of a checkpoint must be named NAME.safetensors or NAME.json, got {name}")
            with SyncedFile(self._files, draft / name) as file:
                yield file
            self.entries.append(file.entry())
            self.size_bytes += self.entries[-1].size_bytes

    @contextmanager
    def _or_abandon(self) -> Iterator[Path]:
        if self._draft is None:
            raise CheckpointError(
                f"{self._target} must still be a draft to be written to, it is committed or abandoned"
            )
        try:
            yield self._draft
        except BaseException:
            self.abandon()
            raise


class Draft(DraftPart):
    """A generation that one thread at a time writes; it is invisible until `commit`.

    Any error ends the draft: nothing is tried again, and older generations stay as they are. Its files are removed at once, or
    with the next draft if that fails as well. Several processes may write files of one draft: one of them makes and commits it,
    the others each have a `DraftPart`.
    """

    def __init__(self, files: Files, folder: Path, step: int) -> None:
        """Begin a generation in a folder; the folder is made where its parent exists."""
        names = names_in(files, folder)
        remove_leftovers(files, folder, names)
        super().__init__(files, folder, free_name(step, names))
        self._step = step
        if not generations(names):  # the folder itself may not be on the disk yet
            self._make_folder()
            with os_errors("sync", folder.parent):
                files.sync_folder(folder.parent)
        with self._or_abandon() as draft, os_errors("creation", draft):
            files.make_folder(draft)

    def add(self, entries: Iterable[FileEntry]) -> None:
        """Add files that other processes have written and synced."""
        self.entries += entries
        self.size_bytes = sum(entry.size_bytes for entry in self.entries)

    def commit(
        self, description: Mapping[str, Any], since: Since | None = None, disk: tuple[DiskEntry, ...] | None = None
    ) -> Path:
        """Make the generation visible, and return its folder when a loss of power cannot undo that.

        `since`: the generation that this one builds on; `disk`: where its rows are, where shards have only their addresses.
        """
        with self._or_abandon() as draft:
            files = tuple(self.entries)
            manifest = Manifest(step=self._step, since=since, disk=disk, description=dict(description), files=files)
            with SyncedFile(self._files, draft / MANIFEST) as file:
                file.write(sealed(manifest, file.path))
            with os_errors("sync", draft):
                self._files.sync_folder(draft)
            with os_errors("renaming", draft):
                self._files.rename(draft, self._target)
            self._draft = self._target  # to be removed if the parent cannot be synced
            with os_errors("sync", self._folder):
                self._files.sync_folder(self._folder)
            self._draft = None
        return self._target

    def abandon(self) -> None:
        """Remove the draft, unless it is committed. Never raises: what cannot be removed now goes with the next draft."""
        draft, self._draft = self._draft, None
        if draft is not None:
            with suppress(OSError, CheckpointError):
                self._files.remove_folder(hide(self._files, draft) if draft == self._target else draft)

    def _make_folder(self) -> None:
        try:
            self._files.make_folder(self._folder)
        except FileExistsError:
            pass
        except OSError as error:
            raise CheckpointError(f"{self._folder}: creation failed: {error.strerror}") from None
