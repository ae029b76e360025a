"""Criteo TSV files, Kaggle or Terabyte, as sources: held in memory with numbered ids, or streamed with folded ids.

Ranges of a file are shares of its rows by position; skipped malformed rows are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import SLICE, Batch, Position
from adaptive_rec.config.tree import Config
from adaptive_rec.data.criteo_file import CriteoLayout, LineMark, ParsedRows, RowReader, mark_rows, open_at
from adaptive_rec.data.source import (
    RowStream,
    Source,
    cut_rows,
    epoch_batches,
    epochs_left,
    feature_specs,
    feature_tables,
    kept_rows,
    table_specs,
)
from adaptive_rec.errors import DataError
from adaptive_rec.kernels import parse


def open_criteo(config: Config) -> Source:
    """Open the file `data.source` in the way that `data.ids` says."""
    layout = CriteoLayout.of(config)
    marks = mark_rows(layout, parsed=False)
    if is_numbered(config, marks[-1]):
        most = marks[-1].byte // (layout.columns + 1)  # a row has a label, its tabs and the line's end at the least
        return MemorySource(config, layout, min(marks[-1].line, most))
    if layout.skip_bad_rows:
        marks = mark_rows(layout, parsed=True)
    else:
        RowReader(layout, marks[0]).read(ParsedRows.empty(layout, 1))  # a file of other columns is refused before a run begins
    return StreamSource(config, layout, marks)


def is_numbered(config: Config, end: LineMark) -> bool:
    """Return whether ids number the values of a file that ends at a mark, which is held in memory."""
    data = config.data
    return data.ids == "contiguous" or (data.ids == "auto" and end.byte <= data.in_memory_bytes)


class MemorySource:
    """A file held in memory: float32 dense features, int32 ids.

    A table's ids number the values its features have in the whole file, in order of first occurrence; a missing
    value is the value 0. A table has as many rows as there are values, or `data.max_table_rows`, into which
    further ids are folded. With `data.shuffle` each epoch has another order, drawn from (seed, epoch).
    """

    sequence = None

    def __init__(self, config: Config, layout: CriteoLayout, lines: int) -> None:
        reader, rows = RowReader(layout, LineMark(0, 0, 0)), ParsedRows.empty(layout, lines)
        rows = rows[: reader.read(rows)]
        self.malformed_rows = reader.malformed_rows
        self._train, self._test = self.ranges = row_ranges(config, len(rows.labels_B))
        """The training and the held-out rows."""
        self._validation = validation_rows(config, len(rows.labels_B))
        self.features = feature_specs(config)
        self.dense_features = layout.dense_features
        self.train_samples, self.test_samples = len(self._train), len(self._test)
        self.validation_samples = len(self._validation)
        self.epochs = config.data.epochs
        self._shuffle = config.data.shuffle
        self.labels_R = rows.labels_B
        self._dense_RX = rows.dense_BX()
        self._ids_RF, table_rows = number_ids(rows.values_BF, feature_tables(config), partial(kept_rows, config))
        self.tables = table_specs(config, tuple(table_rows.get(t, 1) for t in range(len(config.data.table_rows))))

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield the batches from `position` on; the very first one carries the rows skipped while loading."""
        for epoch in epochs_left(position, self.epochs):
            order_S = self._order(position.seed, epoch)
            for start, stop, after in epoch_batches(position, epoch, len(order_S), batch_size):
                skipped = self.malformed_rows if epoch == start == 0 else 0
                yield self._pick(order_S[start:stop], after, skipped)

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        """Yield the held-out rows, or those of the validation slice, in file order."""
        rows = self._validation if validation else self._test
        samples = min(len(rows), max_samples or len(rows))
        for start, stop, _ in epoch_batches(Position(), 0, samples, batch_size):
            yield self._pick(np.arange(rows.start + start, rows.start + stop), Position(), 0)

    def _order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """The rows of an epoch in the order of its batches."""
        rows = self._validation if epoch == SLICE else self._train
        rows_S = np.arange(rows.start, rows.stop)
        if self._shuffle:
            np.random.Generator(np.random.PCG64([seed, epoch])).shuffle(rows_S)
        return rows_S

    def _pick(self, rows_B: NDArray[np.int64], position: Position, skipped: int) -> Batch:
        ids_BF = self._ids_RF[rows_B].astype(np.int64)
        return Batch.one_hot(self._dense_RX[rows_B], ids_BF, self.labels_R[rows_B], position, skipped)


