"""The input of `data prepare`: blocks of rows with keys in place of ids. One reader reads one source file.

A format is a class with the protocol `RawReader`; `recipes/` lists those of public logs by name. ``Reader(path, skip_bad_rows,
seed)`` opens the file (formats with histories take their length too) and raises DataError where that fails. All random
numbers come from `seed` alone, so that an interrupted run can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from adaptive_rec.batch import BESIDE
from adaptive_rec.config.knobs import Frozen
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

Keys = NDArray[np.uint32] | NDArray[np.uint64]
MISSING_KEY = 0
"""The key of a missing value, and of no other value; it becomes id 0."""


@dataclass(frozen=True)
class SparseColumn:
    """A sparse column: one key a row, or a bag of any number of them."""

    name: str
    table: str
    """The embedding table; columns that name the same table share its ids. Most columns have a table of their own."""
    bag: bool = False


class HistoryColumn(Frozen):
    """A column of bags that holds histories: the keys of a bag are in order, oldest first."""

    column: str
    candidate: str
    """The column, without bags, of the item that follows the history; it has the same table."""


class SequenceColumns(Frozen):
    """The columns of a sample's history. Each step of it becomes a feature when the sample is read for training."""

    steps: int = Field(ge=1)
    """The length of the longest possible history."""
    histories: tuple[HistoryColumn, ...] = Field(min_length=1)
    """All of them have bags of the same length in a row."""
    dense: tuple[tuple[str, ...], ...]
    """Dense columns by step, `steps` of each kind, oldest first; the columns of missing steps, the first ones, are 0."""
    length: str
    """The dense column that holds the length of a row's history."""


@dataclass(frozen=True)
class RawBlock:
    """Some rows in the order of the source, at most tens of thousands, since a block is held in memory."""

    dense_BX: NDArray[np.float32]
    """Transformed and finite, as the model sees them."""
    labels_B: NDArray[np.float32]
    """0 or 1."""
    values_F: list[Keys]
    """The keys of each column: one a row, or those of the rows' bags one after another. All blocks of a column have
    one dtype."""
    lengths_F: list[NDArray[np.int32] | None]
    """Keys of each row's bag; None for a column that has exactly one a row."""
    firsts_F: list[tuple[pa.Array, NDArray[np.int64]]] | None = None
    """The distinct values of each column as they are in the source, and the lookup where each comes first, in that order. None
    for formats whose values are not kept."""
    times_B: NDArray[np.int64] | None = None
    """When each row was, in microseconds since 1970, UTC. None for readers whose rows have no time."""
    weights_B: NDArray[np.float32] | None = None
    """How much each row counts, at least 0; None where the schema weights no rows."""
    groups_B: NDArray[np.int64] | None = None
    """The raw key of each row's group; None where the schema names no column of groups."""


class RawReader(Protocol):
    """A reader of one source file. Other files of the same format and options have the same columns."""

    dense_names: tuple[str, ...]
    """The names of the dense columns, at least one."""
    dense_transform: str
    """The transformation of the dense features in words, as `meta.json` has it."""

    @property
    def has_times(self) -> bool:
        """Whether blocks have `times_B`."""
        ...

    @property
    def schema(self) -> Schema | None:
        """The schema of a file of the user's own; its blocks have `firsts_F`."""
        ...

    @property
    def columns(self) -> tuple[SparseColumn, ...]: ...

    @property
    def sequence(self) -> SequenceColumns | None:
        """The columns of a row's history, if rows have one."""
        ...

    @property
    def bad_rows(self) -> int:
        """Malformed rows that `blocks` has skipped so far."""
        ...

    @property
    def bad_of(self) -> Mapping[str, int]:
        """The same by the column that breaks its rule first, of files with a schema."""
        ...

    @property
    def read_ratio(self) -> float:
        """Share of the source that `blocks` has read so far, in [0, 1]; an estimate for a progress bar."""
        ...

    def blocks(self) -> Iterator[RawBlock]:
        """Yield the rows in order; called once. A malformed row raises DataError unless bad rows are skipped."""
        ...


def arrays_beside(has_times: bool, schema: Schema | None) -> tuple[str, ...]:
    """Return the names of the arrays that rows have beside their features, of those of `BESIDE`."""
    has = (has_times, schema is not None and schema.is_weighted, schema is not None and bool(schema.group.column))
    return tuple(name for name, there in zip(BESIDE, has, strict=True) if there)


def check_block(block: RawBlock, reader: RawReader) -> None:
    """Raise DataError where a block's shapes disagree with each other or with the reader's columns."""
    rows, columns = len(block.labels_B), reader.columns
    if block.dense_BX.shape != (rows, len(reader.dense_names)):
        raise DataError(
            f"dense features of a block must have shape {(rows, len(reader.dense_names))}, got {block.dense_BX.shape}"
        )
    for column, values, lengths in zip(columns, block.values_F, block.lengths_F, strict=True):
        expected = rows if lengths is None else int(lengths.sum())
        if (lengths is not None) != column.bag or (lengths is not None and len(lengths) != rows):
            raise DataError(f"column {column.name} must have a length for each of {rows} rows just where it has bags")
        if len(values) != expected:
            raise DataError(f"column {column.name} of a block must have {expected} keys, got {len(values)}")
    has = arrays_beside(reader.has_times, reader.schema)
    for name in BESIDE:
        array = getattr(block, name)
        if (name in has) != (array is not None) or (array is not None and len(array) != rows):
            raise DataError(f"a block must have {name} for each of {rows} rows just where its reader says so")
    if reader.sequence is not None:
        check_history(block, reader, reader.sequence)


def check_history(block: RawBlock, reader: RawReader, sequence: SequenceColumns) -> None:
    """Raise DataError where the lengths of a block's histories differ from the reader's length column."""
    expected_B = block.dense_BX[:, reader.dense_names.index(sequence.length)]
    names = [column.name for column in reader.columns]
    for history in sequence.histories:
        lengths_B = block.lengths_F[names.index(history.column)]
        if lengths_B is None or (lengths_B != expected_B).any() or (lengths_B > sequence.steps).any():
            raise DataError(
                f"bags of column {history.column} must have as many keys as column {sequence.length} says, "
                f"at most {sequence.steps}"
            )
