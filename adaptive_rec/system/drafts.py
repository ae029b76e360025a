"""Drafts: files and folders that have a name of their own until they are whole.

Every process makes its own drafts, so any number of them may write the same path at once: each write is whole, and the last one
stays. A process locks its drafts as long as it lives. The next draft in a folder removes those whose processes were killed. Where
a file system has no locks, such drafts stay.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PREFIX = ".adaptive-rec-draft-"
MOST_TRIES = 100
_NAME = re.compile(rf"{re.escape(PREFIX)}[0-9a-f]{{16}}")
NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Answers of file systems without hard links."""


def make_shared_folder(path: Path) -> None:
    """Make a folder that may be there, and those above it, also where other processes remove it when they leave it empty. Raises
    OSError."""
    for _ in range(MOST_TRIES):
        with suppress(FileNotFoundError, FileExistsError):  # it was removed between two calls of mkdir
            path.mkdir(parents=True, exist_ok=True)
            return
        if os.path.lexists(path) and not path.is_dir():
            break
    path.mkdir(parents=True, exist_ok=True)


def is_draft(name: str) -> bool:
    """Return whether a file or folder of this name is a draft, which is no data of anybody."""
    return _NAME.fullmatch(name) is not None


@contextmanager
def draft_file(path: Path, mode: int = 0o666) -> Iterator[tuple[Path, int]]:
    """Make a draft of the file `path` in the same folder: yield its own path, and its descriptor for appending. Rename it to
    `path` within the block; one that still has its own name is removed. Raises OSError, which names `path`."""

    def make(draft: Path) -> int:
        return os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, mode)

    draft, file = _locked(path, make)
    try:
        yield draft, file
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        os.close(file)


@contextmanager
def draft_folder(path: Path) -> Iterator[Path]:
    """Make an empty folder beside `path` and yield it: fill a folder in it, and rename that one to `path` within the block. What
    it holds at the end is removed. Raises OSError, which names `path`."""

    def make(draft: Path) -> int | None:
        os.mkdir(draft, 0o700)
        try:
            return os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None

    draft, folder = _locked(path, make)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        os.close(folder)


def write_first(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file, whole, unless there is one: of several processes that do so at once, one is the first. Raises OSError."""
    with draft_file(path, mode) as (draft, file):
        os.write(file, data)
        os.fsync(file)
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            _rename_first(draft, path)


@contextmanager
def reserved(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the first of these paths, of one folder, at which there is nothing and that no other process has reserved. It stays
    reserved within the block. The folder is made; one that is empty at the end goes again. Raises OSError."""
    with ExitStack() as stack:
        yield next(path for path in paths if _reserve(path, stack))


def _reserve(path: Path, stack: ExitStack) -> bool:
    """Reserve a path by a locked draft that is named after it. Returns False where it is taken."""
    folder, draft = path.parent, path.with_name(f"{PREFIX}{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}")
    if not folder.is_dir():
        stack.callback(_remove_empty, folder)
    while True:
        make_shared_folder(folder)
        try:
            file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # another process has removed the folder, as nothing was in it
            continue
        with ExitStack() as opened:
            opened.callback(os.close, file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:  # a file system without locks
                pass
            if not is_at(file, draft):  # another process took it for abandoned
                continue
            opened.callback(draft.unlink, missing_ok=True)
            if os.path.lexists(path):
                return False
            stack.push(opened.pop_all())
            return True


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _rename_first(draft: Path, path: Path) -> None:
    """Rename a draft unless there is a file: no other process that does the same comes in between."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not os.path.lexists(path):
            os.rename(draft, path)
    finally:
        os.close(folder)


def _locked(path: Path, make: Callable[[Path], int | None]) -> tuple[Path, int]:
    """Make a draft in the folder of `path` and lock it. `make` returns its descriptor, None where another process has removed
    it: before a draft is locked, it looks abandoned."""
    _remove_abandoned(path.parent)
    while True:
        draft = path.with_name(f"{PREFIX}{secrets.token_hex(8)}")
        try:
            file = make(draft)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        if file is None:
            continue
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if is_at(file, draft):
            return draft, file
        os.close(file)


def is_at(file: int, path: Path) -> bool:
    """Return whether an open file or folder is the one that a path names now, not one that was renamed or removed meanwhile."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


def _remove_abandoned(folder: Path) -> None:
    """Remove the drafts in a folder whose processes have ended."""
    try:
        names = [name for name in os.listdir(folder) if is_draft(name)]
    except OSError:  # it may be one in which files can be made and not listed
        return
    for name in names:
        try:
            file = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # it has gone meanwhile, or belongs to somebody else
            continue
        try:
            kind = os.fstat(file).st_mode
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stat.S_ISDIR(kind):
                shutil.rmtree(folder / name, ignore_errors=True)
            elif stat.S_ISREG(kind):
                os.unlink(folder / name)
        except OSError:  # its process lives, or another one removes it
            pass
        finally:
            os.close(file)
