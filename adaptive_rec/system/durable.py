"""Files and folders that survive a loss of power: contents reach the disk first, then the name."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from adaptive_rec.errors import CheckpointError, UsageError
from adaptive_rec.system.drafts import draft_file, draft_folder


def sync_files(paths: Iterable[Path]) -> None:
    """Return when the contents and the names of these files are on the disk."""
    written = list(paths)
    for path in written:
        _sync(path, os.O_RDONLY)
    for folder in {path.parent for path in written}:
        sync_folder(folder)


def sync_folder(path: Path) -> None:
    """Return when the present names in a folder are on the disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def make_folders(path: Path) -> None:
    """Make a folder that may be there, and those above it; the names of those that are made are on the disk."""
    above = next(folder for folder in path.absolute().parents if folder.is_dir())
    path.mkdir(parents=True, exist_ok=True)
    for folder in path.absolute().parents:
        sync_folder(folder)
        if folder == above:
            return


def write_new(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet; its contents are on the disk then, its name is once its folder is."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, text: str) -> None:
    """Write a file durably: afterwards it is there as a whole, or not at all, also where several processes write it at once.
    Raises OSError, which names it."""
    try:
        with draft_file(path) as (draft, descriptor):
            with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
                file.write(text)
            os.fsync(descriptor)
            draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def new_folder(out: Path, option: str = "--out") -> Iterator[Path]:
    """Yield the path of a draft folder to create and fill; it becomes `out` durably when the block succeeds, else it is removed.

    Raises UsageError, which names the option of `out`, where it cannot be made, CheckpointError where its disk is full.
    """
    check_new_folder(out, option)
    with ExitStack() as stack:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            parent = stack.enter_context(draft_folder(out))
        except OSError as error:
            raise _cannot_be_made(out, option, error.strerror) from None
        try:
            yield parent / out.name
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG):
                raise
            kind = UsageError if error.errno == errno.ENAMETOOLONG else CheckpointError
            raise kind(f"{option} {out} cannot be written: {error.strerror}") from None
        try:
            sync_folder(parent / out.name)
            os.rename(parent / out.name, out)
            sync_folder(out.parent)
        except OSError as error:
            raise _cannot_be_made(out, option, error.strerror) from None


def check_new_folder(out: Path, option: str) -> None:
    """Raise UsageError where there is something already, or where no folder can be made."""
    if os.path.lexists(out):
        raise _cannot_be_made(out, option, os.strerror(errno.EEXIST))
    above = next(folder for folder in out.absolute().parents if os.path.lexists(folder))
    if not os.path.isdir(above):
        raise _cannot_be_made(out, option, f"{above} is no folder")
    if not os.access(above, os.W_OK):
        raise _cannot_be_made(out, option, os.strerror(errno.EACCES))


def _cannot_be_made(out: Path, option: str, why: str | None) -> UsageError:
    return UsageError(f"{option} {out} must be a folder that can be made: {why}")


def _sync(path: Path, flags: int) -> None:
    file = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
