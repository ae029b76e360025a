"""Passes over a source: one counts the lookups of each row, one the popular samples at each budget, window by window, one what
`admit_after` costs and gives on a stream of raw ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position, check_ids, check_shapes
from adaptive_rec.data.source import Source
from adaptive_rec.errors import DataError
from adaptive_rec.kernels import profile as kernels
from adaptive_rec.live.telemetry import ratio
from adaptive_rec.placement import RowSpace

BATCH_SAMPLES = 8192

Progress = Callable[[str, int, int], None]
"""Called with a description of the work, the number of samples done, and their total."""


@dataclass(frozen=True)
class BatchPart:
    """Consecutive samples of a batch."""

    batch: Batch
    ids_N: NDArray[np.int64]
    offsets: NDArray[np.int64]
    done: int
    """Samples of the source up to the end of this part."""


@dataclass(frozen=True)
class FirstSamples:
    """The first samples of a source's training range, in its order."""

    source: Source
    space: RowSpace
    seed: int
    total: int
    progress: Progress

    def parts(self, what: str, cuts: tuple[int, ...] = ()) -> Iterator[BatchPart]:
        """Yield the samples in parts, which end at the `cuts`, given as numbers of samples.

        Raises DataError where batches have wrong shapes or end too early.
        """
        features = len(self.space.features)
        ends = [*cuts, self.total]
        done = 0
        for batch in self.source.train_batches(Position(seed=self.seed), BATCH_SAMPLES):
            check_shapes(batch, features)
            at = 0
            while at < batch.size and done < self.total:
                self.progress(what, done, self.total)
                until = min(batch.size, at + next(end for end in ends if end > done) - done)
                low, high = batch.offsets[at * features], batch.offsets[until * features]
                done += until - at
                yield BatchPart(
                    batch, batch.ids_N[low:high], batch.offsets[at * features : until * features + 1] - low, done
                )
                at = until
            if done == self.total:
                break
        if done < self.total:
            raise DataError(f"the training range must hold {self.total} samples, as it said, got {done}")
        self.progress(what, done, self.total)


def count_lookups(samples: FirstSamples) -> NDArray[np.int64]:
    """Return the lookups of each joint row. Raises DataError for an id outside its table."""
    space = samples.space
    counts_R = np.zeros(space.rows, dtype=np.int64)
    for part in samples.parts("counting lookups"):
        wrong = kernels.count_lookups(part.ids_N, part.offsets, space.feature_first_row, space.rows_F, counts_R)
        if wrong >= 0:
            check_ids(part.batch, space.tables, space.features)
    return counts_R


def count_windows(
    samples: FirstSamples, level_R: NDArray[np.uint8], levels: int, windows: int
) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
    """Yield for each of several equal windows the lookups of each row and the samples that become popular at each level.

    The last level stands for never. Both arrays are reused for the next window.
    """
    space = samples.space
    window_R = np.zeros(space.rows, dtype=np.uint32)
    samples_L = np.zeros(levels + 1, dtype=np.int64)
    cuts = tuple(samples.total * n // windows for n in range(1, windows))
    for part in samples.parts("replaying against budgets", cuts):
        kernels.count_levels(part.ids_N, part.offsets, space.feature_first_row, level_R, window_R, samples_L)
        if part.done in (*cuts, samples.total):
            yield window_R, samples_L
            window_R[:] = 0
            samples_L[:] = 0


# Raw ids --------------------------------------------------------------------------------------------------------------


ADMIT_AFTER = (1, 2, 3, 4, 6, 8, 12, 16, 32)
"""Values of the knob that are compared."""

MERGED_FROM = 1 << 20
"""Least number of counted keys that are merged into those counted before."""


class KeyCounts:
    """The exact lookups of the keys of one table. Memory: 16 bytes for each distinct key, several times that while they are
    merged."""

    def __init__(self) -> None:
        self._key_K, self._lookups_K = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._waiting = 0

    def add(self, key_N: NDArray[np.int64]) -> None:
        key_U, lookups_U = np.unique(key_N, return_counts=True)
        self._parts.append((key_U, lookups_U))
        self._waiting += len(key_U)
        if self._waiting > max(MERGED_FROM, len(self._key_K)):  # so that each key is merged a few times only
            self._merge()

    def lookups(self) -> NDArray[np.int64]:
        """Return the lookups of each key, in no particular order."""
        self._merge()
        return self._lookups_K

    def _merge(self) -> None:
        keys, lookups = zip((self._key_K, self._lookups_K), *self._parts, strict=True)
        key_C, lookups_C = np.concatenate(keys), np.concatenate(lookups)
        order = np.argsort(key_C, kind="stable")
        key_C, lookups_C = key_C[order], lookups_C[order]
        first_U = np.flatnonzero(np.diff(key_C, prepend=key_C[:1] - 1)) if len(key_C) else np.empty(0, dtype=np.int64)
        self._key_K = key_C[first_U]
        self._lookups_K = np.add.reduceat(lookups_C, first_U) if len(first_U) else lookups_C
        self._parts, self._waiting = [], 0


def admission(samples: FirstSamples, own_rows: list[int]) -> list[dict[str, Any]]:
    """Count the keys of a source of raw ids. Return for each value of `admit_after` how many keys would get a row of their own,
    and which part of the lookups would read it, were there room for all. `own_rows`: the rows that each table has for them."""
    counts = [KeyCounts() for _ in samples.space.tables]
    for part in samples.parts("counting raw ids"):
        table_N = table_of_lookups(samples.space, part.offsets)
        for table, counted in enumerate(counts):
            counted.add(part.ids_N[table_N == table])
    lookups = [each.lookups() for each in counts]
    total = sum(int(each.sum()) for each in lookups)
    found = []
    for after in ADMIT_AFTER:
        rows = [int(np.count_nonzero(each >= after)) for each in lookups]
        own = sum(int((each[each >= after] - (after - 1)).sum()) for each in lookups)
        found.append({
            "admit_after": after,
            "rows": sum(rows),
            "own_lookup_ratio": ratio(own, total),
            "full_tables": sum(needed > there for needed, there in zip(rows, own_rows, strict=True)),
            "tables": rows,
        })  # fmt: skip
    return found


def table_of_lookups(space: RowSpace, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the table of each lookup of a batch with these bounds of its bags."""
    samples = (len(offsets) - 1) // len(space.features)
    return np.repeat(np.tile(space.table_of_feature, samples), np.diff(offsets))
