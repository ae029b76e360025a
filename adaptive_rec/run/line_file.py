"""Files that grow by whole lines. Lines wait in memory while the disk has no room for them."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path

from adaptive_rec.system.own_files import open_own
from adaptive_rec.units import counted

WAITING_LIMIT = 20_000
"""Lines that may wait for room; beyond that the oldest are lost."""


def append_lines(path: Path, lines: list[bytes]) -> None:
    """Add lines to a file, all of them or none. Raises OSError."""
    with open(open_own(path, os.O_RDWR | os.O_APPEND), "ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        text = b"".join(line + b"\n" for line in lines)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                text = b"\n" + text  # a run was killed in the middle of a line
        try:
            left = memoryview(text)
            while left:
                left = left[file.write(left) :]
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


class LineFile:
    """A file to which lines are written in order, at once or as soon as the disk has room for them. Appending never raises."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error = ""
        """Why lines wait; empty where none do."""
        self._waiting: deque[bytes] = deque()
        self._lost = 0
        self._reported = ""

    def append(self, line: str) -> None:
        self._waiting.append(line.encode())
        if len(self._waiting) > WAITING_LIMIT:
            self._waiting.popleft()
            self._lost += 1
        self.flush()

    def flush(self) -> None:
        """Try to write the lines that wait."""
        try:
            if self._waiting:
                append_lines(self.path, list(self._waiting))
                self._waiting.clear()
                self.error = ""
        except OSError as error:
            self.error = error.strerror or str(error)

    def unwritten(self) -> str:
        """Say at the end which lines could not be written; empty where all are on the disk."""
        self.flush()
        lines = counted(len(self._waiting) + self._lost, "line")
        return f"{self.path} lacks {lines}, which could not be written: {self.error}" if self._waiting else ""

    def complaint(self) -> str:
        """A warning that was not returned before: lines wait, or were written after all. Empty where there is none."""
        if self.error == self._reported:
            return ""
        self._reported = self.error
        if self.error:
            return f"{self.path} cannot be written, its lines wait in memory: {self.error}"
        lost, self._lost = self._lost, 0
        return f"{self.path} can be written again" + (f", its {lost} oldest lines that waited are lost" if lost else "")
