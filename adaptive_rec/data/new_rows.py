"""New rows for a trained model: files whose values become the ids, and whose numbers the features, that the model was trained
on. They are sources, all of whose rows are held out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import Config
from adaptive_rec.data.loaded_samples import ColumnBags, LoadedSamples, offsets_of, to_batch
from adaptive_rec.data.prepare.formats import check_source
from adaptive_rec.data.prepare.meta import Meta
from adaptive_rec.data.prepare.raw import MISSING_KEY, RawBlock, RawReader, SparseColumn
from adaptive_rec.data.prepare.recipe import recipes
from adaptive_rec.data.prepare.values import TableValues, values_file
from adaptive_rec.data.prepared import PreparedSource
from adaptive_rec.data.prepared_arrays import mapped
from adaptive_rec.data.source import HeldOutRows, Wrapped
from adaptive_rec.data.tabular.file_rows import loaded, of_other_columns
from adaptive_rec.data.tabular.files import partition_values
from adaptive_rec.data.tabular.kinds import Rule, natural_kind
from adaptive_rec.data.tabular.open_rows import Parts
from adaptive_rec.data.tabular.reader import TabularReader
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.data.tabular.stream import columns_of, specs
from adaptive_rec.data.tabular.trained import TrainedColumns
from adaptive_rec.data.tabular.values import keys_of
from adaptive_rec.data.unknown import Unknown
from adaptive_rec.errors import DataError
from adaptive_rec.kernels.number_keys import FIRST_ID, INFREQUENT_ID, MISSING_ID


class NumberedRows(Wrapped):
    """Files with the columns of a prepared folder. Values that its tables do not know are counted."""

    def __init__(self, source: PreparedSource, paths: Sequence[Path], labelled: bool) -> None:
        """Raises UsageError where the folder does not say what its ids stand for, DataError where a file does not fit it."""
        super().__init__(source)
        self._folder, meta = source, source.meta
        self.schema: Schema | None = None
        self.lacking: list[str] = []
        self._readers: Sequence[RawReader]
        if meta.columns_schema is None:
            self._maps = {name: KeyedIds(keys_U) for name, keys_U in folder_keys(meta, source.folder).items()}
            self._readers = open_logs(paths, source, labelled)
        else:
            columns, notes = beside_known(with_folders(folder_columns(source), paths), paths, labelled)
            self.schema = columns.schema
            self._maps = {name: KeyedIds(keys_of_values(each)) for name, each in folder_values(source).items()}
            self._readers = files = open_files(paths, columns, labelled)
            self.lacking = [*notes, *(note for reader in files[:1] for note in reader.lacking)]
        self.has_groups = self.schema is not None and bool(self.schema.group.column)
        """Whether rows have groups, within which they are ranked."""
        self._columns = meta.columns
        self.unknown = {column.name: Unknown() for column in meta.columns}

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        """Yield all rows. Raises DataError for a malformed one."""
        for samples in cut_into_batches(map(self._samples, blocks_of(self._readers)), batch_size):
            yield self._folder.batch_of(samples)

    def _samples(self, block: RawBlock) -> LoadedSamples:
        singles, bags = [], []
        for column, keys_N, lengths_B in zip(self._columns, block.values_F, block.lengths_F, strict=True):
            ids_N = self._maps[column.table].ids(keys_N)
            self.unknown[column.name].count(len(ids_N), int(np.count_nonzero(ids_N == INFREQUENT_ID)))
            if lengths_B is None:
                singles.append(ids_N)
            else:
                bags.append(ColumnBags(ids_N, offsets_of(lengths_B.astype(np.int64))))
        labels_B, beside = block.labels_B.astype(np.int32), (block.times_B, block.weights_B, block.groups_B)
        ids_BC = np.stack(singles, axis=1) if singles else np.empty((len(labels_B), 0), dtype=np.int32)
        return LoadedSamples(block.dense_BX, labels_B, ids_BC, tuple(bags), *beside)


class KeyedRows(HeldOutRows):
    """Files with the columns of files that were trained on by raw keys. Ids are raw keys."""

    def __init__(self, config: Config, columns: TrainedColumns, paths: Sequence[Path], labelled: bool) -> None:
        """Raises DataError where a file does not fit the columns, UsageError where the checkpoint is of a run without rows."""
        columns, notes = beside_known(with_folders(columns, paths), paths, labelled)
        self.schema = schema = columns.schema
        self.has_groups = bool(schema.group.column)
        """Whether rows have groups, within which they are ranked."""
        self._standard = columns.figures()
        self._readers = open_files(paths, columns, labelled)
        self.lacking = [*notes, *(note for reader in self._readers[:1] for note in reader.lacking)]
        sparse = zip(schema.sparse, columns.bag_C, strict=True)
        column_C = tuple(SparseColumn(column.feature, column.table_name, bag) for column, bag in sparse)
        self.tables, self.features = specs(config, column_C)
        self.dense_features = max(1, len(schema.dense))
        self._columns = columns_of(column_C)

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        """Yield all rows. Raises DataError for a malformed one."""
        for samples in cut_into_batches(map(loaded, blocks_of(self._readers)), batch_size):
            batch = to_batch([samples], self._columns, Position())
            yield replace(batch, dense_BX=self._standard.apply(batch.dense_BX))


def with_folders(columns: TrainedColumns, paths: Sequence[Path]) -> TrainedColumns:
    """Return the columns that were trained on with those that the folders of files name, whatever files had them before."""
    file = columns.schema.file
    named = [name for path in paths for name in partition_values(Path(os.path.abspath(path)))]
    file = file.model_copy(update={"partitions": tuple(dict.fromkeys((*file.partitions, *named)))})
    return replace(columns, schema=columns.schema.model_copy(update={"file": file}))


def beside_known(columns: TrainedColumns, paths: Sequence[Path], labelled: bool) -> tuple[TrainedColumns, list[str]]:
    """Return the columns without weights and groups where rows are not `labelled`, or where a file lacks them, and what is to be
    said of that."""
    schema, notes = columns.schema, []
    if not labelled:
        return replace(columns, schema=schema.without_weights().without_groups()), []
    parts = Parts(paths, schema.file)
    if schema.weight and not parts.all_have(schema.weight):
        notes.append(f"no column {schema.weight} in the data: rows are not weighted by it, as those of the training were")
        schema = schema.without_weights(class_weight=False)
    if schema.group.column and not parts.all_have(schema.group.column):
        notes.append(f"no column {schema.group.column} in the data: rows have no groups")
        schema = schema.without_groups()
    return replace(columns, schema=schema), notes


def open_files(paths: Sequence[Path], columns: TrainedColumns, labelled: bool) -> list[TabularReader]:
    """Open files of new rows. Raises DataError where one does not fit the columns that were trained on."""
    for path in paths:
        check_source(path)
    parts = Parts(paths, columns.schema.file, None if labelled else columns.schema.comparison.column or None)
    readers = [TabularReader(path, columns.schema, skip_bad_rows=False, labelled=labelled, parts=parts) for path in paths]
    for path, reader in zip(paths, readers, strict=True):
        for column, bag in zip(reader.columns, columns.bag_C, strict=True):
            if column.bag != bag:
                wanted, got = ("lists", "single values") if bag else ("single values", "lists")
                raise DataError(
                    f"{path}, column {column.name}: must hold {wanted}, as the model was trained on, got {got}"
                )
    return readers


def open_logs(paths: Sequence[Path], source: PreparedSource, labelled: bool) -> list[RawReader]:
    """Open new lines of the public log that a folder was prepared from. Raises DataError where one has other columns."""
    meta, job, readers = source.meta, source.meta.job, []
    column_C = tuple(SparseColumn(column.name, column.table, column.bag) for column in meta.columns)
    for path in paths:
        check_source(path)
        reader = recipes()[job.format].open(path, skip_bad_rows=False, seed=job.seed, labelled=labelled)
        if (reader.columns, reader.dense_names) != (column_C, meta.dense_names):
            raise of_other_columns(path, reader, source.folder, column_C, meta.dense_names)
        readers.append(reader)
    return readers


def blocks_of(readers: Iterable[RawReader]) -> Iterator[RawBlock]:
    """Yield the rows of all files, block by block."""
    for reader in readers:
        yield from reader.blocks()


def cut_into_batches(parts: Iterable[LoadedSamples], batch_size: int) -> Iterator[LoadedSamples]:
    """Cut samples that come in parts into batches of one size; the last one may be smaller. So scores do not depend on where
    blocks and files end."""
    pieces: list[LoadedSamples] = []
    rows = 0
    for part in parts:
        pieces.append(part)
        rows += len(part.labels_B)
        if rows < batch_size:
            continue
        joined = LoadedSamples.joined(pieces)
        full = rows - rows % batch_size
        for start in range(0, full, batch_size):
            yield joined[start : start + batch_size]
        pieces, rows = [joined[full:rows]], rows - full
    if rows:
        yield LoadedSamples.joined(pieces)


class KeyedIds:
    """The ids of a table by the keys of their values, which come in the order of their ids; 12 bytes a value."""

    def __init__(self, keys_U: NDArray[np.uint64] | NDArray[np.uint32]) -> None:
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


def keys_of_values(values: TableValues) -> NDArray[np.uint64]:
    """Return the keys of a table's values."""
    wide = value_type(values) == "whole"  # earlier versions have kept such numbers as they were
    chunks = [keys_of(chunk.cast("string") if wide else chunk) for chunk in values.all().chunks]
    return np.concatenate([np.empty(0, dtype=np.uint64), *chunks])


