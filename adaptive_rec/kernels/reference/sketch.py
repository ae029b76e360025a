"""Plain NumPy twins of the kernels in `sketch.py`: the readable specification, and what the tests compare against."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.sketch_numpy import Seeds, find_cells, mix, sketch_estimate

__all__ = ["find_cells", "mix", "sketch_add", "sketch_decay", "sketch_estimate", "sketch_observe"]

Array = NDArray[Any]


def sketch_add(counters: Array, rows_U: Array, counts_U: Array, seeds: Seeds) -> None:
    lines = np.arange(len(counters))
    for cells, count in zip(find_cells(rows_U, seeds, counters.shape[1]).T, counts_U, strict=True):
        if count > 0:
            new = min(int(counters[lines, cells].min()) + int(count), 2**32 - 1)
            counters[lines, cells] = np.maximum(counters[lines, cells], np.uint32(new))


def sketch_observe(
    counters: Array, rows_U: Array, segments_U1: Array, source_U: Array, unit: int, seeds: Seeds, out: Array
) -> int:
    sketch_add(counters, rows_U, np.diff(segments_U1) * unit, seeds)
    cold = rows_U[source_U < 0]
    out[: len(cold)] = cold
    return len(cold)


def sketch_decay(counters: Array, factor: float, seed: int) -> None:
    scale = np.uint64(int(factor * 2**32 + 0.5))
    place = np.arange(counters.size, dtype=np.uint64).reshape(counters.shape)
    random = mix(mix(np.array([seed], dtype=np.uint64)) + place) >> np.uint64(32)
    counters[:] = (counters.astype(np.uint64) * scale + random) >> np.uint64(32)
