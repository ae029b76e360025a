"""Rows of batches, taken by their numbers in rising order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from adaptive_rec.batch import Batch, join_batches, part_beside
from adaptive_rec.errors import DataError


class RowsInOrder:
    """The rows of an epoch from one of them on. Those that were taken last may be taken again."""

    def __init__(self, batches: Iterator[Batch], first: int) -> None:
        self._batches, self._first = batches, first
        self._rows: Batch | None = None
        """The rows at hand, from `_first` on."""

    def take(self, first: int, end: int) -> Batch:
        """Return the rows from `first` to `end`, which lie behind those taken before but for the last one. Raises DataError where
        they are not there."""
        pieces = [] if self._rows is None else [rows_between(self._rows, first - self._first, self._rows.size)]
        rows = sum(piece.size for piece in pieces)
        while rows < end - first:
            piece = next(self._batches, None)
            if piece is None:
                raise DataError(f"data.source must keep its rows while it is read, row {first + rows} is not there any more")
            pieces.append(piece)
            rows += piece.size
        pieces = [piece for piece in pieces if piece.size]
        joined = join_batches(pieces)
        self._rows, self._first = replace(joined, malformed_rows=0), first
        return rows_between(joined, 0, end - first)


def rows_between(batch: Batch, start: int, stop: int) -> Batch:
    """Return some successive samples of a batch."""
    if (start, stop) == (0, batch.size):
        return batch
    features = (len(batch.offsets) - 1) // batch.size
    offsets = batch.offsets[start * features : stop * features + 1]
    return replace(
        batch,
        **part_beside(batch, slice(start, stop)),
        dense_BX=batch.dense_BX[start:stop],
        ids_N=batch.ids_N[offsets[0] : offsets[-1]],
        offsets=offsets - offsets[0],
        labels_B=batch.labels_B[start:stop],
    )
