"""Two passes over a source: one counts the lookups of each row, one the popular samples at each budget, window by window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position, check_ids, check_shapes
from adaptive_rec.data.source import Source
from adaptive_rec.errors import DataError
from adaptive_rec.kernels import profile as kernels
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
