"""Plain twins of `kernels.profile`, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def lookup_features(offsets: Ints, features: int) -> Ints:
    """The feature of each lookup."""
    return np.repeat(np.arange(len(offsets) - 1) % features, np.diff(offsets))


def count_lookups(ids_N: Ints, offsets: Ints, first_row_F: Ints, rows_F: Ints, counts_R: Ints) -> int:
    feature_N = lookup_features(offsets, len(first_row_F))
    wrong = np.flatnonzero((ids_N < 0) | (ids_N >= rows_F[feature_N]))
    end = int(wrong[0]) if len(wrong) else len(ids_N)
    np.add.at(counts_R, first_row_F[feature_N[:end]] + ids_N[:end], 1)
    return end if len(wrong) else -1


def count_levels(
    ids_N: Ints, offsets: Ints, first_row_F: Ints, level_R: NDArray[np.uint8], window_R: NDArray[Any], samples_L: Ints
) -> None:
    features = len(first_row_F)
    rows_N = first_row_F[lookup_features(offsets, features)] + ids_N
    np.add.at(window_R, rows_N, 1)
    for first, last in zip(offsets[:-1:features], offsets[features::features], strict=True):
        samples_L[max(level_R[rows_N[first:last]], default=0)] += 1
