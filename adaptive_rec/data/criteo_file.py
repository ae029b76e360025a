"""Reads a Criteo TSV file from any row on and reports malformed rows."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.tree import Config
from adaptive_rec.data.lines import line_blocks, quote_field
from adaptive_rec.data.source import feature_tables
from adaptive_rec.errors import DataError
from adaptive_rec.kernels import parse

MARK_BYTES = 4 << 20

RULES = {
    parse.LABEL: "must be 0 or 1",
    parse.INTEGER: "must be an integer or empty",
    parse.INTEGER_RANGE: f"must lie between -{parse.INT32_MAX} and {parse.INT32_MAX}",
    parse.CATEGORY: "must be a hexadecimal number or empty",
    parse.CATEGORY_RANGE: f"must have at most {parse.HEX_DIGITS} hexadecimal digits",
}


@dataclass(frozen=True)
class CriteoLayout:
    """A file and the columns of its rows: label, I1, I2, ..., C1, C2, ..."""

    path: Path
    dense_features: int
    categories: int
    skip_bad_rows: bool
    has_labels: bool = True
    """Whether rows begin with a label; else it is read as 0."""

    @staticmethod
    def of(config: Config) -> CriteoLayout:
        data = config.data
        return CriteoLayout(
            Path(data.source), data.dense_features, len(feature_tables(config)), data.on_bad_row == "skip"
        )

    def opened(self, path: Path, labelled: bool) -> CriteoLayout:
        """Return the layout of a file with these columns. `labelled`: rows must have a label; without it they have none where the
        first row has a field too few, as those of Kaggle's test.txt have."""
        block = b"" if labelled else next(line_blocks(path), b"")
        lacks_label = block[: block.find(b"\n")].count(b"\t") == self.columns - 2
        return replace(self, path=path, has_labels=not lacks_label)

    def labelled(self, block: bytes) -> bytes:
        """Return whole lines with a label before each."""
        if self.has_labels or not block:
            return block
        return b"0\t" + block[:-1].replace(b"\n", b"\n0\t") + b"\n"

    @property
    def columns(self) -> int:
        return 1 + self.dense_features + self.categories

    def column_name(self, column: int) -> str:
        if column == 0:
            return "label"
        return f"I{column}" if column <= self.dense_features else f"C{column - self.dense_features}"


@dataclass(frozen=True)
class LineMark:
    """A place in the file at which a line starts."""

    byte: int
    """The byte in the decompressed file."""
    row: int
    """The rows before it, without skipped malformed ones."""
    line: int
    """The lines before it."""


@dataclass
class ParsedRows:
    """Parsed rows with the values of the file."""

    labels_B: NDArray[np.float32]
    ints_BX: NDArray[np.int32]
    """0 where missing."""
    values_BF: NDArray[np.uint32]
    """Hexadecimal values of the categories; 0 where missing."""

    @staticmethod
    def empty(layout: CriteoLayout, count: int) -> ParsedRows:
        return ParsedRows(
            np.empty(count, dtype=np.float32),
            np.empty((count, layout.dense_features), dtype=np.int32),
            np.empty((count, layout.categories), dtype=np.uint32),
        )

    def __getitem__(self, part: slice) -> ParsedRows:
        return ParsedRows(self.labels_B[part], self.ints_BX[part], self.values_BF[part])

    def dense_BX(self) -> NDArray[np.float32]:
        """log(1 + count), with negative counts set to 0, as in the DLRM reference."""
        counts_BX: NDArray[np.float32] = np.maximum(self.ints_BX, 0).astype(np.float32)
        counts_BX += 1.0
        return np.log(counts_BX, out=counts_BX)


class RowReader:
    """A reader of a file's rows in order, from a mark on."""

    def __init__(self, layout: CriteoLayout, mark: LineMark) -> None:
        self._layout = layout
        self._blocks = line_blocks(layout.path, mark.byte)
        self._block = b""
        self._position = 0
        self.lines = mark.line
        """The number of parsed lines and of those before the mark."""
        self.malformed_rows = 0
        """The number of rows that this reader skipped."""

    def read(self, rows: ParsedRows) -> int:
        """Fill `rows` with the next rows; return their number, which is smaller than `rows` only at the file's end."""
        filled = 0
        while filled < len(rows.labels_B) and (self._position < len(self._block) or self.next_block()):
            filled += self._parse(rows[filled:])
        return filled

    def next_block(self) -> bytes:
        """Move to the next block of lines and return it, empty at the file's end."""
        self._block, self._position = self._layout.labelled(next(self._blocks, b"")), 0
        return self._block

    def count_rows(self, scratch: ParsedRows) -> int:
        """Parse the rest of the current block and return the number of well-formed rows."""
        count = 0
        while self._position < len(self._block):
            count += self._parse(scratch)
        return count

    def _parse(self, rows: ParsedRows) -> int:
        """Parse up to the first malformed row, the block's end, or full `rows`; return the number of rows filled."""
        data = np.frombuffer(self._block, dtype=np.uint8)
        count: int
        count, self._position, fault, column = parse.parse_rows(
            data, self._position, rows.labels_B, rows.ints_BX, rows.values_BF
        )
        self.lines += count
        if fault != parse.FINE:
            line = self._block[self._position : self._block.index(b"\n", self._position)]
            self.lines += 1
            if not self._layout.skip_bad_rows:
                raise malformed(self._layout, self.lines, fault, column, line)
            self._position += len(line) + 1
            self.malformed_rows += 1
        return count


def malformed(layout: CriteoLayout, line_number: int, fault: int, column: int, line: bytes) -> DataError:
    """Return the error for a malformed line: file, line, column, rule, value."""
    where = f"{layout.path}, line {line_number}"
    fields = line.removesuffix(b"\r").split(b"\t")
    if fault == parse.COLUMNS:
        added = 0 if layout.has_labels else 1
        return DataError(
            f"{where}: row must have {layout.columns - added} tab-separated columns, got {len(fields) - added}",
            faq="criteo-columns",
        )
    return DataError(f"{where}, column {layout.column_name(column)}: {RULES[fault]}, got {quote_field(fields[column])}")


def mark_rows(layout: CriteoLayout, parsed: bool) -> list[LineMark]:
    """Read the file once and return marks at its start, every few megabytes, and at its end, where `row` is the number of rows.

    Unless it is `parsed`, every line counts as a row; else malformed rows are skipped or raise.
    """
    reader, scratch = RowReader(layout, LineMark(0, 0, 0)), ParsedRows.empty(layout, 4096)
    marks = [LineMark(0, 0, 0)]
    byte, row, line = 0, 0, 0
    while block := reader.next_block():
        lines = block.count(b"\n")
        byte, line = byte + len(block), line + lines
        row += reader.count_rows(scratch) if parsed else lines
        if byte - marks[-1].byte >= MARK_BYTES:
            marks.append(LineMark(byte, row, line))
    return [*marks, LineMark(byte, row, line)]


def open_at(layout: CriteoLayout, marks: list[LineMark], row: int) -> RowReader:
    """Return a reader whose next row is `row`; it starts at the last mark before that row and drops the rows between."""
    index = max(bisect_left([mark.row for mark in marks], row) - 1, 0)
    reader = RowReader(layout, marks[index])
    left = row - marks[index].row
    scratch = ParsedRows.empty(layout, min(left, 4096))
    while left and (read := reader.read(scratch[:left])):
        left -= read
    reader.malformed_rows = 0
    return reader
