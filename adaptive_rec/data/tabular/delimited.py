"""CSV and TSV files (plain, .gz, .zst) as batches of rows in Arrow's memory; every field is a text.

Fields may be quoted and then hold delimiters, line feeds and doubled quotation marks (RFC 4180). The first line names the
columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive_rec.data.lines import chunks, plain_bytes
from adaptive_rec.data.tabular.schema import FileSchema
from adaptive_rec.errors import DataError, first_line
from adaptive_rec.units import counted

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 4 << 20
"""Text that is parsed at once; a longer row is an error."""
DELIMITERS = (",", "\t", ";", "|")
PROBE_BYTES = 1 << 16
WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""How files in UTF-16 begin."""


class DelimitedFile:
    """A CSV or TSV file, opened: its columns and its rows."""

    def __init__(self, path: Path, file: FileSchema, skip_bad_rows: bool) -> None:
        """Raises DataError where the file has no first line that names the columns."""
        self.path, self._skip_bad_rows = path, skip_bad_rows
        start = b"".join(islice(chunks(path), 1))[:PROBE_BYTES]
        if start.startswith(WIDE_MARKS) and file.encoding == "utf-8":
            raise DataError(
                f'{path} must be in UTF-8, it begins like UTF-16; write encoding = "utf-16" under [file] of the schema'
            )
        self.encoding = file.encoding
        lines = _decoded(start, file.encoding, path)
        self.delimiter = file.delimiter or find_delimiter(lines)
        names = next(csv.reader(io.StringIO(lines, newline=""), delimiter=self.delimiter), [])
        self.names = check_names(names, path)
        self.bad_rows, self._bad_row = 0, ""
        self._text: _TextStream | None = None

    @property
    def read_ratio(self) -> float:
        """Share of the file that `batches` has read."""
        return 0.0 if self._text is None else self._text.read_ratio

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of all rows in order. A row with another number of fields raises DataError, or is skipped."""
        import pyarrow
        from pyarrow import csv as arrow_csv

        self._text = text = _TextStream(self.path)
        read = arrow_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, encoding=self.encoding)
        parse = arrow_csv.ParseOptions(
            delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=self._judge
        )
        convert = arrow_csv.ConvertOptions(
            column_types={name: pyarrow.string() for name in columns},
            include_columns=list(columns),
            strings_can_be_null=False,
        )
        try:
            with arrow_csv.open_csv(pyarrow.PythonFile(text, mode="r"), read, parse, convert) as reader:
                yield from reader
        except (OSError, UnicodeError, pyarrow.ArrowException) as error:
            raise self._error(error) from None
        if text.quotes % 2:
            raise DataError(
                f"{self.path}: every quotation mark that opens a field must be closed, the file has {text.quotes} of them; "
                "write one inside a field twice and the field in quotation marks"
            )

    def _judge(self, row: pa.csv.InvalidRow) -> str:
        if self._skip_bad_rows:
            self.bad_rows += 1
            return "skip"
        wanted, got = counted(row.expected_columns, "field"), counted(row.actual_columns, "field")
        between = f"must have {wanted} between {self.delimiter!r}"
        self._bad_row = f"{self.path}, row {row.number - 1}: {between}, got {got}: {ascii(row.text[:60])}"
        return "error"

    def _error(self, error: Exception) -> DataError:
        text = first_line(error)
        if self._bad_row:
            return DataError(self._bad_row)
        if isinstance(error, UnicodeError) or "UTF8" in text:
            return DataError(
                f"{self.path} must be in {self.encoding}, it holds other bytes ({text}); "
                'write encoding = "latin-1" (or another one) under [file] of the schema'
            )
        if "straddling" in text:
            return DataError(
                f"{self.path}: a row must have at most {BLOCK_BYTES} bytes, got a longer one; is a quotation mark open?"
            )
        return DataError(f"{self.path} must be a file of rows with {len(self.names)} fields: {text}")


class _TextStream(io.RawIOBase):
    """The decompressed bytes of a file for a parser; it counts quotation marks and the share that was read."""

    def __init__(self, path: Path) -> None:
        self._chunks, self._left = chunks(path), memoryview(b"")
        self._size_bytes, self._read_bytes = plain_bytes(path), 0
        self.quotes = 0

    @property
    def read_ratio(self) -> float:
        return min(1.0, self._read_bytes / self._size_bytes)

    def readable(self) -> bool:
        return True

    def readinto(self, room: memoryview) -> int:  # type: ignore[override]
        if not self._left:
            chunk = next(self._chunks, b"")
            self.quotes += chunk.count(b'"')
            self._read_bytes += len(chunk)
            self._left = memoryview(chunk)
        size = min(len(room), len(self._left))
        room[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


def find_delimiter(lines: str) -> str:
    """Return the character that stands most often in the first line, outside of quotation marks."""
    counts = {mark: len(next(csv.reader(io.StringIO(lines, newline=""), delimiter=mark), [])) for mark in DELIMITERS}
    return max(DELIMITERS, key=lambda mark: counts[mark])


def check_names(names: Sequence[str], path: Path) -> tuple[str, ...]:
    """Return the names of the columns. Raises DataError where there are none, or two are equal."""
    if not any(names):
        raise DataError(f"{path}, line 1: must name the columns, it is empty")
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path}, line 1: columns must have different names, two are called {twice}")
    return tuple(names)


def _decoded(start: bytes, encoding: str, path: Path) -> str:
    """Decode the beginning of a file; it may end inside a character."""
    for cut in range(4):
        try:
            return start[: len(start) - cut].decode("utf-8-sig" if encoding == "utf-8" else encoding)
        except UnicodeDecodeError as error:
            fault = error
            if error.end < len(start) - 8:
                break
    raise DataError(
        f"{path} must be in {encoding}, byte {fault.start} is {start[fault.start]:#04x}; "
        'write encoding = "latin-1" (or another one) under [file] of the schema'
    )
