"""CSV and TSV files, plain or packed, as batches of rows in Arrow's memory; every field is a text.

Fields may be quoted and then hold delimiters, line feeds and doubled quotation marks (RFC 4180), or marks after a backslash, as
Spark writes them. The first line names the columns, unless the schema does.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adaptive_rec.data.lines import chunks, plain_bytes, skipped
from adaptive_rec.data.tabular.dialect import (
    as_doubled,
    check_escape,
    code_of,
    find_escape,
    has_two_readings,
    looks_like_a_row,
)
from adaptive_rec.data.tabular.schema_file import FileSchema
from adaptive_rec.errors import DataError, first_line
from adaptive_rec.kernels.record_ends import ESCAPED, FIELD_START, QUOTED, last_record_end
from adaptive_rec.units import counted

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ROW_BYTES = 4 << 20
"""A longer row is an error: a quotation mark that is never closed would fill the memory."""
WAY_OUT = 'write encoding = "latin-1" (or another one) under [file] of the schema'
DELIMITERS = (",", "\t", ";", "|")
PROBE_BYTES = 1 << 16
HEADER_ROWS = 500
"""Rows to which the first line is compared."""
WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""How files in UTF-16 begin."""
OTHER_BYTES = "\U0010ffff"
"""Stands for bytes that the encoding does not know; it is no character of Unicode."""
codecs.register_error("other_bytes", lambda error: (OTHER_BYTES, error.end))  # type: ignore[attr-defined]


