"""Files that are written in a folder which may be somebody else's: a link in it never leads a write elsewhere."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from adaptive_rec.errors import UsageError


def open_own(path: Path, flags: int) -> int:
    """Open a file for writing, which is made where there is none, and return its descriptor. Raises OSError where it is a link or
    no regular file."""
    try:
        file = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise _refused(path) from None
        if error.errno == errno.ENXIO:  # a pipe without a reader
            raise _refused(path) from None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _refused(path)
    return file


def open_draft(path: Path) -> int:
    """Open a new file for writing, in the place of what an earlier process may have left there. Raises OSError."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def check_own(folder: Path, names: Iterable[str]) -> None:
    """Raise UsageError where one of these names in a folder is a link, so that what is written there would be written
    elsewhere, or a pipe or a device, which would block."""
    for path in (folder / name for name in names):
        kind = mode_at(path)
        if kind is not None and not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise UsageError(f"{path} {_rule(path)}")


def mode_at(path: Path) -> int | None:
    """Return the mode of what is at a path, of a link itself; None where there is nothing. It is one look: another process may
    remove the file between two."""
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _refused(path: Path) -> OSError:
    return OSError(errno.ELOOP if path.is_symlink() else errno.EACCES, _rule(path), str(path))


def _rule(path: Path) -> str:
    if path.is_symlink():
        return f"must not be a symbolic link (it points to {os.readlink(path)}): the run writes to it"
    return "must be a regular file, as it is written to, it is a pipe or a device"
