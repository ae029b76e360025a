"""CSV, TSV and Parquet files as a source of raw keys: rows are read as they are trained on, in the order of the files."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, FeatureSpec, Position, TableSpec
from adaptive_rec.config.tree import Config
from adaptive_rec.data.criteo import measured_rows, row_ranges, validation_rows
from adaptive_rec.data.loaded_samples import Columns, LoadedSamples, to_batch
from adaptive_rec.data.prepare.raw import SparseColumn
from adaptive_rec.data.prepared import MEASURED_ROWS
from adaptive_rec.data.source import RowStream, epoch_batches, kept_rows, named_tables
from adaptive_rec.data.split_facts import Labels
from adaptive_rec.data.standard import Standard
from adaptive_rec.data.tabular.file_rows import FileRows
from adaptive_rec.data.tabular.files import files_of
from adaptive_rec.data.tabular.schema import load_schema
from adaptive_rec.data.tabular.trained import TrainedColumns
from adaptive_rec.data.weights import WeightFacts
from adaptive_rec.errors import ConfigError, DataError


class TabularSource(RowStream):
    """The file or folder `data.source`, which `data.schema_file` describes. Ids are raw keys; a table has `data.max_table_rows`
    rows.

    Ranges of the data are shares of its well-formed rows by position. All malformed rows are counted with the first batch.
    """

    def __init__(self, config: Config) -> None:
        schema = load_schema(Path(config.data.schema_file), "data.schema_file")
        self.has_groups = bool(schema.group.column)
        """Whether rows have groups, within which they are ranked."""
        by_time, skips = config.data.order == "time", config.data.on_bad_row == "skip"
        if by_time and not schema.time.column:
            raise ConfigError(
                'data.order must be "file" where rows have no time, got "time"; name their column in the schema: time = "COLUMN"'
            )
        self.schema = schema
        self._rows = rows = FileRows(files_of(Path(config.data.source)), schema, skips, by_time)
        self.malformed_rows = rows.bad_rows
        self.rows = len(rows)
        self._train, self._test = self.ranges = row_ranges(config, len(rows))
        """The training and the held-out rows."""
        self._validation = validation_rows(config, len(rows))
        train, held_out = (Labels(len(part), rows.positives(part)) for part in self.ranges)
        self.labels = train, held_out
        rows.forget_labels()
        self.train_samples, self.test_samples = len(self._train), len(self._test)
        self.validation_samples = len(self._validation)
        self.tables, self.features = specs(config, rows.columns)
        self._columns = columns_of(rows.columns)
        self.single_names = tuple(column.name for column in rows.columns if not column.bag)
        """The features that are no bags."""
        self.dense_features = len(rows.dense_names)
        self.epochs = config.data.epochs
        parts = self._dense_parts(measured_rows(config, self._train)) if schema.standard_columns else iter(())
        self._standard = Standard.of(schema.standard_columns, schema.standard_missing, parts)
        self.weights = WeightFacts.of(schema, self._weight_parts() if schema.is_weighted else ())
        bag_C = tuple(column.bag for column in rows.columns)
        self._trained = TrainedColumns(schema.with_types(rows.kind_of, bag_C), bag_C, self._standard)

    def with_epochs(self, epochs: int) -> TabularSource:
        """Return this source with another number of passes over the training rows."""
        source = copy(self)
        source.epochs = epochs
        return source

    def trained_columns(self) -> TrainedColumns:
        """Return what scoring other files takes."""
        return self._trained

    def _read(self, rows: range, position: Position, epoch: int, samples: int, batch_size: int) -> Iterator[Batch]:
        """Read one epoch of a range from the position on."""
        left: RowFeed | None = None
        for start, stop, after in epoch_batches(position, epoch, samples, batch_size):
            left = left or RowFeed(self._rows.read(rows.start + start))
            batch = to_batch(left.take(stop - start), self._columns, after)
            counted = self.malformed_rows if rows is self._train and epoch == start == 0 else 0
            yield replace(batch, dense_BX=self._standard.apply(batch.dense_BX), malformed_rows=counted)

    def pieces(self, wanted: list[range], most_passed: int) -> list[tuple[int, LoadedSamples]]:
        """Return ranges of rows with their raw keys as ids, as `FileRows.pieces` does. Raises DataError."""
        return self._rows.pieces(wanted, most_passed)

    def _dense_parts(self, rows: range) -> Iterator[NDArray[np.float32]]:
        """Yield the dense features of some rows."""
        for pieces in self._without_keys(rows):
            yield np.concatenate([piece.dense_BX for piece in pieces])

    def _weight_parts(self) -> Iterator[NDArray[np.float32]]:
        """Yield the weights of the training rows, which have some."""
        for pieces in self._without_keys(self._train):
            yield from (piece.weights_B for piece in pieces if piece.weights_B is not None)

    def _without_keys(self, rows: range) -> Iterator[list[LoadedSamples]]:
        """Yield rows in pieces, without their keys unless a row may be malformed by a key alone."""
        left = RowFeed(self._rows.read(rows.start, dense_only=not self.malformed_rows))
        for start in range(0, len(rows), MEASURED_ROWS):
            yield left.take(min(MEASURED_ROWS, len(rows) - start))


class RowFeed:
    """Rows that come in blocks, taken a number at a time."""

    def __init__(self, blocks: Iterator[LoadedSamples]) -> None:
        self._blocks = blocks
        self._block: LoadedSamples | None = None
        self._place = 0

    def take(self, rows: int) -> list[LoadedSamples]:
        """Return the next rows, in pieces. Raises DataError where there are not so many."""
        pieces: list[LoadedSamples] = []
        while rows:
            if self._block is None:
                self._block, self._place = next(self._blocks, None), 0
                if self._block is None:
                    raise DataError(
                        f"data.source must keep its rows while it is read, {rows} of them are not there any more"
                    )
            size = len(self._block.labels_B)
            stop = min(self._place + rows, size)
            pieces.append(self._block[self._place : stop])
            rows -= stop - self._place
            self._place = stop
            if stop == size:
                self._block = None
        return pieces


def specs(config: Config, columns: tuple[SparseColumn, ...]) -> tuple[tuple[TableSpec, ...], tuple[FeatureSpec, ...]]:
    """Return the tables that columns name, in the order in which they come, and a feature for each column."""
    names = list(dict.fromkeys(column.table for column in columns))
    tables = named_tables(config, dict.fromkeys(names, kept_rows(config, config.data.max_table_rows)))
    return tables, tuple(FeatureSpec(c.name, names.index(c.table), config.data.pooling) for c in columns)


def columns_of(columns: tuple[SparseColumn, ...]) -> Columns:
    """Return which features columns become: one each."""
    single = tuple(f for f, column in enumerate(columns) if not column.bag)
    bags = tuple(f for f, column in enumerate(columns) if column.bag)
    return Columns(single, bags, (0,) * len(bags), len(columns))
