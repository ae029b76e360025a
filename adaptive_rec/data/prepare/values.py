"""The values that ids stand for: a file of each table of a CSV, TSV or Parquet source, ``NAME_values.arrow``; of a public log
whose lines are rows their keys, ``NAME_keys.npy``.

It is an Arrow IPC file with one column: entry k is the value of id k + 2, as it was in the data. While a source is read, the
distinct
values of each block and the lookup where each of them comes first are written to a scratch file. Ids are given in the order of
first
occurrence, so one pass over these files in the order of numbering finds each value when its id comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.prepare.arrays import NpyWriter
from adaptive_rec.data.prepare.numbering import KeyFile
from adaptive_rec.errors import DataError
from adaptive_rec.kernels.number_keys import FIRST_ID

if TYPE_CHECKING:
    import pyarrow as pa

COLUMN = "value"


def values_file(table: str) -> str:
    return f"{table}_values.arrow"


def table_keys_file(table: str) -> str:
    return f"{table}_keys.npy"


class FirstValues:
    """The scratch file of a column's values, written while a source is read. It is a context."""

    def __init__(self, path: Path) -> None:
        self._path, self._lookups_before = path, 0
        self._files = ExitStack()
        self._writer: Any = None
        self._type: pa.DataType | None = None
        path.write_bytes(b"")  # a column without any value has an empty file

    def append(self, values: pa.Array, lookups_U: NDArray[np.int64], lookups: int) -> None:
        """Add the values of a block with the lookup in it, of all `lookups`, where each comes first. Raises DataError where they
        have another type than those before."""
        import pyarrow as pa

        if len(values):
            positions = pa.array(self._lookups_before + lookups_U)
            if self._writer is None:
                schema = pa.schema([(COLUMN, values.type), ("lookup", pa.int64())])
                self._writer = self._files.enter_context(pa.ipc.new_stream(self._path, schema))
            elif values.type != self._type:
                raise DataError(f"values of one column must have one type, got {values.type} after {self._type}")
            self._type = values.type
            self._writer.write_batch(pa.record_batch([values, positions], names=[COLUMN, "lookup"]))
        self._lookups_before += lookups

    def __enter__(self) -> FirstValues:
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()


@dataclass(frozen=True)
class ColumnIds:
    """The files of one column of one source: its first values, and the ids of all its lookups."""

    values_path: Path
    ids_path: Path
    offset_bytes: int
    """Length of the header of the file of ids."""
    lookups: int

    def first(self) -> Iterator[tuple[Any, NDArray[np.int32]]]:
        """Yield values and their ids, block by block."""
        if self.values_path.stat().st_size == 0:
            return
        import pyarrow as pa

        ids_N = np.memmap(self.ids_path, "<i4", "r", self.offset_bytes, (self.lookups,))
        with pa.ipc.open_stream(self.values_path) as stream:
            for batch in stream:
                yield batch.column(0), np.asarray(ids_N[batch.column(1).to_numpy()])


def write_table_values(columns: Sequence[ColumnIds], rows: int, path: Path) -> None:
    """Write the values of a table of `rows` rows. `columns` come in the order of numbering. Raises DataError."""
    import pyarrow as pa

    following, writer = FIRST_ID, None
    with ExitStack() as stack:
        for column in columns:
            for values, ids_U in column.first():
                new_U = np.flatnonzero(ids_U >= following)
                if not len(new_U):
                    continue
                if (ids_U[new_U] != np.arange(following, following + len(new_U))).any():
                    raise DataError(
                        f"{path.name}: ids must come in the order of first occurrence; prepare the data again"
                    )
                if writer is None:
                    kind = values.type
                    writer = stack.enter_context(pa.ipc.new_file(path, pa.schema([(COLUMN, kind)])))
                elif values.type != kind:
                    raise DataError(
                        f"columns of a table must have one type in all sources, {path.name.partition('_values.')[0]} gets "
                        f"{values.type} after {kind}"
                    )
                writer.write_batch(pa.record_batch([values.take(new_U)], names=[COLUMN]))
                following += len(new_U)
        if writer is None:
            stack.enter_context(pa.ipc.new_file(path, pa.schema([(COLUMN, pa.null())])))
    if following != rows:
        raise DataError(f"{path.name} must hold a value for each of {rows - FIRST_ID} ids, got {following - FIRST_ID}")


def write_table_keys(files: Sequence[KeyFile], rows: int, path: Path) -> None:
    """Write the keys of the ids of a table of `rows` rows, from id 2 on. Files come in the order of numbering, so an id above all
    before it comes first there. Raises DataError."""
    highest, kind = FIRST_ID - 1, f"<u{max(file.key_bytes for file in files)}"
    with NpyWriter(path, kind, None) as out:
        for file in files:
            for start, keys_N in file.chunks():
                offset_bytes = len(file.header) + 4 * start
                ids_N = np.memmap(file.ids_path, "<i4", "r", offset_bytes, (len(keys_N),))
                highest_N = np.maximum.accumulate(np.append(np.int32(highest), ids_N))
                out.append(keys_N[ids_N > highest_N[:-1]].astype(kind))
                highest = int(highest_N[-1])
    if out.rows != rows - FIRST_ID:
        raise DataError(f"{path.name} must hold a key for each of {rows - FIRST_ID} ids, got {out.rows}")


class TableValues:
    """The values of a table's ids, in a file that is mapped."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        try:
            with pa.memory_map(str(path)) as file:
                self._values = pa.ipc.open_file(file).read_all().column(0)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} must be the values of a table, as data prepare writes them: {error}") from None
        self.type: pa.DataType = self._values.type

    def __len__(self) -> int:
        return len(self._values)

    def of(self, row: int) -> Any:
        """Return the value of an id: an integer or a text; None for the ids of missing and of infrequent values."""
        return self._values[row - FIRST_ID].as_py() if FIRST_ID <= row < FIRST_ID + len(self._values) else None

    def row_of(self, text: str) -> int | None:
        """Return the id of a value that is given as a text, as a person types it; None where the table has no such value."""
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            wanted = pa.scalar(text).cast(self.type)
        except pa.ArrowException:
            return None
        place = pc.index(self._values, wanted).as_py() if len(self._values) else -1
        return None if place < 0 else FIRST_ID + int(place)

    def all(self) -> pa.ChunkedArray:
        """Return the values of the ids from 2 on."""
        return self._values
