"""Samples in memory, as readers of a user's files and of prepared folders return them, and their way into a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import BESIDE, Batch, Position, joined_beside, part_beside
from adaptive_rec.data.prepare.meta import Meta

Ids = NDArray[np.int32] | NDArray[np.int64]
"""Numbers of rows, or raw keys."""
PLAIN = ("dense_BX", "labels_B", "ids_BC", *BESIDE)
"""The arrays of samples with one entry for each sample."""


@dataclass(frozen=True)
class ColumnBags:
    """The bags of one column for some samples."""

    values_N: Ids
    offsets: NDArray[np.int64]
    """One more than there are samples, from 0."""

    def take(self, samples_S: NDArray[np.int64]) -> ColumnBags:
        lengths_S = np.diff(self.offsets)[samples_S]
        offsets = offsets_of(lengths_S)
        return ColumnBags(self.values_N[spread(self.offsets[samples_S], lengths_S, offsets)], offsets)

    @staticmethod
    def joined(parts: Sequence[ColumnBags]) -> ColumnBags:
        values_N = np.concatenate([bags.values_N for bags in parts])
        return ColumnBags(values_N, offsets_of(np.concatenate([np.diff(bags.offsets) for bags in parts])))


@dataclass(frozen=True)
class LoadedSamples:
    """Samples in memory."""

    dense_BX: NDArray[np.float32]
    labels_B: NDArray[np.int32]
    ids_BC: Ids
    """Of the columns without bags."""
    bags: tuple[ColumnBags, ...]
    """Of the others."""
    times_B: NDArray[np.int64] | None = None
    """In microseconds since 1970; None where they have no time or nobody reads it."""
    weights_B: NDArray[np.float32] | None = None
    """None where all weigh 1."""
    groups_B: NDArray[np.int64] | None = None
    """None where they have no groups."""

    def take(self, samples_S: NDArray[np.int64]) -> LoadedSamples:
        bags = tuple(bags.take(samples_S) for bags in self.bags)
        dense_SX, labels_S, ids_SC = self.dense_BX[samples_S], self.labels_B[samples_S], self.ids_BC[samples_S]
        return LoadedSamples(dense_SX, labels_S, ids_SC, bags, **part_beside(self, samples_S))

    def __getitem__(self, part: slice) -> LoadedSamples:
        bags = []
        for column in self.bags:
            offsets = column.offsets[part.start : part.stop + 1]
            bags.append(ColumnBags(column.values_N[offsets[0] : offsets[-1]], offsets - offsets[0]))
        dense_BX, labels_B, ids_BC = self.dense_BX[part], self.labels_B[part], self.ids_BC[part]
        return LoadedSamples(dense_BX, labels_B, ids_BC, tuple(bags), **part_beside(self, part))

    def copied(self) -> LoadedSamples:
        """Return a copy, which keeps nothing else of what a part was cut from in memory."""
        bags = tuple(ColumnBags(bags.values_N.copy(), bags.offsets) for bags in self.bags)
        arrays = {name: array.copy() for name in PLAIN if (array := getattr(self, name)) is not None}
        return replace(self, bags=bags, **arrays)

    @staticmethod
    def joined_in_order(parts: Iterable[LoadedSamples], order_S: NDArray[np.int64]) -> LoadedSamples:
        """Return what `joined(parts).take(order_S)` does. Of parts that are read one after another, all but the bags are dropped
        before the next one is read. `order_S`: each sample of the parts once."""
        place_S = np.empty_like(order_S)
        place_S[order_S] = np.arange(len(order_S))
        arrays: dict[str, NDArray[Any]] = {}
        bags: list[tuple[ColumnBags, ...]] = []
        start = 0
        for part in parts:
            stop = start + len(part.labels_B)
            for name in PLAIN:
                if (array := getattr(part, name)) is not None:
                    if name not in arrays:
                        arrays[name] = np.empty((len(order_S), *array.shape[1:]), array.dtype)
                    arrays[name][place_S[start:stop]] = array
            bags.append(part.bags)
            start = stop
        return LoadedSamples(**arrays, bags=tuple(ColumnBags.joined(column).take(order_S) for column in zip(*bags, strict=True)))

    @staticmethod
    def joined(parts: list[LoadedSamples]) -> LoadedSamples:
        if len(parts) == 1:
            return parts[0]
        bags = tuple(ColumnBags.joined(column) for column in zip(*(part.bags for part in parts), strict=True))
        return LoadedSamples(
            np.concatenate([part.dense_BX for part in parts]),
            np.concatenate([part.labels_B for part in parts]),
            np.concatenate([part.ids_BC for part in parts]),
            bags,
            **joined_beside(parts),
        )


@dataclass(frozen=True)
class Columns:
    """Which features the sparse columns become: one each, a history's as many as it may have steps."""

    single: tuple[int, ...]
    """Features of the columns without bags."""
    bags: tuple[int, ...]
    """The first feature of each column with bags."""
    steps: tuple[int, ...]
    """Of each column with bags its steps, where it is a history's; else 0."""
    features: int
    """Of all columns."""

    @staticmethod
    def of(meta: Meta) -> Columns:
        histories = {history.column for history in meta.sequence.histories} if meta.sequence else set()
        steps = [meta.sequence.steps if meta.sequence and c.name in histories else 0 for c in meta.columns]
        first = [sum(max(1, n) for n in steps[:c]) for c in range(len(steps) + 1)]
        numbered = list(enumerate(meta.columns))
        return Columns(
            tuple(first[c] for c, column in numbered if not column.bag),
            tuple(first[c] for c, column in numbered if column.bag),
            tuple(steps[c] for c, column in numbered if column.bag),
            first[-1],
        )


def to_batch(pieces: list[LoadedSamples], columns: Columns, position: Position) -> Batch:
    """Return a batch, in sample-major order, of samples that come in pieces."""
    samples = LoadedSamples.joined(pieces)
    labels_B, beside = samples.labels_B.astype(np.float32), {name: getattr(samples, name) for name in BESIDE}
    if not columns.bags:
        batch = Batch.one_hot(samples.dense_BX, samples.ids_BC.astype(np.int64), labels_B, position)
        return replace(batch, **beside) if any(array is not None for array in beside.values()) else batch
    lengths_BF = np.ones((len(labels_B), columns.features), dtype=np.int64)
    for f, steps, bags in zip(columns.bags, columns.steps, samples.bags, strict=True):
        lengths_B = np.diff(bags.offsets)
        if steps:  # a history's ids stand together: the last of its features have one each, the first ones none
            lengths_BF[:, f : f + steps] = np.arange(steps) >= steps - lengths_B[:, None]
        else:
            lengths_BF[:, f] = lengths_B
    offsets = offsets_of(lengths_BF.reshape(-1))
    starts_BF = offsets[:-1].reshape(lengths_BF.shape)
    ids_N = np.empty(offsets[-1], dtype=np.int64)
    ids_N[starts_BF[:, columns.single]] = samples.ids_BC
    for f, bags in zip(columns.bags, samples.bags, strict=True):
        ids_N[spread(starts_BF[:, f], np.diff(bags.offsets), bags.offsets)] = bags.values_N
    return Batch(samples.dense_BX, ids_N, offsets, labels_B, position, **beside)


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where runs of these lengths begin, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def spread(starts_S: NDArray[np.int64], lengths_S: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of runs that begin at `starts_S`, run after run; `offsets` are those of the lengths."""
    return np.repeat(starts_S - offsets[:-1], lengths_S) + np.arange(offsets[-1])
