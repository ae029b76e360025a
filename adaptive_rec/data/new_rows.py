"""New rows for a trained model: files whose values become the ids, and whose numbers the features, that the model was trained
on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.data.prepare.formats import check_source
from adaptive_rec.data.prepare.meta import Meta
from adaptive_rec.data.prepare.raw import MISSING_KEY, RawBlock
from adaptive_rec.data.prepare.values import TableValues, values_file
from adaptive_rec.data.prepared import PreparedSource
from adaptive_rec.data.prepared_arrays import ColumnBags, LoadedSamples, offsets_of
from adaptive_rec.data.tabular.reader import TabularReader
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.data.tabular.values import keys_of
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.kernels.number_keys import FIRST_ID, INFREQUENT_ID, MISSING_ID

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Unknown:
    """Lookups of a column whose value is new to the model. They read the row of infrequent values."""

    lookups: int = 0
    unknown: int = 0


class NewRows:
    """Files of new rows as batches, in their order. Values that the model does not know are counted."""

    def __init__(self, source: PreparedSource, folder: Path, paths: Sequence[Path], labelled: bool) -> None:
        """`source` is the data that the model was trained on, prepared in `folder`. Raises UsageError where it has no schema,
        DataError
        where a file does not fit it."""
        self._source, meta = source, source.meta
        schema = schema_of(meta, folder)
        self._values = {table.name: TableValues(folder / values_file(table.name)) for table in meta.tables}
        schema = with_types(schema, {name: values.type for name, values in self._values.items()})
        self._maps = {name: KeyedIds(values) for name, values in self._values.items()}
        for path in paths:
            check_source(path)
        self._readers = [TabularReader(path, schema, skip_bad_rows=False, labelled=labelled) for path in paths]
        self._columns = meta.columns
        for path, reader in zip(paths, self._readers, strict=True):
            for column, trained in zip(reader.columns, meta.columns, strict=True):
                if column.bag != trained.bag:
                    wanted, got = ("lists", "single values") if trained.bag else ("single values", "lists")
                    raise DataError(
                        f"{path}, column {column.name}: must hold {wanted}, as the model was trained on, got {got}"
                    )
        self.unknown = {column.name: Unknown() for column in meta.columns}
        self.rows = 0
        """Rows that `batches` has yielded so far."""

    @property
    def read_ratio(self) -> float:
        return sum(reader.read_ratio for reader in self._readers) / len(self._readers)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield all rows, file by file. Raises DataError for a malformed one."""
        for reader in self._readers:
            for block in reader.blocks():
                samples = self._samples(block)
                rows = len(samples.labels_B)
                for start in range(0, rows, batch_size):
                    part = samples[start : min(start + batch_size, rows)]
                    self.rows += len(part.labels_B)
                    yield self._source.batch_of(part)

    def _samples(self, block: RawBlock) -> LoadedSamples:
        singles, bags = [], []
        for column, keys_N, lengths_B in zip(self._columns, block.values_F, block.lengths_F, strict=True):
            ids_N = self._maps[column.table].ids(keys_N)
            counted = self.unknown[column.name]
            counted.lookups += len(ids_N)
            counted.unknown += int(np.count_nonzero(ids_N == INFREQUENT_ID))
            if lengths_B is None:
                singles.append(ids_N)
            else:
                bags.append(ColumnBags(ids_N, offsets_of(lengths_B.astype(np.int64))))
        labels_B = block.labels_B.astype(np.int32)
        ids_BC = np.stack(singles, axis=1) if singles else np.empty((len(labels_B), 0), dtype=np.int32)
        return LoadedSamples(block.dense_BX, labels_B, ids_BC, tuple(bags))


class KeyedIds:
    """The ids of a table by the keys of their values; 12 bytes a value."""

    def __init__(self, values: TableValues) -> None:
        chunks = [keys_of(chunk) for chunk in values.all().chunks]
        keys_U = np.concatenate([np.empty(0, dtype=np.uint64), *chunks])
        order = np.argsort(keys_U)
        self._keys_U, self._ids_U = keys_U[order], (order + FIRST_ID).astype(np.int32)

    def ids(self, keys_N: NDArray[np.uint64] | NDArray[np.uint32]) -> NDArray[np.int32]:
        """Return the id of each key: that of its value, of a missing value, or, where it is unknown, of infrequent values."""
        ids_N = np.full(len(keys_N), INFREQUENT_ID, dtype=np.int32)
        if len(self._keys_U):
            place_N = np.minimum(np.searchsorted(self._keys_U, keys_N), len(self._keys_U) - 1)
            known_N = self._keys_U[place_N] == keys_N
            ids_N[known_N] = self._ids_U[place_N[known_N]]
        ids_N[keys_N == MISSING_KEY] = MISSING_ID
        return ids_N


def schema_of(meta: Meta, folder: Path) -> Schema:
    """Return the schema of a prepared folder. Raises UsageError where it was made of another format."""
    if meta.columns_schema is None:
        raise UsageError(
            f"the model must have been trained on CSV, TSV or Parquet files, whose columns have names and values; {folder} was "
            f"prepared from format {meta.job.format}"
        )
    return meta.columns_schema


def with_types(schema: Schema, kinds: dict[str, pa.DataType]) -> Schema:
    """Return a schema whose columns have the types that their tables' values have, whatever kind of file comes next."""
    import pyarrow as pa

    def kind(table: str) -> str:
        found = kinds[table]
        return "integer" if pa.types.is_integer(found) else "text" if pa.types.is_string(found) else ""

    columns = [column.model_copy(update={"type": kind(column.table_name)}) for column in schema.sparse]
    return schema.model_copy(update={"sparse": tuple(columns)})
