"""Plain twin of `fill.py`, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.kernels.reference.rows16 import narrowed

GOLDEN = 0x9E3779B97F4A7C15
NEAREST = np.uint32(1 << 31)


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _numbers(values: list[int]) -> NDArray[np.uint64]:
    return np.array([value % 2**64 for value in values], dtype=np.uint64)


def fill_uniform(seed: int, table: int, bound: float, first_row: int, weights_RD: NDArray[np.generic]) -> None:
    fill_rows(seed, table, bound, first_row + np.arange(len(weights_RD)), weights_RD)


def fill_rows(
    seed: int, table: int, bound: float, row_R: NDArray[np.int64], weights_RD: NDArray[np.generic]
) -> None:
    dim = weights_RD.shape[1]
    low = (dim + 1) // 2
    key = int(mixed(_numbers([int(mixed(_numbers([seed + GOLDEN]))[0]) + table * GOLDEN]))[0])
    for r, row in enumerate(row_R.tolist()):
        draws = mixed(_numbers([key + (row * low + j + 1) * GOLDEN for j in range(low)]))
        halves = np.concatenate([draws & np.uint64(0xFFFFFFFF), draws >> np.uint64(32)])[:dim].astype(np.uint32)
        values = (halves.view(np.int32) >> 8).astype(np.float32) * np.float32(bound / 2**23)
        weights_RD[r] = narrowed(values, NEAREST, weights_RD.dtype)
