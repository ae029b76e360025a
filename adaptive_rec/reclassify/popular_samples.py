"""Popular samples of probe steps, kept to find the threshold that skips a wanted share of samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch, expand_ranges

SAMPLES_PER_PROBE = 512
SAMPLES_PER_WINDOW = 8192
"""Limits of the samples that are kept."""


class PopularSamples:
    """The rows that some popular samples look up."""

    def __init__(self) -> None:
        self._rows: list[NDArray[np.int64]] = []
        self._lengths: list[NDArray[np.int64]] = []

    def keep(self, work: ClassifiedBatch) -> None:
        """Keep some popular samples of a batch."""
        if sum(map(len, self._lengths)) >= SAMPLES_PER_WINDOW:
            return
        chosen = np.flatnonzero(work.popular_B)[:SAMPLES_PER_PROBE]
        starts = work.batch.offsets[chosen * len(work.space.features)]
        lengths = work.lookups_B[chosen]
        self._rows.append(work.distinct_U[work.inverse_N[expand_ranges(starts, lengths)]])
        self._lengths.append(lengths)

    def clear(self) -> None:
        self._rows.clear()
        self._lengths.clear()

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of all lookups, and the number of lookups of each sample."""
        nothing = np.empty(0, dtype=np.int64)
        return np.concatenate([nothing, *self._rows]), np.concatenate([nothing, *self._lengths])

    def restore(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Keep these samples and no others."""
        self._rows, self._lengths = ([rows], [lengths]) if len(lengths) else ([], [])
