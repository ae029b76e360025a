"""A prepared folder as a source: arrays mapped into memory, read in file order or by a seeded shuffle of blocks.

The shuffle is global: blocks of rows come in an order drawn over the whole training range, and the rows of a few dozen successive
blocks, a group, are mixed. So an epoch reads the disk in long pieces and holds one group in memory. The order depends on
(seed, epoch) alone, and the beginning of a group is known without reading the groups before it, so that any position is reached
at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import SLICE, Batch, FeatureSpec, Pooling, Position, SequenceSpec
from adaptive_rec.config.tree import Config
from adaptive_rec.data.criteo import measured_rows, row_ranges, validation_rows
from adaptive_rec.data.left_out import with_all_parts
from adaptive_rec.data.loaded_samples import Columns, LoadedSamples, to_batch
from adaptive_rec.data.prepare.meta import Meta, load_meta
from adaptive_rec.data.prepare.recipe import has_times
from adaptive_rec.data.prepare.values import values_file
from adaptive_rec.data.prepared_arrays import FolderArrays
from adaptive_rec.data.source import Source, epoch_batches, epochs_left, kept_rows, named_tables
from adaptive_rec.data.standard import Standard
from adaptive_rec.data.weights import WeightFacts
from adaptive_rec.errors import ConfigError

BLOCK_ROWS = 4096
GROUP_BLOCKS = 64
MEASURED_ROWS = 1 << 16
"""Rows that are read at a time to measure dense columns."""


class PreparedSource:
    """A source of the arrays of a folder, all source files one after another. A table has the rows of `meta.json`, or
    `data.max_table_rows`, into which further ids are folded unless they are raw keys. Bad rows were left out when the folder was
    made.
    """

    malformed_rows = 0

    def __init__(self, config: Config) -> None:
        self.folder = folder = Path(config.data.source)
        meta = load_meta(folder)
        check_folder_settings(config, meta)
        self.tables = named_tables(config, {table.name: kept_rows(config, table.rows) for table in meta.tables})
        number = {table.name: t for t, table in enumerate(self.tables)}
        columns = Columns.of(meta)
        self.features = folder_features(meta, number, columns, config.data.pooling)
        self.sequence = sequence_spec(meta, columns)
        self.has_groups = meta.columns_schema is not None and bool(meta.columns_schema.group.column)
        """Whether rows have groups, within which they are ranked."""
        self.dense_features = len(meta.dense_names)
        self.epochs = config.data.epochs
        self._shuffle = config.data.shuffle
        whole_T = {table.name: table.rows for table in meta.tables}
        kept_T = whole_T if config.data.ids == "raw" else {table.name: table.rows for table in self.tables}
        order = config.data.order == "time", config.eval.mode == "next_window"
        self.arrays = FolderArrays(folder, meta, tuple(kept_T[column.table] for column in meta.columns), *order)
        self._train, self._test = self.ranges = row_ranges(config, meta.rows)
        """The training and the held-out rows."""
        self._validation = validation_rows(config, meta.rows)
        self.train_samples, self.test_samples = len(self._train), len(self._test)
        self.validation_samples = len(self._validation)
        self.schema = meta.columns_schema
        self.meta, self.standard = meta, self._standard(meta, measured_rows(config, self._train))
        starts = range(self._train.start, self._train.stop, MEASURED_ROWS) if "weights_B" in meta.beside else ()
        weights = (self.arrays.weights(start, min(start + MEASURED_ROWS, self._train.stop)) for start in starts)
        self.weights = WeightFacts.of(meta.columns_schema, weights)

    def _standard(self, meta: Meta, rows: range) -> Standard:
        """Measure the dense columns that are standardised, over some of the training rows."""
        schema = meta.columns_schema
        columns = schema.standard_columns if schema else ()
        starts = range(rows.start, rows.stop, MEASURED_ROWS) if columns else ()
        parts = (self.arrays.dense(start, min(start + MEASURED_ROWS, rows.stop)) for start in starts)
        return Standard.of(columns, schema.standard_missing if schema else (), parts)

    def first_dense(self, rows: int) -> NDArray[np.float32]:
        """Return the dense features of at most so many of the first training rows, as batches have them."""
        start = self._train.start
        return self.standard.apply(self.arrays.dense(start, min(start + rows, self._train.stop)))

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield the batches from `position` on."""
        for epoch in epochs_left(position, self.epochs):
            rows = self._validation if epoch == SLICE else self._train
            mixed = MixedRows(Order(rows, position.seed, epoch), self.arrays) if self._shuffle else None
            for start, stop, after in epoch_batches(position, epoch, len(rows), batch_size):
                if mixed is None:
                    yield self._batch([self.arrays.read(rows.start + start, rows.start + stop)], after)
                else:
                    yield self._batch(mixed.read(start, stop), after)

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        """Yield the held-out rows, or those of the validation slice, in file order."""
        rows = self._validation if validation else self._test
        samples = min(len(rows), max_samples or len(rows))
        for start, stop, _ in epoch_batches(Position(), 0, samples, batch_size):
            yield self._batch([self.arrays.read(rows.start + start, rows.start + stop)], Position())

    def batch_of(self, samples: LoadedSamples) -> Batch:
        """Return new samples, whose ids are those of this folder, as a batch; their ids are folded like the folder's own."""
        self.arrays.fold(samples)
        return self._batch([samples], Position())

    def _batch(self, pieces: list[LoadedSamples], position: Position) -> Batch:
        batch = to_batch(pieces, self.arrays.columns, position)
        return replace(batch, dense_BX=self.standard.apply(batch.dense_BX)) if self.standard.columns else batch


