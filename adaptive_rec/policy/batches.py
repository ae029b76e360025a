"""Filters and repacks batches, for policies that arrange the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position, check_ids, check_shapes, join_batches, take
from adaptive_rec.kernels.arrange import count_chosen, count_flagged, find_hot_samples, ids_fit
from adaptive_rec.placement import RowSpace

Choose = Callable[[Batch], NDArray[np.bool_]]
"""Returns for each sample of a batch (B) whether it is chosen."""


def check_against_space(batch: Batch, space: RowSpace) -> Batch:
    """Return the batch itself. Raises DataError where its shapes disagree or an id lies outside its table."""
    check_shapes(batch, len(space.features))
    if not ids_fit(batch.ids_N, batch.offsets, space.rows_F):
        check_ids(batch, space.tables, space.features)
    return batch


def hot_samples(batch: Batch, space: RowSpace, hot_R: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each sample (B) whether it looks up hot rows only. `hot_R` has an entry for each row of the joint row space."""
    hot_B = np.empty(batch.size, dtype=np.bool_)
    find_hot_samples(batch.ids_N, batch.offsets, space.feature_first_row, hot_R, hot_B)
    return hot_B


def flagged_lookups(batch: Batch, space: RowSpace, flag_R: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count the lookups of flagged rows in each sample (B). `flag_R` has an entry for each row of the joint row space."""
    count_B = np.empty(batch.size, dtype=np.int64)
    count_flagged(batch.ids_N, batch.offsets, space.feature_first_row, flag_R, count_B)
    return count_B


def rows_of(batch: Batch, space: RowSpace) -> NDArray[np.int64]:
    """Return the joint row of every lookup (N)."""
    first_row = np.tile(space.feature_first_row, batch.size)
    return batch.ids_N + np.repeat(first_row, np.diff(batch.offsets))


def count_rows(
    batches: Iterable[Batch], space: RowSpace, chosen: Choose
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that the chosen samples look up, in rising order, and how often each."""
    counts_R = np.zeros(space.rows, dtype=np.uint32)
    for batch in batches:
        count_chosen(batch.ids_N, batch.offsets, space.feature_first_row, chosen(batch), counts_R)
    rows = np.flatnonzero(counts_R)
    return rows, counts_R[rows].astype(np.int64)


def repack(
    batches: Iterable[Batch], size: int, wanted: Choose, skipped: Choose | None = None, malformed: bool = True
) -> Iterator[Batch]:
    """Yield the wanted samples in batches of `size`; the last one may be smaller. At most one batch is held back.

    Samples that are also `skipped` are left out and counted with the batch they would have been in; those left out after the last
    one come as a batch without samples. `malformed`: whether these batches count malformed rows of the input; if several streams
    read one epoch, one of them should.
    """
    held: list[Batch] = []
    samples, position = 0, Position()
    for batch in batches:
        position = Position(batch.position.epoch, batch.position.seed, 0)  # the source's offset means nothing here
        wanted_B = wanted(batch)
        left_out_B = wanted_B & skipped(batch) if skipped is not None else np.zeros(batch.size, np.bool_)
        part = take(batch, np.flatnonzero(wanted_B & ~left_out_B))
        part = replace(
            part,
            position=position,
            malformed_rows=batch.malformed_rows if malformed else 0,
            skipped_samples=int(np.count_nonzero(left_out_B)),
        )
        if part.size or part.malformed_rows or part.skipped_samples:
            held.append(part)
        samples += part.size
        while samples >= size:
            whole = join_batches(held)
            yield take(whole, np.arange(size))
            rest = take(whole, np.arange(size, whole.size))
            held, samples = [replace(rest, malformed_rows=0, skipped_samples=0)] if rest.size else [], rest.size
    if held:
        yield join_batches(held)


class Portions:
    """Hands out batches in portions. One batch is read ahead, so that the end is known when it is reached."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = iter(batches)
        self._next = next(self._batches, None)

    @property
    def over(self) -> bool:
        return self._next is None

    def portion(self, count: int | None = None) -> Iterator[Batch]:
        """Yield `count` batches, or all that are left."""
        taken = 0
        while self._next is not None and taken != count:
            batch, self._next = self._next, next(self._batches, None)
            taken += 1
            yield batch
