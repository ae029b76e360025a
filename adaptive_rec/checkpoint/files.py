"""File operations of checkpoints. All of them go through one object, so that tests can record, lose and fail them.

All methods raise OSError. Nothing is buffered here: `write` hands data to the system, data is on the disk when `sync` has
returned, and a name is on the disk when its folder was synced.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adaptive_rec.errors import CheckpointError
from adaptive_rec.system import durable

if TYPE_CHECKING:
    from typing_extensions import Buffer

SMALL_FILE_BYTES = 16 << 20
"""Limit of what is read at a time, so that a damaged or hostile file takes no more memory than this."""


class Output(Protocol):
    """A new file that is written from front to back."""

    def write(self, data: Buffer) -> None:
        """Write all of the data; a part of it may be there where this fails."""

    def sync(self) -> None:
        """Return when everything written is on the disk. A failed sync must not be tried again, as it may succeed without the
        data."""

    def close(self) -> None: ...


class Files(Protocol):
    """The file operations that checkpoints need."""

    def create(self, path: Path) -> Output:
        """Create a file, which must not exist yet."""

    def make_folder(self, path: Path) -> None:
        """Make a folder, which must not exist yet, in one that does."""

    def sync_folder(self, path: Path) -> None:
        """Return when the present names in a folder are on the disk."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename within a folder; `new` must not exist."""

    def remove_folder(self, path: Path) -> None:
        """Remove a folder with all files in it. Of what somebody has put in its place, such as a link, only the name goes."""

    def reading(self, path: Path) -> AbstractContextManager[None]:
        """Let writers know, for the body of a ``with``, that a folder is being read. Raises FileNotFoundError if it is gone."""

    def unread(self, path: Path) -> AbstractContextManager[bool]:
        """Keep readers out of a folder for the body of a ``with``. False where one is reading it, never for
        what is no folder."""

    def names(self, folder: Path) -> list[str]:
        """Return the sorted names in a folder."""

    def size_bytes(self, path: Path) -> int: ...

    def read(self, path: Path) -> bytes:
        """Return a whole file of at most SMALL_FILE_BYTES."""

    def read_part(self, path: Path, start_byte: int, size_bytes: int) -> bytes:
        """Return a part of a file; less than requested at its end."""

    def chunks(self, path: Path, size_bytes: int) -> Iterator[memoryview]:
        """Yield a file from front to back in chunks of the given size; the last may be shorter. A chunk is valid until the
        next."""


class Disk:
    """The file system of this machine."""

    def create(self, path: Path) -> Output:
        return DiskOutput(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))

    def make_folder(self, path: Path) -> None:
        os.mkdir(path)

    def sync_folder(self, path: Path) -> None:
        durable.sync_folder(path)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove_folder(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            os.unlink(path)

    @contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _lock(folder, fcntl.LOCK_SH)
            os.stat(path)  # it may have been renamed before the lock was taken
            yield
        finally:
            os.close(folder)

    @contextmanager
    def unread(self, path: Path) -> Iterator[bool]:
        if os.path.lexists(path) and not path.is_dir():
            yield True
            return
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(folder)

    def names(self, folder: Path) -> list[str]:
        return sorted(os.listdir(folder))

    def size_bytes(self, path: Path) -> int:
        with _opened(path) as file:
            return os.fstat(file).st_size

    def read(self, path: Path) -> bytes:
        size_bytes = self.size_bytes(path)
        if size_bytes > SMALL_FILE_BYTES:
            raise OSError(errno.EFBIG, f"must have {SMALL_FILE_BYTES} bytes or fewer, got {size_bytes}", str(path))
        return self.read_part(path, 0, size_bytes)

    def read_part(self, path: Path, start_byte: int, size_bytes: int) -> bytes:
        with _opened(path) as file:
            parts = []
            while size_bytes and (part := os.pread(file, size_bytes, start_byte)):
                parts.append(part)
                start_byte, size_bytes = start_byte + len(part), size_bytes - len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)

    def chunks(self, path: Path, size_bytes: int) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(size_bytes))
        with _opened(path) as file:
            while True:
                filled = 0
                while filled < size_bytes and (got := os.readv(file, [buffer[filled:]])):
                    filled += got
                if filled:
                    yield buffer[:filled]
                if filled < size_bytes:
                    return


class DiskOutput:
    def __init__(self, file: int) -> None:
        self._file = file

    def write(self, data: Buffer) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def sync(self) -> None:
        os.fsync(self._file)
        # So that verification reads the disk itself, and memory is left to tables.
        with suppress(OSError):
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._file)


def _lock(folder: int, kind: int) -> bool:
    """Lock an open folder. False where another process holds it; a file system without such locks is as if nobody did."""
    try:
        fcntl.flock(folder, kind)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a regular file for reading: a link may lead elsewhere, and a pipe would block."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "must be a regular file", str(path))
        yield file
    finally:
        os.close(file)


DISK: Files = Disk()


class UnreadableError(CheckpointError):
    """A file that this user may not use. The checkpoint may be whole all the same, so it is not passed over."""


@contextmanager
def os_errors(operation: str, path: Path) -> Iterator[None]:
    """Turn an OSError in the body into a CheckpointError that names operation and file."""
    try:
        yield
    except PermissionError as error:
        raise UnreadableError(f"{path}: {operation} failed: {error.strerror or error}") from None
    except OSError as error:
        raise CheckpointError(f"{path}: {operation} failed: {error.strerror or error}") from None