def value_files(source: Source) -> dict[str, Path]:
    """Return the file of the values that ids stand for, of each table of a prepared folder that has one; an id of a table that
    was cut stands for several."""
    source = with_all_parts(source)
    if not isinstance(source, PreparedSource):
        return {}
    whole = {table.name for table, kept in zip(source.meta.tables, source.tables, strict=True) if table.rows == kept.rows}
    files = {name: source.folder.resolve() / values_file(name) for name in whole}
    return {name: path for name, path in files.items() if path.is_file()}


@dataclass
class Order:
    """The shuffled order of an epoch, which maps a place to a row."""

    rows: range
    seed: int
    epoch: int

    def __post_init__(self) -> None:
        blocks = -(-len(self.rows) // BLOCK_ROWS)
        self._blocks = np.random.Generator(np.random.PCG64([self.seed, self.epoch])).permutation(blocks)
        self._missing = blocks * BLOCK_ROWS - len(self.rows)  # of the range's last block, wherever it comes
        self._last_comes = int(np.flatnonzero(self._blocks == blocks - 1)[0])

    def group_start(self, group: int) -> int:
        """Return the place in the order at which a group begins."""
        blocks = min(group * GROUP_BLOCKS, len(self._blocks))
        return blocks * BLOCK_ROWS - (self._missing if self._last_comes < blocks else 0)

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the places from `start` to `stop` as (group, first place in it, place after the last)."""
        group = start // (GROUP_BLOCKS * BLOCK_ROWS)
        while start < stop:
            low, high = self.group_start(group), self.group_start(group + 1)
            if start < high:
                yield group, start - low, min(stop, high) - low
                start = min(stop, high)
            group += 1

    def load(self, group: int, arrays: FolderArrays) -> LoadedSamples:
        """Return the rows of a group in their order. Beside them it holds one block at a time, and all bags twice."""
        blocks = self._blocks[group * GROUP_BLOCKS : (group + 1) * GROUP_BLOCKS].tolist()
        first = [self.rows.start + block * BLOCK_ROWS for block in blocks]
        ranges = [range(row, min(row + BLOCK_ROWS, self.rows.stop)) for row in first]
        drawn = np.random.Generator(np.random.PCG64([self.seed, self.epoch, group]))
        order_S = drawn.permutation(sum(map(len, ranges)))
        return LoadedSamples.joined_in_order((arrays.read(rows.start, rows.stop) for rows in ranges), order_S)


class MixedRows:
    """The rows of an epoch in their shuffled order, of which one group at a time is in memory."""

    def __init__(self, order: Order, arrays: FolderArrays) -> None:
        self._order, self._arrays = order, arrays
        self._group: int | None = None
        self._samples: LoadedSamples | None = None

    def read(self, start: int, stop: int) -> list[LoadedSamples]:
        """Return copies of the rows at the places from `start` to `stop`, in pieces."""
        return [self._of_group(group)[low:high].copied() for group, low, high in self._order.parts(start, stop)]

    def _of_group(self, group: int) -> LoadedSamples:
        if self._samples is None or group != self._group:
            self._samples = None  # before the next one is read
            self._group, self._samples = group, self._order.load(group, self._arrays)
        return self._samples


def check_folder_settings(config: Config, meta: Meta) -> None:
    """Raise ConfigError where a setting contradicts the folder."""
    data = config.data
    if data.order == "time" and not meta.has_times:
        raise ConfigError(f'data.order must be "file" where rows have no time, got "time": {why_no_times(meta)}')
    if data.ids == "hash":
        raise ConfigError(f"data.ids must be auto or contiguous for a prepared folder, got {data.ids}")
    if data.feature_tables:
        raise ConfigError(
            f"data.feature_tables must be empty for a prepared folder, whose meta.json says which columns share a table, "
            f"got {list(data.feature_tables)}"
        )


def why_no_times(meta: Meta) -> str:
    """Return why the rows of a folder have no times, and what can be done."""
    if meta.columns_schema is not None:
        return 'name the column in the schema (time = "COLUMN") and prepare the files again'
    if has_times(meta.job.format):
        return f"the folder was made by {meta.made_by}; prepare it again"
    return f"files of format {meta.job.format} have none; data.shuffle=false keeps their order"


def folder_features(
    meta: Meta, table_numbers: dict[str, int], columns: Columns, pooling: Pooling
) -> tuple[FeatureSpec, ...]:
    """Return a feature for each column, and for each step of a history column: ``NAME_20`` to ``NAME_1``, the last step."""
    steps = dict(zip(columns.bags, columns.steps, strict=True))
    specs: list[FeatureSpec] = []
    for column in meta.columns:
        of_history = range(steps.get(len(specs), 0), 0, -1)
        names = [f"{column.name}_{step}" for step in of_history] or [column.name]
        specs += [FeatureSpec(name, table_numbers[column.table], pooling) for name in names]
    return tuple(specs)


def sequence_spec(meta: Meta, columns: Columns) -> SequenceSpec | None:
    """Return the features and dense columns of the histories' steps, if the folder has histories."""
    if meta.sequence is None:
        return None
    single = dict(zip((c.name for c in meta.columns if not c.bag), columns.single, strict=True))
    bags = dict(zip((c.name for c in meta.columns if c.bag), columns.bags, strict=True))
    steps = range(meta.sequence.steps)
    return SequenceSpec(
        tuple((*(bags[h.column] + t for t in steps), single[h.candidate]) for h in meta.sequence.histories),
        tuple(tuple(meta.dense_names.index(name) for name in names) for names in meta.sequence.dense),
        meta.dense_names.index(meta.sequence.length),
    )