def folder_keys(meta: Meta, folder: Path) -> dict[str, NDArray[np.uint64] | NDArray[np.uint32]]:
    """Return the keys of the ids of a folder's tables, which was prepared from a public log. Raises UsageError where it has
    none, DataError where a file of keys is damaged."""
    meta.check_has_values(folder)
    ids_of = {table.name: table.rows - FIRST_ID for table in meta.tables}
    return {each.table: _table_keys(folder / each.name, ids_of[each.table]) for each in meta.values}


def _table_keys(path: Path, ids: int) -> NDArray[np.uint64] | NDArray[np.uint32]:
    """Return the keys of a table's ids, of 4 or 8 bytes each. Raises DataError."""
    try:
        return np.array(mapped(path, np.uint32, (ids,)))
    except DataError:
        return np.array(mapped(path, np.uint64, (ids,)))


def folder_values(source: PreparedSource) -> dict[str, TableValues]:
    """Return the values of a prepared folder's tables."""
    return {table.name: TableValues(source.folder / values_file(table.name)) for table in source.meta.tables}


def folder_columns(source: PreparedSource) -> TrainedColumns:
    """Return the columns of a prepared folder that was made of files with a schema."""
    schema = source.meta.columns_schema
    assert schema is not None, "the files have a schema"
    kind_of = {name: value_type(values) for name, values in folder_values(source).items()}
    bag_C = tuple(column.bag for column in source.meta.columns)
    return TrainedColumns(schema.with_types(kind_of, bag_C), bag_C, source.standard)


def value_type(values: TableValues) -> Rule:
    """Return the type of a table's values as a schema has it, empty where it has none: so columns have it in whatever kind of
    file comes next."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = values.type
    if pa.types.is_floating(found):
        return "float"
    if pa.types.is_uint64(found) and len(values) and pc.max(values.all()).as_py() >= 1 << 63:
        return "whole"
    return natural_kind(found) or ""
