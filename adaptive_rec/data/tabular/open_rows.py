"""Opens a file of rows, of whatever format, and gives it the columns that folders and other parts say it has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adaptive_rec.data.file_kind import ARROW, ARROW_STREAM, JSON_LINES, PARQUET, kind_of
from adaptive_rec.data.tabular.arrow_files import ArrowFile, ParquetFile
from adaptive_rec.data.tabular.delimited import DelimitedFile
from adaptive_rec.data.tabular.files import partition_values
from adaptive_rec.data.tabular.json_lines import JsonLinesFile
from adaptive_rec.data.tabular.schema_file import FileSchema
from adaptive_rec.errors import UsageError
from adaptive_rec.units import counted

if TYPE_CHECKING:
    import pyarrow as pa


class RowFile(Protocol):
    """A file of rows in named columns."""

    path: Path
    names: tuple[str, ...]
    schema: pa.Schema | None
    """The types of its columns; None where all of them are texts."""
    written: pa.Schema | None
    """The same as `as_written` yields them."""
    delimiter: str
    """The character between fields, empty where there is none."""
    escape: str
    """The character before marks inside fields, empty where there is none."""

    @property
    def bad_rows(self) -> int:
        """Rows that `batches` could not read and has skipped."""
        ...

    @property
    def end(self) -> int:
        """The place behind the last row, once all were read."""
        ...

    @property
    def place(self) -> int | None:
        """The place at which the batch begins that was yielded last; None: reading cannot begin there."""
        ...

    @property
    def read_ratio(self) -> float:
        """Share of the file that `batches` has read."""
        ...

    def batches(self, columns: Sequence[str], place: int = 0, rows_before: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield these columns of all rows, in order, from a place on, which has `rows_before` before it. Raises DataError."""
        ...

    def as_written(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of all rows in the types that the file has. Raises DataError."""
        ...


def check_pyarrow() -> None:
    """Raise UsageError where pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise UsageError("reading CSV, TSV and Parquet files needs pyarrow: pip install pyarrow", faq="pyarrow") from None


def open_rows(
    path: Path, file: FileSchema, skip_bad_rows: bool = False, grows: bool = False, label: str | None = None
) -> RowFile:
    """Open a file of rows by its first bytes; a CSV or TSV file may be one that `grows`, and without a header its rows may leave
    out `label`. Raises DataError, and UsageError where pyarrow is not installed."""
    check_pyarrow()
    kind = kind_of(path)
    rows: RowFile
    if kind == PARQUET:
        rows = ParquetFile(path)
    elif kind in (ARROW, ARROW_STREAM):
        rows = ArrowFile(path, kind == ARROW_STREAM)
    elif kind == JSON_LINES:
        rows = JsonLinesFile(path, skip_bad_rows)
    else:
        rows = DelimitedFile(path, file, skip_bad_rows, grows, label)
    found = partition_values(Path(os.path.abspath(path))) if file.partitions else {}
    added = {name: found[name] for name in file.partitions if name in found and name not in rows.names}
    return WithColumns(rows, added, {}) if added else rows


class WithColumns:
    """A file of rows with columns that have one value in all of them."""

    def __init__(self, rows: RowFile, values: Mapping[str, str | None], kinds: Mapping[str, pa.DataType]) -> None:
        """`kinds`: types of columns that have no value in this file, but may have a type there; the others are texts."""
        import pyarrow

        self.rows, self._values = rows, values
        self._kinds = {**dict.fromkeys(values, pyarrow.string()), **kinds}
        self.path, self.delimiter, self.escape = rows.path, rows.delimiter, rows.escape
        own = [name for name in rows.names if name not in self._kinds]
        self.names = (*own, *self._kinds)
        texts = [pyarrow.field(name, pyarrow.string()) for name in own]
        added = [pyarrow.field(name, kind) for name, kind in self._kinds.items()]
        all_texts = rows.schema is None and not kinds
        before = texts if rows.schema is None else [field for field in rows.schema if field.name in own]
        self.schema: pa.Schema | None = None if all_texts else pyarrow.schema([*before, *added])
        written = rows.written
        self.written = None if all_texts or written is None else pyarrow.schema([*(f for f in written if f.name in own), *added])
        """The columns as `as_written` yields them."""

    @property
    def bad_rows(self) -> int:
        return self.rows.bad_rows

    @property
    def read_ratio(self) -> float:
        return self.rows.read_ratio

    @property
    def end(self) -> int:
        return self.rows.end

    @property
    def place(self) -> int | None:
        return self.rows.place

    def batches(self, columns: Sequence[str], place: int = 0, rows_before: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield these columns of all rows; where all of them are added ones, another one is read for their number."""
        return self._added(self.rows.batches(self._own(columns), place, rows_before), columns)

    def as_written(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of all rows in the types that the file has."""
        return self._added(self.rows.as_written(self._own(columns)), columns)

    def _own(self, columns: Sequence[str]) -> list[str]:
        return [name for name in columns if name not in self._kinds] or [next(name for name in self.rows.names if name)]

    def _added(self, batches: Iterator[pa.RecordBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        for batch in batches:
            arrays = [
                batch.column(name)
                if name not in self._kinds
                else pyarrow.repeat(pyarrow.scalar(self._values.get(name), self._kinds[name]), batch.num_rows)
                for name in columns
            ]
            yield pyarrow.record_batch(arrays, names=list(columns))


def text_of(rows: RowFile) -> DelimitedFile | None:
    """Return the CSV or TSV file of rows, with columns of folders or without; None where they are of another kind."""
    while isinstance(rows, WithColumns):
        rows = rows.rows
    return rows if isinstance(rows, DelimitedFile) else None


class Parts:
    """Files that are read as one table, with the columns of all of them."""

    def __init__(self, paths: Sequence[Path], file: FileSchema, label: str | None = None) -> None:
        """`label`: a column that rows without a header may leave out."""
        self._paths, self._file, self._label = paths, file, label

    @cached_property
    def _opened(self) -> list[RowFile]:
        return [open_rows(path, self._file, skip_bad_rows=True, label=self._label) for path in self._paths]

    def lacking(self, columns: Sequence[str]) -> list[str]:
        """Say which of these columns some of the files lack and others have."""
        return lacking([set(rows.names) for rows in self._opened], columns) if len(self._paths) > 1 else []

    def all_have(self, column: str) -> bool:
        """Return whether each of the files has a column."""
        return all(column in rows.names for rows in self._opened)

    @cached_property
    def kinds(self) -> dict[str, pa.DataType]:
        """The type of each column in the first file that has it with one."""
        import pyarrow as pa

        found: dict[str, pa.DataType] = {}
        for rows in self._opened:
            for name in rows.names:
                kind = pa.string() if rows.schema is None else rows.schema.field(name).type
                if name not in found or pa.types.is_null(found[name]):
                    found[name] = kind
        return found

    def completed(self, rows: RowFile, columns: Sequence[str]) -> RowFile:
        """Return a file with nulls for those of the columns of which only other files have values, or a type."""
        lacking = [name for name in columns if name not in rows.names or _is_null(rows, name)]
        if not lacking or len(self._paths) < 2:
            return rows
        added = {name: self.kinds[name] for name in lacking if name in self.kinds}
        return WithColumns(rows, {}, added) if added else rows


def _is_null(rows: RowFile, name: str) -> bool:
    """Whether a file says of a column that all of its values are null."""
    import pyarrow as pa

    return rows.schema is not None and bool(pa.types.is_null(rows.schema.field(name).type))


def lacking(names: Sequence[set[str]], columns: Sequence[str]) -> list[str]:
    """Say which of these columns some of several files lack and others have. `names`: the columns of each file."""
    counts = {column: sum(column not in each for each in names) for column in columns}
    return [
        f"{column} is missing in {count:,} of {counted(len(names), 'file')}: its values are missing there"
        for column, count in counts.items()
        if 0 < count < len(names)
    ]


def with_rows(paths: Sequence[Path], file: FileSchema) -> list[Path]:
    """Return the files that have a row; all of them where none has."""
    if len(paths) < 2:
        return list(paths)
    return [path for path in paths if _has_row(path, file)] or list(paths)


def _has_row(path: Path, file: FileSchema) -> bool:
    rows = open_rows(path, file, skip_bad_rows=True)
    named = [name for name in rows.names if name][:1]
    return any(batch.num_rows for batch in rows.batches(named)) or rows.bad_rows > 0
