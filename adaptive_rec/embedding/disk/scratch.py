"""A folder for the rows of a store that no checkpoint names."""

from __future__ import annotations

import fcntl
import os
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from adaptive_rec.embedding.store import EmbeddingStore

_LOCK = ".lock"
"""A file that is locked as long as the process lives that made the folder."""


class ScratchFolder:
    """A new folder that is removed with the store that gets it, or at the end of a ``with`` block in which no store does. Folders
    of processes that were killed are removed by the next one beside them."""

    def __init__(self, within: Path, prefix: str) -> None:
        """`within` must exist. Raises OSError."""
        with _alone_in(within):
            _remove_abandoned(within, prefix)
            self.path = Path(mkdtemp(prefix=prefix, dir=within))
            try:
                lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:
                shutil.rmtree(self.path, ignore_errors=True)
                raise
        self._removing = weakref.finalize(self, _remove, self.path, lock, os.getpid())
        self._is_kept = False

    def keep_for(self, store: EmbeddingStore) -> None:
        """Let the folder go with a store."""
        weakref.finalize(store, self._remove)
        self._is_kept = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_kept:
            self._remove()

    def _remove(self) -> None:
        self._removing()


def _remove(folder: Path, lock: int, process: int) -> None:
    """Remove a folder. A process that was forked from the one that made it leaves it to that one."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Have no other process make or remove scratch folders in a folder meanwhile."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(within: Path, prefix: str) -> None:
    """Remove the scratch folders whose processes have ended."""
    for lock in within.glob(f"{prefix}*/{_LOCK}"):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # it has gone meanwhile, or belongs to somebody else
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)
