"""The transform `standard` of dense columns: the mean taken off, divided by the standard deviation, both of the training rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MEASURED_COLUMNS = 4
"""Columns that are measured at a time, in 64 bits."""


@dataclass(frozen=True)
class Standard:
    """The columns that are standardised, and their figures."""

    columns: tuple[int, ...]
    mean_X: NDArray[np.float64]
    deviation_X: NDArray[np.float64]
    """At least 1 for a column that does not vary beyond the rounding of 32 bits."""
    missing_X: NDArray[np.float32]
    """What a missing number becomes."""

    @staticmethod
    def of(columns: tuple[int, ...], missing: tuple[float, ...], parts: Iterable[NDArray[np.float32]]) -> Standard:
        """Measure the rows of all parts (B, X), in one pass over them: sums of a part are about that part's mean (Chan et al.,
        "Updating
        Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979). NaN is missing and not counted."""
        count_X, mean_X, squares_X = (np.zeros(len(columns)) for _ in range(3))
        for dense_BX in parts:
            for first in range(0, len(columns), MEASURED_COLUMNS):
                some = slice(first, first + MEASURED_COLUMNS)
                values_BX = dense_BX[:, list(columns[some])].astype(np.float64)
                present_BX = ~np.isnan(values_BX)
                counted_X = present_BX.sum(axis=0)
                sums_X = np.where(present_BX, values_BX, 0.0).sum(axis=0)
                own_mean_X = sums_X / np.maximum(counted_X, 1)
                own_squares_X = np.where(present_BX, (values_BX - own_mean_X) ** 2, 0.0).sum(axis=0)
                total_X = np.maximum(count_X[some] + counted_X, 1)
                apart_X = own_mean_X - mean_X[some]
                squares_X[some] += own_squares_X + apart_X**2 * count_X[some] * counted_X / total_X
                mean_X[some] += apart_X * counted_X / total_X
                count_X[some] += counted_X
        deviation_X = np.sqrt(squares_X / np.maximum(count_X, 1))
        level_X = deviation_X <= 1e-7 * np.abs(mean_X)  # within the rounding of 32 bits, and 0
        deviation_X = np.where(level_X, np.maximum(1.0, deviation_X), deviation_X)
        return Standard(columns, mean_X, deviation_X, np.array(missing, dtype=np.float32))

    def apply(self, dense_BX: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the rows with these columns transformed."""
        if not self.columns:
            return dense_BX
        chosen = list(self.columns)
        values_BX = ((dense_BX[:, chosen] - self.mean_X) / self.deviation_X).astype(np.float32)
        dense_BX = dense_BX.copy()
        dense_BX[:, chosen] = np.where(np.isnan(values_BX), self.missing_X, values_BX)
        return dense_BX
