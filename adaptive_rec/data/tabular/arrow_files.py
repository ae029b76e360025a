"""Files of typed columns, as Arrow holds them: Parquet, and Arrow's own files and streams (Feather V2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.data.tabular.canonical import canonical_batch, canonical_schema
from adaptive_rec.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_ROWS = 1 << 15


def names_of(schema: pa.Schema, path: Path) -> tuple[str, ...]:
    """Return the names of the columns. Raises DataError where two are equal."""
    names = tuple(schema.names)
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path}: columns must have different names, two are called {twice}")
    return names


class ParquetFile:
    """A Parquet file, opened."""

    bad_rows = 0
    delimiter = escape = ""

    def __init__(self, path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        self.path, self.read_ratio, self.end = path, 0.0, 0
        self.place: int | None = 0
        try:
            self._file = pyarrow.parquet.ParquetFile(path)
        except pyarrow.ArrowNotImplementedError as error:
            rule = f"{path} must be a Parquet file of types that pyarrow knows, it says: {error}"
            raise DataError(f"{rule}; cast such columns, of 128 bits for example to DECIMAL(38, 0), or leave them out") from None
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{path} must be a Parquet file: {error}") from None
        self.written = self._file.schema_arrow
        """The columns as `as_written` yields them."""
        self.names = names_of(self.written, path)
        self.schema: pa.Schema | None = canonical_schema(self.written)
        """The columns as `batches` yields them."""

    def batches(self, columns: Sequence[str], place: int = 0, rows_before: int = 0) -> Iterator[pa.RecordBatch]:
        """A place is a row group. Raises DataError where a group has other rows than the file's footer says."""
        import pyarrow

        groups = self._file.num_row_groups
        try:
            for group in range(place, groups):
                self.place, rows = group, 0
                for batch in self._file.iter_batches(BLOCK_ROWS, row_groups=[group], columns=list(columns)):
                    yield canonical_batch(batch.select(list(columns)))
                    self.place, rows = None, rows + batch.num_rows
                said = self._file.metadata.row_group(group).num_rows
                if columns and rows != said:
                    raise DataError(f"{self.path}: row group {group} must have the {said} rows of the footer, got {rows}")
                self.read_ratio = (group + 1) / groups
            self.end = groups
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{self.path} must be a complete Parquet file: {error}") from None

    def as_written(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of all rows in the types that the file has."""
        import pyarrow

        try:
            for batch in self._file.iter_batches(BLOCK_ROWS, columns=list(columns)):
                yield batch.select(list(columns))
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{self.path} must be a complete Parquet file: {error}") from None


class ArrowFile:
    """A file or a stream of Arrow, opened."""

    bad_rows = 0
    delimiter = escape = ""

    def __init__(self, path: Path, is_stream: bool) -> None:
        import pyarrow

        self.path, self.read_ratio, self.end = path, 0.0, 0
        self.place: int | None = 0
        self._is_stream = is_stream
        try:
            self.written = self._opened(None).schema
            """The columns as `as_written` yields them."""
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{path} must be a complete Arrow {'stream' if is_stream else 'file'}: {error}") from None
        self.names = names_of(self.written, path)
        self.schema: pa.Schema | None = canonical_schema(self.written)
        """The columns as `batches` yields them."""

    def _opened(self, fields: list[int] | None) -> Any:
        from pyarrow import ipc, memory_map

        options = ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        return (ipc.open_stream if self._is_stream else ipc.open_file)(memory_map(str(self.path)), options=options)

    def as_written(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of all rows in the types that the file has."""
        return self._selected(columns, 0, lambda batch: batch)

    def batches(self, columns: Sequence[str], place: int = 0, rows_before: int = 0) -> Iterator[pa.RecordBatch]:
        """A place is a record batch."""
        return self._selected(columns, place, canonical_batch)

    def _selected(
        self, columns: Sequence[str], place: int, made: Callable[[pa.RecordBatch], pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow

        fields = [self.names.index(name) for name in columns]
        try:
            number = -1
            for number, whole in enumerate(self._record_batches(fields, place), place):
                self.place = number
                batch = made(whole.select(list(columns)))
                for start in range(0, batch.num_rows, BLOCK_ROWS):
                    yield batch.slice(start, BLOCK_ROWS)
                    self.place = None
                self.read_ratio = 0.0
            self.end, self.read_ratio = number + 1, 1.0
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{self.path} must be a complete Arrow file: {error}") from None

    def _record_batches(self, fields: list[int], place: int) -> Iterator[pa.RecordBatch]:
        file = self._opened(fields)
        if not self._is_stream:
            for number in range(place, file.num_record_batches):
                yield file.get_batch(number)
            return
        for number, batch in enumerate(file):
            if number >= place:
                yield batch
