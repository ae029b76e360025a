"""The exact counter is the sketch's twin: tests compare the two, and small tables may use it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import CheckpointError
from adaptive_rec.saved import ANY, Saved
from adaptive_rec.tracking.popularity import best_rows


class ExactCounter:
    """Exact decayed counts of all rows ever added, with the interface of `CountMinSketch`.

    Additions are collected and merged into the sorted rows at the next question.
    """

    def __init__(self) -> None:
        self._rows_K: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._counts_K: NDArray[np.float64] = np.empty(0)
        self._new_rows: list[NDArray[np.int64]] = []
        self._new_counts: list[NDArray[np.int64]] = []

    @property
    def bytes(self) -> int:
        self._merge()
        return int(self._rows_K.nbytes + self._counts_K.nbytes)

    def add(self, rows_U: NDArray[np.int64], counts_U: NDArray[np.int64]) -> None:
        counted = np.flatnonzero(np.asarray(counts_U) > 0)
        self._new_rows.append(rows_U[counted])
        self._new_counts.append(counts_U[counted])

    def observe(self, rows_U: NDArray[np.int64], segments_U1: NDArray[np.int64]) -> None:
        self.add(rows_U, np.diff(segments_U1))

    def estimate(self, rows_U: NDArray[np.int64], threads: int = 1) -> NDArray[np.float64]:
        """One thread answers, whatever `threads` allows."""
        self._merge()
        if not len(self._rows_K):
            return np.zeros(len(rows_U))
        place_U = np.searchsorted(self._rows_K, rows_U).clip(max=len(self._rows_K) - 1)
        return np.where(self._rows_K[place_U] == rows_U, self._counts_K[place_U], 0.0)

    def decay(self, factor: float) -> None:
        self._merge()
        self._counts_K *= factor

    def best(self, count: int) -> NDArray[np.int64]:
        """Return the `count` most popular rows (of equals the lower ones), sorted."""
        self._merge()
        return best_rows(self._rows_K, self._counts_K, count)

    def state(self) -> dict[str, Any]:
        self._merge()
        return {"rows_K": self._rows_K, "counts_K": self._counts_K}

    def set_state(self, found: Saved) -> None:
        rows_K, counts_K = found.array("rows_K", np.int64, ANY), found.array("counts_K", np.float64, ANY)
        if len(rows_K) != len(counts_K):
            raise CheckpointError(f"rows and counts must be equally many, got {len(rows_K)} and {len(counts_K)}")
        self._rows_K, self._counts_K = rows_K, counts_K
        self._new_rows, self._new_counts = [], []

    def _merge(self) -> None:
        if not self._new_rows:
            return
        rows = np.concatenate([self._rows_K, *self._new_rows])
        counts = np.concatenate([self._counts_K, *self._new_counts])
        self._rows_K, place = np.unique(rows, return_inverse=True)
        self._counts_K = np.bincount(place, weights=counts, minlength=len(self._rows_K)).astype(np.float64)
        self._new_rows, self._new_counts = [], []
