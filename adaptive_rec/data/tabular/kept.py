"""Columns of new rows that are written beside their scores: those that a user names, or keys of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.data.tabular.canonical import canonical
from adaptive_rec.data.tabular.open_rows import RowFile, open_rows
from adaptive_rec.data.tabular.sample import words_of
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.errors import DataError, UsageError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

SCORE = "score"
"""The column of the scores."""
ROW_NAMES = frozenset(
    "id row rowid row_id row_number rownum index idx uuid guid impression_id impressionid imp_id event_id eventid request_id "
    "requestid sample_id sampleid record_id example_id".split()
)
"""Names of columns that are keys of rows where their values differ, whatever a model reads."""
KEY_WORDS = frozenset("id key uuid guid rowid".split())
"""Words in the names of columns that are keys of rows where their values differ and the model does not read them."""


class KeptColumns:
    """Columns of files of new rows, read beside them."""

    def __init__(self, paths: Sequence[Path], schema: Schema, names: Sequence[str] | None) -> None:
        """`names`: the columns to keep, or None for those that look like keys of the rows. Raises UsageError where there is no
        such column, DataError where files have it in different types."""
        self._files = [open_rows(path, schema.file, label=schema.comparison.column or None) for path in paths]
        if names is None:
            found = keys_of_rows(self._files[0], schema)
            self.names = tuple(name for name in found if all(self._is_alike(file, name) for file in self._files))
        else:
            self.names = tuple(dict.fromkeys(names))
            for name in self.names:
                self._check(name)
        self._batches = chain.from_iterable(file.as_written(self.names) for file in self._files)
        self._rest: list[pa.RecordBatch] = []

    @property
    def schema(self) -> pa.Schema:
        """The columns with their types: those of a Parquet file, and texts of others."""
        import pyarrow as pa

        return pa.schema([(name, self._kind(name)) for name in self.names])

    def take(self, rows: int) -> pa.Table:
        """Return the next rows. Raises DataError where there are not so many."""
        import pyarrow as pa

        taken = []
        while rows:
            batch = self._rest.pop() if self._rest else next(self._batches, None)
            if batch is None:
                raise DataError(f"--data must keep its rows while it is read, {rows} of them are not there any more")
            taken.append(self._typed(batch.slice(0, rows)))
            if batch.num_rows > rows:
                self._rest.append(batch.slice(rows))
            rows -= taken[-1].num_rows
        return pa.Table.from_batches(taken).cast(self.schema)

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with columns of nulls alone as other files have them, and without dictionaries of lists."""
        import pyarrow as pa

        arrays = [batch.column(name) for name in self.names]
        arrays = [
            pa.nulls(len(each), field.type)
            if pa.types.is_null(each.type)
            else each.dictionary_decode()
            if pa.types.is_dictionary(each.type) and not pa.types.is_dictionary(field.type)
            else each
            for each, field in zip(arrays, self.schema, strict=True)
        ]
        return pa.record_batch(arrays, names=list(self.names))

    def _kind(self, name: str) -> pa.DataType:
        """Return the type of a column in the first file that has values in it."""
        import pyarrow as pa

        kinds = [_type(file, name) for file in self._files if name in file.names]
        return next((kind for kind in kinds if not pa.types.is_null(kind)), pa.null())

    def _is_alike(self, file: RowFile, name: str) -> bool:
        import pyarrow as pa

        return name in file.names and _type(file, name) in (pa.null(), self._kind(name))

    def _check(self, name: str) -> None:
        """Raise where a column cannot be kept."""
        if name == SCORE:
            raise UsageError(f"--keep must leave {SCORE!r} to the scores, which are written under that name; rename the column")
        first = self._files[0]
        for file in self._files:
            if name not in file.names:
                known = ", ".join(file.names)
                hint = did_you_mean(name, file.names)
                raise UsageError(f"--keep must name columns of {file.path}, got {name!r}; it has {known}{hint}")
            if not self._is_alike(file, name):
                raise DataError(
                    f"{file.path}, column {name}: must have type {self._kind(name)} as in {first.path} to be kept, got "
                    f"{_type(file, name)}"
                )


def keys_of_rows(file: RowFile, schema: Schema) -> list[str]:
    """Return the columns that look like keys of the rows, by their names and the first rows."""
    candidates = [name for name in file.names if _may_be_key(name, schema)]
    batch = next(iter(file.as_written(candidates)), None) if candidates else None
    return [] if batch is None else [name for name in candidates if _all_different(batch.column(name))]


def _may_be_key(name: str, schema: Schema) -> bool:
    if name.lower() in ROW_NAMES:
        return True
    return name not in schema.columns and bool(words_of(name) & KEY_WORDS)


def _all_different(values: pa.Array) -> bool:
    """Return whether there are values, none of them missing, that are all different."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = canonical(values)
    if not len(values) or values.null_count or pa.types.is_nested(values.type):
        return False
    missing = pa.types.is_string(values.type) and pc.any(pc.equal(values, "")).as_py()
    return not missing and bool(pc.count_distinct(values).as_py() == len(values))


def _type(file: RowFile, name: str) -> pa.DataType:
    """Return the type of a column; that of the lists in a dictionary, which Parquet cannot have."""
    import pyarrow as pa

    kind: Any = pa.string() if file.written is None else file.written.field(name).type
    return kind.value_type if pa.types.is_dictionary(kind) and pa.types.is_nested(kind.value_type) else kind
