"""Reads a file of JSON lines while another process writes it: each finished line once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from adaptive_rec.service.hello import Values
from adaptive_rec.service.lines import parsed

HEAD_BYTES, BLOCK_BYTES, END_BYTES = 1 << 20, 1 << 15, 8 << 20
"""Parts of a very long file that are read: its first bytes, blocks in between, its last bytes."""
BLOCKS = 64
LONGEST_BYTES = 1 << 20
"""Longest line in the sample."""


class Tail:
    """Remembers how far a growing file has been read. The file may not exist yet.

    If it is longer than `whole_bytes` at the first read, only a sample of its lines is read.
    """

    def __init__(self, path: Path, whole_bytes: int | None = None) -> None:
        self.path = path
        self._whole_bytes = whole_bytes
        self._position = 0

    def new_lines(self) -> Iterator[Values]:
        """Yield every line finished since the last call. Lines without a JSON object are left out."""
        try:
            size = self.path.stat().st_size
            if size == self._position:
                return
            file = open(self.path, "rb")
        except OSError:
            return
        with file:
            if self._position == 0 and self._whole_bytes is not None and size > self._whole_bytes:
                yield from self._sample(file, size)
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # still being written
                self._position += len(line)
                value = parsed(line)
                if value is not None:
                    yield value

    def _sample(self, file: BinaryIO, size: int) -> Iterator[Values]:
        """Yield some of the lines before the file's last bytes, and set the position to read from there."""
        end = max(0, size - END_BYTES)
        apart = max(BLOCK_BYTES, (end - HEAD_BYTES) // BLOCKS)
        for start, length in [(0, HEAD_BYTES), *((at, BLOCK_BYTES) for at in range(HEAD_BYTES, end, apart))]:
            file.seek(start)
            if start:
                file.readline(LONGEST_BYTES)  # the rest of a line that starts earlier
            while file.tell() < min(start + length, end):
                value = parsed(file.readline(LONGEST_BYTES))
                if value is not None:
                    yield value
        file.seek(end)
        file.readline(LONGEST_BYTES)
        self._position = file.tell()
