"""Read a Criteo TSV file from any row on: decompress, cut into blocks of lines, parse, tell malformed rows."""

from __future__ import annotations

import gzip
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import feature_tables
from adaptive_rec.data.zst import ZstdDecompressor, ZstdError
from adaptive_rec.errors import DataError
from adaptive_rec.kernels import parse

CHUNK_BYTES = 1 << 20
COMPRESSED_BYTES = 1 << 12
"""What is decompressed at once: to at most 128 MiB, as zstd's smallest block of 4 bytes stands for no more than 128 KiB."""
MAX_LINE_BYTES = 4 << 20
"""A longer line means that the file is no TSV file; reading on could fill the memory."""
MARK_BYTES = 4 << 20
SHOWN_BYTES = 40

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

    @staticmethod
    def of(config: Config) -> CriteoLayout:
        data = config.data
        return CriteoLayout(Path(data.source), data.dense_features, len(feature_tables(config)), data.on_bad_row == "skip")

    @property
    def columns(self) -> int:
        return 1 + self.dense_features + self.categories

    def column_name(self, column: int) -> str:
        if column == 0:
            return "label"
        return f"I{column}" if column <= self.dense_features else f"C{column - self.dense_features}"


@dataclass(frozen=True)
class LineMark:
    """A place in the file where a line starts."""

    byte: int
    """By decompressed size."""
    row: int
    """Rows before it; where malformed rows are skipped, well-formed rows before it."""
    line: int
    """Lines before it."""


@dataclass
class ParsedRows:
    """Parsed rows, as the file has them."""

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
    """Reads a file's rows in order, from a mark on."""

    def __init__(self, layout: CriteoLayout, mark: LineMark) -> None:
        self._layout = layout
        self._blocks = line_blocks(layout.path, mark.byte)
        self._block = b""
        self._position = 0
        self.lines = mark.line
        """Lines of the file that were parsed, and those before the mark."""
        self.malformed_rows = 0
        """Rows this reader skipped."""

    def read(self, rows: ParsedRows) -> int:
        """Fill `rows` with the next rows; returns how many there were, less than asked only at the file's end."""
        filled = 0
        while filled < len(rows.labels_B) and (self._position < len(self._block) or self.next_block()):
            filled += self._parse(rows[filled:])
        return filled

    def next_block(self) -> bytes:
        """Go on to the next block of lines and return it, empty at the file's end."""
        self._block, self._position = next(self._blocks, b""), 0
        return self._block

    def count_rows(self, scratch: ParsedRows) -> int:
        """Parse what is left of the present block; returns how many rows are well-formed."""
        count = 0
        while self._position < len(self._block):
            count += self._parse(scratch)
        return count

    def _parse(self, rows: ParsedRows) -> int:
        """Parse up to the first malformed row, the block's end, or full `rows`; returns how many rows were filled."""
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
    """The error for a malformed line: file, line, column, rule, value."""
    where = f"{layout.path}, line {line_number}"
    fields = line.removesuffix(b"\r").split(b"\t")
    if fault == parse.COLUMNS:
        return DataError(f"{where}: row must have {layout.columns} tab-separated columns, got {len(fields)}")
    value = ascii(fields[column][:SHOWN_BYTES].decode("latin-1")) + "..." * (len(fields[column]) > SHOWN_BYTES)
    return DataError(f"{where}, column {layout.column_name(column)}: {RULES[fault]}, got {value}")


def line_blocks(path: Path, start_byte: int = 0) -> Iterator[bytes]:
    """Yield the decompressed file from `start_byte` on in blocks of whole lines, a last line feed added if need be."""
    rest = b""
    for chunk in chunks(path, start_byte):
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield rest + chunk[:cut]
            rest = chunk[cut:]
        else:
            rest += chunk
        if len(rest) > MAX_LINE_BYTES:
            raise DataError(f"{path}: a line must have at most {MAX_LINE_BYTES} bytes, got one of {len(rest)} or more")
    if rest:
        yield rest + b"\n"


def chunks(path: Path, start_byte: int = 0) -> Iterator[bytes]:
    """Yield the decompressed file from `start_byte` on; a damaged file is a DataError."""
    try:
        if path.suffix == ".gz":
            yield from _skip(_gzip_chunks(path), start_byte)
        elif path.suffix == ".zst":
            yield from _skip(_zstd_chunks(path), start_byte)
        else:
            with path.open("rb") as file:
                file.seek(start_byte)
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
    except (EOFError, OSError, zlib.error, ZstdError) as error:
        raise DataError(f"{path} must be a complete {path.suffix.lstrip('.') or 'plain'} file: {error}") from None


def _skip(stream: Iterator[bytes], skip_bytes: int) -> Iterator[bytes]:
    for chunk in stream:
        if skip_bytes < len(chunk):
            yield chunk[skip_bytes:]
        skip_bytes = max(skip_bytes - len(chunk), 0)


def _gzip_chunks(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _zstd_chunks(path: Path) -> Iterator[bytes]:
    """Decompress frame by frame: where a file ends inside a frame it is damaged."""
    frame = ZstdDecompressor()
    inside = True
    pieces: list[bytes] = []
    with path.open("rb") as file:
        while data := file.read(COMPRESSED_BYTES):
            while data:
                inside = True
                pieces.append(frame.decompress(data))
                data = b""
                if frame.eof:
                    data, inside = frame.unused_data, False
                    frame = ZstdDecompressor()
            if sum(map(len, pieces)) >= CHUNK_BYTES:
                yield b"".join(pieces)
                pieces = []
    if pieces:
        yield b"".join(pieces)
    if inside:
        raise EOFError("compressed file ended before the end of its last frame")


def mark_rows(layout: CriteoLayout, parse_them: bool) -> list[LineMark]:
    """Read the file once; marks at its start, every few megabytes, and at its end, where `row` is the number of rows.

    Without parsing, every line counts as a row; with it, malformed rows are skipped or raise.
    """
    reader, scratch = RowReader(layout, LineMark(0, 0, 0)), ParsedRows.empty(layout, 4096)
    marks = [LineMark(0, 0, 0)]
    byte, row, line = 0, 0, 0
    while block := reader.next_block():
        lines = block.count(b"\n")
        byte, line = byte + len(block), line + lines
        row += reader.count_rows(scratch) if parse_them else lines
        if byte - marks[-1].byte >= MARK_BYTES:
            marks.append(LineMark(byte, row, line))
    return [*marks, LineMark(byte, row, line)]


def open_at(layout: CriteoLayout, marks: list[LineMark], row: int) -> RowReader:
    """A reader whose next row is `row`; it starts at the last mark before that row and drops the rows between."""
    index = max(bisect_left([mark.row for mark in marks], row) - 1, 0)
    reader = RowReader(layout, marks[index])
    left = row - marks[index].row
    scratch = ParsedRows.empty(layout, min(left, 4096))
    while left and (read := reader.read(scratch[:left])):
        left -= read
    reader.malformed_rows = 0
    return reader
