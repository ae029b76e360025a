"""Lines of whole numbers between separators, as arrays: the click logs that have no other cells.

NumPy reads a block whose every byte is fine, at millions of rows a second; a block with a malformed line is gone through line
by line, so that it can be told which line and which column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.criteo_file import line_blocks
from adaptive_rec.data.prepare.criteo import plain_bytes
from adaptive_rec.errors import DataError

SHOWN_BYTES = 40
MOST_DIGITS = 18
FIRST_WORD = 10**17
"""Words become numbers that no cell may have before NumPy reads a block: this one and those after it."""


@dataclass(frozen=True)
class Cell:
    """A column: whole numbers from 0 to `limit`, or one of some words, which become their numbers in the list."""

    name: str
    limit: int = 2**53
    words: tuple[str, ...] = ()

    def value(self, cell: bytes) -> int | None:
        """What a cell says; None where it is malformed."""
        if self.words:
            text = cell.decode("latin-1")
            return self.words.index(text) if text in self.words else None
        fine = cell.isdigit() and len(cell) <= MOST_DIGITS and int(cell) <= self.limit
        return int(cell) if fine else None

    @property
    def rule(self) -> str:
        if self.words:
            return f"must be one of {', '.join(self.words)}"
        return f"must be a whole number between 0 and {self.limit}"


@dataclass
class IntegerLines:
    """A file of such lines. `header` is its first line, where it has one."""

    path: Path
    cells: tuple[Cell, ...]
    skip_bad_rows: bool
    separator: str = ","
    header: str = ""
    bad_rows: int = 0
    read_ratio: float = 0.0
    """Share of the file that `blocks` has read."""

    def check_header(self) -> None:
        """Raise DataError where the first line is not the header."""
        found = next(line_blocks(self.path), b"").partition(b"\n")[0].strip().decode("latin-1")
        if found != self.header:
            raise DataError(f"{self.path}, line 1: header must be {self.header}, got {ascii(found[:200])}")

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """Yield the rows (B, cells) as they stand; a malformed one raises DataError, or is skipped and counted."""
        size_bytes, read_bytes, lines = plain_bytes(self.path), 0, 0
        for text in line_blocks(self.path):
            read_bytes += len(text)
            first = text.index(b"\n") + 1 if self.header and not lines else 0
            yield self._parse(text[first:], lines + (first > 0))
            lines += text.count(b"\n")
            self.read_ratio = min(1.0, read_bytes / size_bytes)

    def rows(self) -> NDArray[np.int64]:
        """All of them at once (B, cells); a compressed file may hold none."""
        return np.concatenate([np.empty((0, len(self.cells)), dtype=np.int64), *self.blocks()])

    def _parse(self, text: bytes, lines_before: int) -> NDArray[np.int64]:
        plain = self._plain(text)
        if plain and not plain.translate(None, b"0123456789,\r\n"):  # NumPy takes signs and spaces too
            try:
                rows_BC = np.loadtxt(plain.decode().splitlines(), np.int64, delimiter=",", ndmin=2)
            except (ValueError, OverflowError):
                return self._parse_slowly(text, lines_before)
            if rows_BC.shape == (text.count(b"\n"), len(self.cells)):
                bases_C = np.array([FIRST_WORD if cell.words else 0 for cell in self.cells])
                limits_C = np.array([len(cell.words) - 1 if cell.words else cell.limit for cell in self.cells])
                rows_BC -= bases_C
                if (rows_BC >= 0).all() and (rows_BC <= limits_C).all():
                    return rows_BC
        return self._parse_slowly(text, lines_before)

    def _plain(self, text: bytes) -> bytes:
        """The text with commas and numbers only, where it was fine; empty where it has of its own what is put into it."""
        separator = self.separator.encode()
        words = [word for cell in self.cells for word in enumerate(cell.words)]
        if (words and b"%d" % (FIRST_WORD // 100) in text) or (separator != b"," and b"," in text):
            return b""
        text = text.replace(separator, b",")
        for number, word in words:
            text = text.replace(b",%s," % word.encode(), b",%d," % (FIRST_WORD + number))
        return text

    def _parse_slowly(self, text: bytes, lines_before: int) -> NDArray[np.int64]:
        """Go through the lines of a block that has a malformed one."""
        rows = []
        for number, line in enumerate(text.splitlines(), start=lines_before + 1):
            parts = line.split(self.separator.encode())
            values = [cell.value(part) for cell, part in zip(self.cells, parts, strict=False)]
            if len(parts) == len(self.cells) and None not in values:
                rows.append(values)
            elif self.skip_bad_rows:
                self.bad_rows += 1
            else:
                raise DataError(f"{self.path}, line {number}{self._fault(parts, values)}")
        return np.array(rows, dtype=np.int64).reshape(-1, len(self.cells))

    def _fault(self, parts: list[bytes], values: list[int | None]) -> str:
        if len(parts) != len(self.cells):
            between = "commas" if self.separator == "," else f"{self.separator!r}"
            return f": row must have {len(self.cells)} columns between {between}, got {len(parts)}"
        wrong = values.index(None)
        value = ascii(parts[wrong][:SHOWN_BYTES].decode("latin-1"))
        return f", column {self.cells[wrong].name}: {self.cells[wrong].rule}, got {value}"