class StreamSource(RowStream):
    """A file read block by block, always in file order. An id is its value, unless ids are raw modulo its table's rows; missing
    is 0."""

    def __init__(self, config: Config, layout: CriteoLayout, marks: list[LineMark]) -> None:
        self._layout, self._marks = layout, marks
        self._train, self._test = row_ranges(config, marks[-1].row)
        self._validation = validation_rows(config, marks[-1].row)
        self.malformed_rows = marks[-1].line - marks[-1].row
        self.tables = table_specs(config, cut_rows(config))
        self.features = feature_specs(config)
        self.dense_features = layout.dense_features
        self.train_samples, self.test_samples = len(self._train), len(self._test)
        self.validation_samples = len(self._validation)
        self.epochs = config.data.epochs
        self._rows_F = np.array([self.tables[feature.table].rows for feature in self.features], dtype=np.int64)
        self._is_raw = config.data.ids == "raw"

    def _read(self, rows: range, position: Position, epoch: int, samples: int, batch_size: int) -> Iterator[Batch]:
        """Read one epoch of a range from the position on."""
        reader: RowReader | None = None
        for start, stop, after in epoch_batches(position, epoch, samples, batch_size):
            reader = reader or open_at(self._layout, self._marks, rows.start + start)
            yield self._parse(reader, stop - start, after)

    def _parse(self, reader: RowReader, samples: int, position: Position) -> Batch:
        rows, skipped = ParsedRows.empty(self._layout, samples), reader.malformed_rows
        if reader.read(rows) < samples:
            raise DataError(
                f"{self._layout.path} must keep its {self._marks[-1].row} rows while it is read, "
                f"got {reader.lines} lines"
            )
        ids_BF = rows.values_BF.astype(np.int64) if self._is_raw else rows.values_BF % self._rows_F
        skipped = reader.malformed_rows - skipped
        return Batch.one_hot(rows.dense_BX(), ids_BF, rows.labels_B, position, skipped)


def row_ranges(config: Config, rows: int) -> tuple[range, range]:
    """The training rows and the held-out rows of a file of `rows` rows. Where the next window is scored they are one stream, and
    the second ones are its last window. Where a validation slice is scored, training ends before it."""
    data = config.data
    train, test = (range(round(low * rows), round(high * rows)) for low, high in (data.train_range, data.test_range))
    if config.eval.mode == "next_window":
        steps = (test.stop - train.start) // config.run.batch_size
        trained = (steps - config.eval.last_window(steps)) * config.run.batch_size
        train, test = range(train.start, train.start + trained), range(train.start + trained, test.stop)
    train = train[: len(train) - config.eval.validation_samples(len(train))]
    if not len(train):
        raise DataError(
            f"data.train_range must hold at least one row of {data.source}, "
            f"got {list(data.train_range)} of {rows} well-formed rows"
        )
    return train, test


def validation_rows(config: Config, rows: int) -> range:
    """The rows of the validation slice of a file of `rows` rows, at the end of `data.train_range`; none where none is scored."""
    low, high = (round(part * rows) for part in config.data.train_range)
    return range(high - config.eval.validation_samples(high - low), high)


def measured_rows(config: Config, train: range) -> range:
    """Return the training rows by which dense columns are scaled: all, or the first batch where later rows are scored before they
    are trained on."""
    return train[: config.run.batch_size] if config.eval.mode == "next_window" else train


def number_ids(
    values_RF: NDArray[np.uint32], tables_F: tuple[int, ...], kept: Callable[[int], int]
) -> tuple[NDArray[np.int32], dict[int, int]]:
    """Number each table's values in order of first occurrence, in place; returns the ids and the tables' rows.

    A table has `kept(number of its values)` rows; further ids are folded into them.
    """
    ids_RF = values_RF.view(np.int32)
    table_rows: dict[int, int] = {}
    for table in sorted(set(tables_F)):
        columns = [f for f, t in enumerate(tables_F) if t == table]
        values_N = np.ascontiguousarray(values_RF[:, columns]).reshape(-1)
        slots = np.full(1 << (2 * len(values_N)).bit_length(), -1, dtype=np.int32)
        ids_N = np.empty(len(values_N), dtype=np.int32)
        distinct = parse.number_values(values_N, slots, ids_N)
        table_rows[table] = max(1, kept(distinct))
        ids_RF[:, columns] = (ids_N % np.int32(table_rows[table])).reshape(len(values_RF), len(columns))
    return ids_RF, table_rows
