"""The files that are followed: one that grows, or those that come into a folder, each read once, in natural order."""

from __future__ import annotations

import threading
from pathlib import Path

from adaptive_rec.data.tabular.files import followed, found_in, natural
from adaptive_rec.data.tabular.growing_file import gone
from adaptive_rec.errors import DataError

MOST_REMOVED = 1000
"""Names of removed files that a checkpoint keeps, the newest ones."""


class FollowedFiles:
    """The file `--data`, or the files of that folder: which of them were read, and which one is next.

    A file of a folder may be removed after it was read, all of them at once too; it must not come back.
    """

    def __init__(self, path: Path) -> None:
        """Raises DataError where there is no first file."""
        self.path, self.is_folder = path, path.is_dir()
        self.present = followed(path)
        """The files that are there at the beginning."""
        self._read: set[str] = set()
        """Names of the files that have been read, the present one included."""
        self._removed: set[str] = set()
        """Those among them that are not there any more."""
        self._is_empty = False
        self._warnings: list[str] = []
        self._lock = threading.Lock()

    def begin(self, name: str, known: set[str] | None) -> Path:
        """Begin to read at the file of a name, or at the first one where that is empty. `known`: the files that were read when
        the run was saved, removed ones too; None: all before it. Raises DataError where it is not there."""
        files = followed(self.path)
        path = next((path for path in files if path.name == name), files[0])
        if name and path.name != name:
            raise DataError(f"data.source must still have the file {name}, at which the run stood")
        before = {each.name for each in files if natural(each) <= natural(path)}
        with self._lock:
            self._removed = set() if known is None else known - {each.name for each in files}
            self._read = before if known is None else (before & known) | self._removed | {path.name}
        return path

    def later(self, path: Path, begins: bool = False) -> Path | None:
        """Return the file after one, None where there is none. `begins`: it is read from now on. Raises DataError where a file
        has come whose turn is over, or the folder is gone."""
        if not self.is_folder:
            return None
        files = found_in(self.path)
        with self._lock:
            if not files and not self._is_empty:
                self._warnings.append(f"{self.path} has no files any more, the run waits for new ones")
            self._is_empty = not files
            names = {each.name for each in files}
            if back := sorted(names & self._removed):
                raise DataError(
                    f"files that come must have new names, {back[0]} was read and removed, and is there again"
                )
            self._removed |= self._read - names
            new = next((each for each in files if each.name not in self._read), None)
            if new is not None and natural(new) < natural(path):
                raise DataError(f"files that come must sort after {path.name}, which was read, got {new.name}")
            if new is not None and begins:
                self._read.add(new.name)
        return new

    def size_of(self, path: Path, was_read: bool) -> int | None:
        """Return a file's size in bytes; None where it is gone and may be, as a file of the folder that was read. Raises
        DataError."""
        try:
            return path.stat().st_size
        except OSError as error:
            if was_read and self.is_folder and isinstance(error, FileNotFoundError):
                return None
            raise gone(path, error) from None

    def warn_of_removed(self, path: Path, size: int, left_bytes: int) -> None:
        """Warn that a file of the folder was removed when it had been read."""
        left = f" but for {left_bytes:,} at its end, which are no whole line" if left_bytes > 0 else ""
        with self._lock:
            self._warnings.append(f"{path} was removed while it was followed; its {size:,} bytes were read{left}")

    def path_of(self, name: str) -> Path:
        """Return the path of a file by its name, of the first one where that is empty."""
        return (self.path if self.is_folder else self.path.parent) / (name or self.present[0].name)

    def read_until(self, name: str) -> tuple[list[str], list[str]]:
        """Return the names of the files up to one that have been read: those that are there, and those that were removed last."""
        last = natural(Path(name))
        names = [each for each in self._in_order() if natural(Path(each)) <= last]
        there = {each for each in names if self.path_of(each).exists()}
        return [each for each in names if each in there], [each for each in names if each not in there][-MOST_REMOVED:]

    def check_kept(self, name: str) -> None:
        """Raise DataError unless the files that have been read are still there, from one on, so that they can be read again."""
        first = self.path_of(name)
        later = [path for path in map(self.path_of, self._in_order()) if natural(path) > natural(first)]
        missing = [path.name for path in (first, *later) if not path.exists()]
        if missing:
            raise DataError(f"data.source must still have all files read from then on, missing: {', '.join(missing[:8])}")

    def _in_order(self) -> list[str]:
        """Return the names of the files that have been read, in natural order."""
        with self._lock:
            return sorted(self._read, key=lambda each: natural(Path(each)))

    def take_warnings(self) -> list[str]:
        """Return the warnings that are new, for any thread."""
        with self._lock:
            taken, self._warnings = self._warnings, []
        return taken
