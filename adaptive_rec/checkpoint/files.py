"""The disk as checkpoints use it: every touch goes through one object, so that tests can record, lose, tear and fail it.

All methods raise OSError. Nothing is buffered here: what `write` was given is with the system, what `sync` returned for is on the
disk, and a name is there for good once its folder was synced.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adaptive_rec.system import durable

if TYPE_CHECKING:
    from typing_extensions import Buffer

SMALL_FILE_BYTES = 16 << 20
"""The most that is read at a time: a damaged or hostile file takes no more memory than this."""


class Output(Protocol):
    """A new file that is being written, front to back."""

    def write(self, data: Buffer) -> None:
        """All of it; a part may be there where this fails."""

    def sync(self) -> None:
        """Return when what was written is on the disk. After a failure nobody knows what is: never try again."""

    def close(self) -> None: ...


class Files(Protocol):
    def create(self, path: Path) -> Output:
        """A file that must not be there yet."""

    def make_folder(self, path: Path) -> None:
        """A folder that must not be there yet, in one that is."""

    def sync_folder(self, path: Path) -> None:
        """Return when the names in a folder are on the disk, such as they are now."""

    def rename(self, old: Path, new: Path) -> None:
        """Within a folder; `new` must not be there."""

    def remove_folder(self, path: Path) -> None:
        """With all files in it."""

    def names(self, folder: Path) -> list[str]:
        """Of all that is in a folder, sorted."""

    def size_bytes(self, path: Path) -> int: ...

    def read(self, path: Path) -> bytes:
        """A whole file of SMALL_FILE_BYTES at the most."""

    def read_part(self, path: Path, start_byte: int, size_bytes: int) -> bytes:
        """Less at the end of the file."""

    def chunks(self, path: Path, size_bytes: int) -> Iterator[memoryview]:
        """A file from front to back, all chunks but the last of the given size; each is valid until the next."""


class Disk:
    """The file system of the machine."""

    def create(self, path: Path) -> Output:
        return DiskOutput(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))

    def make_folder(self, path: Path) -> None:
        os.mkdir(path)

    def sync_folder(self, path: Path) -> None:
        durable.sync_folder(path)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove_folder(self, path: Path) -> None:
        shutil.rmtree(path)

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
        # What is read back is to come from the disk, and memory is better used for tables.
        with suppress(OSError):
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._file)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A file for reading: neither a link to elsewhere nor a pipe that would have to be waited for."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "must be a regular file", str(path))
        yield file
    finally:
        os.close(file)


DISK: Files = Disk()