class DelimitedFile:
    """A CSV or TSV file, opened: its columns and its rows."""

    schema: pa.Schema | None = None
    written: pa.Schema | None = None
    """There is none: all fields are texts."""

    def __init__(
        self, path: Path, file: FileSchema, skip_bad_rows: bool, grows: bool = False, label: str | None = None
    ) -> None:
        """`grows`: what follows the last whole record is left for later. `label`: the column that rows of a file without a header
        may leave out. Raises DataError where nothing names the columns."""
        self.path, self._skip_bad_rows, self._grows = path, skip_bad_rows, grows
        first = b"".join(islice(chunks(path), 1))
        start = first[:PROBE_BYTES]
        if start.startswith(WIDE_MARKS) and file.encoding == "utf-8":
            raise DataError(
                f'{path} must be in UTF-8, it begins like UTF-16; write encoding = "utf-16" under [file] of the schema'
            )
        self.encoding = file.encoding
        lines = _decoded(start, file.encoding, path, skip_bad_rows)
        self.delimiter = find_delimiter(lines, file.delimiter)
        self.escape = file.escape or find_escape(first, file.encoding, self.delimiter)
        """The character before a mark in a quoted field; empty where files have none, and one is looked for."""
        self._escape = code_of(self.escape)
        self._given, fields = file.columns, next(self._fields(lines), [])
        self._has_names = not file.columns or tuple(fields) == file.columns
        if file.columns:
            self.names = given_names(fields, file.columns, label, path)
        else:
            self.names = check_names(fields, self)
        self.bad_rows, self._bad_row, self._rows = 0, "", 0
        self.other_rows = 0
        """Rows among the bad ones that are not in the file's encoding."""
        self._size_bytes, self._read_bytes = plain_bytes(path), 0
        self.place: int | None = 0
        self.end = 0

    def _fields(self, lines: str) -> Iterator[list[str]]:
        return csv.reader(io.StringIO(lines, newline=""), delimiter=self.delimiter)

    @cached_property
    def row_fault(self) -> str:
        """What is wrong with a first line that looks like a row; empty where it names the columns, or the schema does."""
        if self._given:
            return ""
        start = b"".join(islice(chunks(self.path), 1))[:PROBE_BYTES]
        lines = self._fields(_decoded(start, self.encoding, self.path, self._skip_bad_rows))
        fields, *rows = list(islice(lines, 1 + HEADER_ROWS)) or [[]]
        return looks_like_a_row(self.path, fields, rows)

    @property
    def read_ratio(self) -> float:
        """Share of the file that `batches` has read."""
        return min(1.0, self._read_bytes / self._size_bytes)

    def batches(self, columns: Sequence[str], place: int = 0, rows_before: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield these columns of all rows in order, from a place on that has `rows_before` before it. A row with another
        number of fields, or with other bytes than those of the encoding in these columns, raises DataError, or is skipped. A
        place is a byte of the decompressed file in UTF-8."""
        import pyarrow

        self._rows = rows_before
        try:
            for begin, text in self._records(place):
                self.place, bad = begin, self.bad_rows
                batch = self._parsed(text, columns, has_names=begin == 0 and self._has_names)
                self._rows += batch.num_rows + self.bad_rows - bad
                yield batch
        except (OSError, UnicodeError, pyarrow.ArrowException) as error:
            raise self._error(error) from None

    def as_written(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of all rows."""
        return self.batches(columns)

    def _records(self, place: int) -> Iterator[tuple[int, bytes]]:
        """Yield whole records from a place on, about a megabyte at a time, each time with their own place."""
        rest, state, mark = b"", FIELD_START, ord(self.delimiter)
        for chunk in self._texts(place):
            scanned, rest = len(rest), rest + chunk
            self._read_bytes += len(chunk)
            end, state, longest = last_record_end(np.frombuffer(rest, np.uint8), scanned, state, mark, self._escape)
            if max(longest, len(rest) - max(end, 0)) > MAX_ROW_BYTES:
                raise DataError(
                    f"{self.path}: a row must have at most {MAX_ROW_BYTES} bytes, got a longer one; is a quotation mark open?"
                    f"{self._other_escape(rest)}"
                )
            if end > 0:
                yield place, rest[:end]
                place, rest = place + end, rest[end:]
        self.end = place
        if self._grows:
            return
        if state in (QUOTED, ESCAPED):
            raise DataError(
                f"{self.path}: every quotation mark that opens a field must be closed, the file ends inside a field; write a "
                f"mark inside a field twice and the field in quotation marks{self._other_escape(rest)}",
                faq="fields-of-a-row",
            )
        if rest:
            self.end = place + len(rest)
            yield place, rest + b"\n" * (place == 0)  # the names alone: Arrow skips no line that does not end

    def _other_escape(self, text: bytes) -> str:
        """Return the advice for a text that does not end where another escape character may be meant."""
        if not self.escape and has_two_readings(text):
            return '; if a backslash escapes marks, write escape = "\\\\" under [file] of the schema'
        return f"; {self.escape} escapes marks, by escape of [file] in the schema" if self._escape >= 0 else ""

    def _texts(self, place: int) -> Iterator[bytes]:
        """Yield the file from a place on in UTF-8, cut at the same bytes wherever it begins."""
        if self.encoding == "utf-8":
            return chunks(self.path, place)
        return skipped(utf8_chunks(chunks(self.path), self.encoding, ends=not self._grows), place)

    def _parsed(self, text: bytes, columns: Sequence[str], has_names: bool) -> pa.RecordBatch:
        """Parse whole records, the first of which may name the columns."""
        import pyarrow
        from pyarrow import csv as arrow_csv

        text = utf8_of(text)
        if self._escape >= 0:
            text = as_doubled(text, self.delimiter, self._escape)
        elif not self.escape and has_two_readings(text):
            check_escape(self.path, text, self.delimiter, len(self.names), self._rows + 1 - has_names)

        def judge(row: pa.csv.InvalidRow) -> str:
            self.bad_rows += 1
            if not self._skip_bad_rows:
                self._bad_row = self._fields_of(row, self._rows + row.number - has_names)
            return "skip" if self._skip_bad_rows else "error"

        read = arrow_csv.ReadOptions(
            use_threads=False, block_size=len(text) + 1, column_names=self.names, skip_rows_after_names=int(has_names)
        )
        parse = arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=judge)
        kinds = dict.fromkeys(columns, pyarrow.string())
        convert = arrow_csv.ConvertOptions(
            column_types=kinds, include_columns=list(columns), strings_can_be_null=False, check_utf8=False
        )
        table = arrow_csv.read_csv(pyarrow.BufferReader(text), read, parse, convert)
        batch = pyarrow.record_batch([column.combine_chunks() for column in table.columns], schema=table.schema)
        return self._in_encoding(batch) if OTHER_BYTES.encode() in text else batch

    def _in_encoding(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows without other bytes than those of the encoding. Raises DataError for the first one that has some,
        unless they are skipped."""
        import pyarrow.compute as pc

        bad_B = np.zeros(batch.num_rows, dtype=bool)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            bad_B |= (wrong_B := pc.match_substring(column, OTHER_BYTES).to_numpy(zero_copy_only=False))
            if wrong_B.any() and not self._skip_bad_rows:
                wrong = int(np.flatnonzero(wrong_B)[0])
                got = ascii(column[wrong].as_py().replace(OTHER_BYTES, "\ufffd"))[:60]
                where = f"{self.path}, row {self._rows + wrong + 1}, column {name}"
                raise DataError(f"{where}: must be in {self.encoding}, got {got}; {WAY_OUT}")
        other = int(np.count_nonzero(bad_B))
        self.bad_rows, self.other_rows = self.bad_rows + other, self.other_rows + other
        return batch.filter(~bad_B)

    def _fields_of(self, row: pa.csv.InvalidRow, number: int) -> str:
        wanted, got = counted(row.expected_columns, "field"), counted(row.actual_columns, "field")
        between = f"must have {wanted} between {self.delimiter!r}"
        return f"{self.path}, row {number}: {between}, got {got}: {ascii(row.text[:60])}"

    def _error(self, error: Exception) -> DataError:
        text = first_line(error)
        if self._bad_row:
            return DataError(self._bad_row, faq="fields-of-a-row")
        if isinstance(error, UnicodeError):
            return DataError(f"{self.path} must be in {self.encoding}, it holds other bytes ({text}); {WAY_OUT}")
        return DataError(f"{self.path} must be a file of rows with {len(self.names)} fields: {text}")


def utf8_chunks(pieces: Iterator[bytes], encoding: str, ends: bool = True) -> Iterator[bytes]:
    """Yield a text in UTF-8, with OTHER_BYTES for what the encoding does not know. Unless it `ends`, half a character at its end
    is left for later."""
    decoder = codecs.getincrementaldecoder(encoding)("other_bytes")
    for piece in pieces:
        yield decoder.decode(piece).encode()
    if ends:
        yield decoder.decode(b"", final=True).encode()


def utf8_of(text: bytes) -> bytes:
    """Return a text in UTF-8, with OTHER_BYTES for what is not."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode(errors="other_bytes").encode()
    return text


def find_delimiter(lines: str, known: str) -> str:
    """Return the delimiter that the schema names, or the character that stands most often in the first line, outside of quotation
    marks: where the schema names none, or one that the line lacks, as that of other files that were trained on."""
    marks = tuple(dict.fromkeys((*known, *DELIMITERS)))
    counts = {mark: len(next(csv.reader(io.StringIO(lines, newline=""), delimiter=mark), [])) for mark in marks}
    return known if known and counts[known] > 1 else max(marks, key=lambda mark: counts[mark])


def check_names(names: Sequence[str], file: DelimitedFile) -> tuple[str, ...]:
    """Return the names of the columns. Raises DataError where there are none, or two are equal: the first line may be a row."""
    if not any(names):
        raise DataError(f"{file.path}, line 1: must name the columns, it is empty")
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        rule = f"{file.path}, line 1: columns must have different names, two are called {twice}"
        raise DataError(file.row_fault or rule, faq="first-line")
    return tuple(names)


def given_names(fields: Sequence[str], columns: tuple[str, ...], label: str | None, path: Path) -> tuple[str, ...]:
    """Return the names of the fields of a file without a header, from `columns` of the schema; its rows may leave out `label`.
    Raises DataError where there are more or fewer fields."""
    if label in columns and len(fields) == len(columns) - 1:
        return tuple(name for name in columns if name != label)
    if len(fields) != len(columns):
        raise DataError(
            f"{path}, row 1: must have the {counted(len(columns), 'field')} that columns names under [file] of the schema, got "
            f"{len(fields)}"
        )
    return columns


def _decoded(start: bytes, encoding: str, path: Path, skip_bad_rows: bool) -> str:
    """Decode the beginning of a file; it may end inside a character. Raises DataError for other bytes, in rows only where these
    are not skipped."""
    for cut in range(4):
        try:
            return start[: len(start) - cut].decode("utf-8-sig" if encoding == "utf-8" else encoding)
        except UnicodeDecodeError as error:
            fault = error
            if error.end < len(start) - 8:
                break
    if skip_bad_rows:
        lines = start.decode("utf-8-sig" if encoding == "utf-8" else encoding, "other_bytes")
        if OTHER_BYTES not in (lines.splitlines() or [""])[0]:
            return lines
    raise DataError(f"{path} must be in {encoding}, byte {fault.start} is {start[fault.start]:#04x}; {WAY_OUT}")
