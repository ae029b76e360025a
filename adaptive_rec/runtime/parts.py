"""What is a rank's of a source: its part of the batches, which it trains and scores, and its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from adaptive_rec.batch import Batch, Position, sum_of_weights, take
from adaptive_rec.data.source import Source, Wrapped
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.group import Group


class PartOfBatches(Wrapped):
    """A source whose batches are contiguous parts of those of another one, in the order of the ranks.

    Positions are those of the whole batches, so they do not depend on the number of ranks. A part may be empty. Malformed rows
    and samples that were left out are counted by rank 0, as every rank reads the input.
    """

    def __init__(self, source: Source, group: Group) -> None:
        super().__init__(source)
        self._group = group

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        return map(self.take_part, self._source.train_batches(position, batch_size))

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        return map(self.take_part, self._source.test_batches(batch_size, max_samples, validation))

    def take_part(self, batch: Batch) -> Batch:
        """Return this rank's part of a batch."""
        own = self._group.part_of(batch.size)
        part = take(batch, np.arange(own.start, own.stop))
        weight = None if batch.weights_B is None else sum_of_weights(batch.weights_B)
        of_whole = {"whole_samples": batch.size, "whole_weight": weight, "first_sample": own.start}
        malformed, skipped = (batch.malformed_rows, batch.skipped_samples) if self._group.rank == 0 else (0, 0)
        return replace(part, **of_whole, malformed_rows=malformed, skipped_samples=skipped)


def whole_of(source: Source) -> Source:
    """Return the source of whole batches behind one of a rank's parts."""
    return source.origin if isinstance(source, PartOfBatches) else source


def parts_of(source: Source, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Return what of some whole batches is this rank's, as in a source of its parts."""
    return map(source.take_part, batches) if isinstance(source, PartOfBatches) else iter(batches)


class RowsOfRank(Wrapped):
    """A source whose tables have as many rows as a rank owns of them. The ids of its batches are those of all ranks."""

    def __init__(self, source: Source, ranks: int, rank: int = 0, home_T: tuple[int, ...] = ()) -> None:
        from adaptive_rec.embedding.peers.ownership import Ownership

        super().__init__(source)
        self.tables = Ownership(RowSpace.of(source.tables, source.features), ranks, rank, home_T=home_T).own.tables
