"""Files of typed columns, as Arrow holds them: Parquet, and Arrow's own files and streams (Feather V2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_ROWS = 1 << 15


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
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{path} must be a Parquet file: {error}") from None
        self.schema: pa.Schema | None = self._file.schema_arrow
        self.names = tuple(self._file.schema_arrow.names)

    def batches(self, columns: Sequence[str], place: int = 0, rows_before: int = 0) -> Iterator[pa.RecordBatch]:
        """A place is a row group. Raises DataError where a group has other rows than the file's footer says."""
        import pyarrow

        groups = self._file.num_row_groups
        try:
            for group in range(place, groups):
                self.place, rows = group, 0
                for batch in self._file.iter_batches(BLOCK_ROWS, row_groups=[group], columns=list(columns)):
                    yield batch
                    self.place, rows = None, rows + batch.num_rows
                said = self._file.metadata.row_group(group).num_rows
                if columns and rows != said:
                    raise DataError(f"{self.path}: row group {group} must have the {said} rows of the footer, got {rows}")
                self.read_ratio = (group + 1) / groups
            self.end = groups
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
            self.schema: pa.Schema | None = self._opened(None).schema
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{path} must be a complete Arrow {'stream' if is_stream else 'file'}: {error}") from None
        self.names = tuple(self.schema.names)

    def _opened(self, fields: list[int] | None) -> Any:
        from pyarrow import ipc, memory_map

        options = ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        return (ipc.open_stream if self._is_stream else ipc.open_file)(memory_map(str(self.path)), options=options)

    def batches(self, columns: Sequence[str], place: int = 0, rows_before: int = 0) -> Iterator[pa.RecordBatch]:
        """A place is a record batch."""
        import pyarrow

        fields = [self.names.index(name) for name in columns]
        try:
            number = -1
            for number, whole in enumerate(self._record_batches(fields, place), place):
                self.place = number
                batch = whole.select(list(columns))
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
