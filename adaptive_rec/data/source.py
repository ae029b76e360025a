"""The protocol of all sources of batches, and helpers that sources share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from adaptive_rec.batch import SLICE, Batch, FeatureSpec, Position, SequenceSpec, TableSpec
from adaptive_rec.config.tree import Config
from adaptive_rec.errors import ConfigError, DataError
from adaptive_rec.saved import Saved

LEAST_SCALED_ROWS = 100
"""The smallest size to which `data.scale` cuts a table; smaller tables stay as they are."""


class Source(Protocol):
    """Training and held-out batches of one data set. The same position always gives the same batches."""

    tables: tuple[TableSpec, ...]
    features: tuple[FeatureSpec, ...]
    dense_features: int
    train_samples: int
    """Samples of one epoch."""
    validation_samples: int
    """Samples of the validation slice."""
    test_samples: int
    """Held-out samples."""
    epochs: int
    malformed_rows: int
    """Skipped malformed rows of the input; no other figure counts them."""

    @property
    def sequence(self) -> SequenceSpec | None:
        """The features and dense columns of a history's steps, if samples have a history."""
        ...

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield the batches from `position` to the end of the last epoch; an epoch's last batch may be smaller. From a position
        of the epoch SLICE, yield the rest of the validation slice, in its order."""
        ...

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        """Yield the held-out samples, or those of the validation slice, at most `max_samples` of them (0 is all), under the
        default position."""
        ...


class RowStream(ABC):
    """A source whose samples are ranges of rows, read in their order."""

    sequence = None
    epochs: int
    train_samples: int
    validation_samples: int
    _train: range
    _validation: range
    _test: range

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield the batches from `position` on; its seed has no effect."""
        for epoch in epochs_left(position, self.epochs):
            rows = self._validation if epoch == SLICE else self._train
            yield from self._read(rows, position, epoch, len(rows), batch_size)

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        """Yield the held-out rows, or those of the validation slice, in file order."""
        rows = self._validation if validation else self._test
        samples = min(len(rows), max_samples or len(rows))
        for batch in self._read(rows, Position(), 0, samples, batch_size):
            yield replace(batch, position=Position())

    @abstractmethod
    def _read(self, rows: range, position: Position, epoch: int, samples: int, batch_size: int) -> Iterator[Batch]:
        """Read one epoch of a range from the position on."""


class HeldOutRows:
    """New rows for a trained model: all of them are held out, and how many there are is not known."""

    sequence = None
    train_samples = validation_samples = test_samples = malformed_rows = 0
    epochs = 1

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """There are no rows to train on."""
        return iter(())


class Wrapped:
    """A source that passes on another one unchanged; subclasses override what differs."""

    has_same_ids = False
    """Whether samples are made of rows of that source, with its ids: what they stand for is known there."""

    def __init__(self, source: Source) -> None:
        self.tables, self.features, self.dense_features = source.tables, source.features, source.dense_features
        self.train_samples, self.test_samples, self.epochs = source.train_samples, source.test_samples, source.epochs
        self.validation_samples = source.validation_samples
        self.malformed_rows, self.sequence = source.malformed_rows, source.sequence
        self._source = source

    @property
    def origin(self) -> Source:
        """The source that this one passes on."""
        return self._source

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        return self._source.train_batches(position, batch_size)

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        return self._source.test_batches(batch_size, max_samples, validation)

    def untaken_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield the stream from a position on as the function of this name does."""
        return untaken_batches(self._source, position, batch_size)


def has_groups(source: Source) -> bool:
    """Whether the samples of a source have groups (`Batch.groups_B`)."""
    found = getattr(source, "has_groups", None)
    return has_groups(source.origin) if found is None and isinstance(source, Wrapped) else bool(found)


def untaken_batches(source: Source, position: Position, batch_size: int) -> Iterator[Batch]:
    """Yield the stream from a position of its only epoch on, to be scored: the rest of the training samples, then the held-out
    ones. Nothing changes in the source."""
    if isinstance(source, Wrapped):
        yield from source.untaken_batches(position, batch_size)
        return
    if position.epoch == 0:
        yield from source.train_batches(position, batch_size)
    yield from source.test_batches(batch_size)


def saved_position(found: Saved) -> Position:
    """Read a reader's position of a checkpoint."""
    return Position(*(found.integer(name) for name in ("epoch", "seed", "offset")))


def table_specs(config: Config, rows: tuple[int, ...]) -> tuple[TableSpec, ...]:
    """Tables C1, C2, ... of `rows` rows each, with the model's dims."""
    return named_tables(config, {f"C{i + 1}": n for i, n in enumerate(rows)})


def named_tables(config: Config, rows_T: Mapping[str, int]) -> tuple[TableSpec, ...]:
    """Return tables of these rows, with the model's dims. Raises ConfigError where it has others than one for each."""
    dims = config.model.table_dims or (config.model.embedding_dim,) * len(rows_T)
    if len(dims) != len(rows_T):
        raise ConfigError(f"model.table_dims must have one entry for each of {len(rows_T)} tables, got {len(dims)}")
    return tuple(TableSpec(name, rows, dim) for (name, rows), dim in zip(rows_T.items(), dims, strict=True))


def feature_tables(config: Config) -> tuple[int, ...]:
    """The table that each sparse feature reads; without `data.feature_tables`, feature i reads table i."""
    return config.data.feature_tables or tuple(range(len(config.data.table_rows)))


def feature_specs(config: Config) -> tuple[FeatureSpec, ...]:
    """Features C1, C2, ... in the order of a sample's columns."""
    return tuple(FeatureSpec(f"C{i + 1}", table, config.data.pooling) for i, table in enumerate(feature_tables(config)))


def cut_rows(config: Config) -> tuple[int, ...]:
    """Rows of each table of `data.table_rows` that are kept."""
    return tuple(kept_rows(config, rows) for rows in config.data.table_rows)


def kept_rows(config: Config, rows: int) -> int:
    """Return the rows of a table of `rows` after `data.scale` and the cut to `data.max_table_rows`. Ids are folded into them."""
    scaled = max(round(rows * config.data.scale), min(rows, LEAST_SCALED_ROWS))
    return min(scaled, config.data.max_table_rows)


def epochs_left(position: Position, epochs: int) -> range:
    """Return the epochs of a stream from a position on: those of the training samples, or the validation slice."""
    return range(SLICE, SLICE + 1) if position.epoch == SLICE else range(position.epoch, epochs)


def epoch_batches(position: Position, epoch: int, samples: int, batch_size: int) -> Iterator[tuple[int, int, Position]]:
    """Cut the rest of one epoch into batches: (first sample, sample after the last, position after it).

    After an epoch's last sample the position is the start of the next epoch.
    """
    if batch_size < 1:
        raise DataError(f"batch_size must be at least 1 sample, got {batch_size}")
    start = position.offset if epoch == position.epoch else 0
    if not 0 <= start <= samples:
        raise DataError(f"offset of a reader position must lie in [0, {samples}], the samples of an epoch, got {start}")
    while start < samples:
        stop = min(start + batch_size, samples)
        after = Position(epoch, position.seed, stop) if stop < samples else Position(epoch + 1, position.seed, 0)
        yield start, stop, after
        start = stop
