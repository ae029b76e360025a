"""A file of a generation while it is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from adaptive_rec.checkpoint.files import Files
from adaptive_rec.checkpoint.manifest import CHUNK_BYTES, FileEntry
from adaptive_rec.errors import CheckpointError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class SyncedFile:
    """A new file that is summed up as it is written, and on the disk when a `with` block of it has ended."""

    def __init__(self, files: Files, path: Path) -> None:
        self.path = path
        self._sums: list[int] = []
        self._size_bytes = 0
        with telling("creation", path):
            self._out = files.create(path)

    def write(self, data: Buffer) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            filled_bytes = self._size_bytes % CHUNK_BYTES
            if not filled_bytes:
                self._sums.append(0)
            part = rest[: CHUNK_BYTES - filled_bytes]
            self._sums[-1] = crc32(part, self._sums[-1])
            with telling("write", self.path):
                self._out.write(part)
            self._size_bytes += len(part)
            rest = rest[len(part) :]

    def sync(self) -> None:
        with telling("sync", self.path):
            self._out.sync()

    def close(self) -> None:
        with telling("closing", self.path):
            self._out.close()

    def entry(self) -> FileEntry:
        sums = "".join(f"{value:08x}" for value in self._sums)
        return FileEntry(name=self.path.name, size_bytes=self._size_bytes, crc32=sums)

    def __enter__(self) -> SyncedFile:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        failed = True
        try:
            if kind is None:
                self.sync()
                failed = False
        finally:
            self._close(quietly=failed)

    def _close(self, quietly: bool) -> None:
        try:
            self.close()
        except CheckpointError:
            if not quietly:  # else another error is under way, which is the one to tell
                raise


@contextmanager
def telling(operation: str, path: Path) -> Iterator[None]:
    """Errors of the system become errors of a checkpoint that name operation and file."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: {operation} failed: {error.strerror or error}") from None
