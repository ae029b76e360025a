"""Plain NumPy twins of the kernels in `sketch.py`: the readable specification, and what the tests compare against."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.sketch_numpy import REGION_BLOCKS, find_cells, mix
from adaptive_rec.kernels.sketch_numpy import sketch_estimate as estimate

__all__ = ["find_cells", "mix", "sketch_add", "sketch_decay", "sketch_estimate", "sketch_observe"]

Array = NDArray[Any]


def sketch_add(counters: Array, rows_U: Array, counts_U: Array, seed: np.uint64) -> None:
    flat = counters.reshape(-1)
    for cells, count in zip(find_cells(rows_U, (seed,), counters.shape).T, counts_U, strict=True):
        if count > 0:
            new = min(int(flat[cells].min()) + int(count), 2**32 - 1)
            flat[cells] = np.maximum(flat[cells], np.uint32(new))


def sketch_observe(
    counters: Array, rows_U: Array, segments_U1: Array, unit: int, seed: np.uint64, first_region: int, end_region: int
) -> None:
    block_U = find_cells(rows_U, (seed,), counters.shape)[0] // counters.shape[1]
    region_U = block_U // min(REGION_BLOCKS, len(counters))
    own_U = (region_U >= first_region) & (region_U < end_region)
    sketch_add(counters, rows_U[own_U], np.diff(segments_U1)[own_U] * unit, seed)


def sketch_estimate(counters: Array, rows_U: Array, seed: np.uint64, unit: int, out_U: Array) -> None:
    estimate(counters, rows_U, (seed,), unit, out_U)


def sketch_decay(counters: Array, factor: float, seed: int) -> None:
    scale = np.uint64(int(factor * 2**32 + 0.5))
    place = np.arange(counters.size, dtype=np.uint64).reshape(counters.shape)
    random = mix(mix(np.array([seed], dtype=np.uint64)) + place) >> np.uint64(32)
    counters[:] = (counters.astype(np.uint64) * scale + random) >> np.uint64(32)
