"""Rows of batches, taken by their numbers in rising order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, joined_beside, part_beside
from adaptive_rec.data.implicit.bags import FeatureBags
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
        joined = pieces[0] if len(pieces) == 1 else joined_rows(pieces)
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


def taken(batch: Batch, samples_S: NDArray[np.int64]) -> Batch:
    """Return some samples of a batch."""
    features = (len(batch.offsets) - 1) // batch.size
    ids_N, offsets = FeatureBags.of(batch, features).take(samples_S).packed()
    labels_S, dense_SX, beside = batch.labels_B[samples_S], batch.dense_BX[samples_S], part_beside(batch, samples_S)
    return replace(batch, dense_BX=dense_SX, ids_N=ids_N, offsets=offsets, labels_B=labels_S, **beside)


def joined_rows(parts: list[Batch]) -> Batch:
    """Join batches into one, with the position of the last one."""
    before = np.cumsum([0, *(part.lookups for part in parts)])
    offsets = [part.offsets[:-1] + first for part, first in zip(parts, before[:-1], strict=True)]
    return replace(
        parts[-1],
        **joined_beside(parts),
        dense_BX=np.concatenate([part.dense_BX for part in parts]),
        ids_N=np.concatenate([part.ids_N for part in parts]),
        offsets=np.concatenate([*offsets, before[-1:]]),
        labels_B=np.concatenate([part.labels_B for part in parts]),
        malformed_rows=sum(part.malformed_rows for part in parts),
    )
