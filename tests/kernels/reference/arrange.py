"""Plain NumPy twins of the kernels that arrange a stream."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _rows(ids_N: Array, offsets: Array, first_row_F: Array) -> tuple[Array, Array]:
    """Joint row and sample of each lookup."""
    bag_N = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return first_row_F[bag_N % len(first_row_F)] + ids_N, bag_N // len(first_row_F)


def ids_fit(ids_N: Array, offsets: Array, rows_F: Array) -> bool:
    limit_N = np.repeat(np.tile(rows_F, (len(offsets) - 1) // len(rows_F)), np.diff(offsets))
    return bool(np.all((ids_N >= 0) & (ids_N < limit_N)))


def find_hot_samples(ids_N: Array, offsets: Array, first_row_F: Array, hot_R: Array, hot_B: Array) -> None:
    row_N, sample_N = _rows(ids_N, offsets, first_row_F)
    hot_B[:] = np.bincount(sample_N[~hot_R[row_N]], minlength=len(hot_B)) == 0


def copy_samples(
    samples_S: Array, features: int, ids_N: Array, offsets: Array, to_ids: Array, to_offsets: Array
) -> None:
    bags = (np.asarray(samples_S)[:, None] * features + np.arange(features)).ravel()
    to_offsets[0] = 0
    to_offsets[1:] = np.cumsum(np.diff(offsets)[bags])
    to_ids[:] = np.concatenate([ids_N[:0], *(ids_N[offsets[bag] : offsets[bag + 1]] for bag in bags)])


def count_chosen(ids_N: Array, offsets: Array, first_row_F: Array, chosen_B: Array, counts_R: Array) -> None:
    row_N, sample_N = _rows(ids_N, offsets, first_row_F)
    np.add.at(counts_R, row_N[chosen_B[sample_N]], 1)


def count_flagged(ids_N: Array, offsets: Array, first_row_F: Array, flag_R: Array, count_B: Array) -> None:
    row_N, sample_N = _rows(ids_N, offsets, first_row_F)
    count_B[:] = np.bincount(sample_N[flag_R[row_N]], minlength=len(count_B))
