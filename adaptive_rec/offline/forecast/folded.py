"""A source with smaller tables, or with tables of other numbers of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from adaptive_rec.batch import Batch, Position
from adaptive_rec.data.source import Source, Wrapped


class Folded(Wrapped):
    """A source whose tables are cut to a number of rows, or each to one of its own, with ids folded into them."""

    def __init__(self, source: Source, rows: int | Sequence[int]) -> None:
        super().__init__(source)
        rows_T = [rows] * len(source.tables) if isinstance(rows, int) else rows
        self.tables = tuple(replace(table, rows=min(table.rows, n)) for table, n in zip(source.tables, rows_T, strict=True))
        self._rows_F = np.array([self.tables[feature.table].rows for feature in source.features])

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        return map(self._fold, self._source.train_batches(position, batch_size))

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        return map(self._fold, self._source.test_batches(batch_size, max_samples, validation))

    def _fold(self, batch: Batch) -> Batch:
        rows_N = np.repeat(np.tile(self._rows_F, batch.size), np.diff(batch.offsets))
        return replace(batch, ids_N=batch.ids_N % rows_N)
