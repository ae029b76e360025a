"""First values of rows that were never written."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.host import first_bound
from adaptive_rec.kernels.fill import fill_rows


def draw_first(
    seed: int, table: int, rows: int, row_C: NDArray[np.int64], line_C: NDArray[np.int64], weights_LD: NDArray[Any],
    state_LK: NDArray[Any],
) -> None:  # fmt: skip
    """Set lines to the first values of some rows of a table, which has so many `rows`; their optimizer state is zero."""
    if not len(row_C):
        return
    drawn = np.empty((len(row_C), weights_LD.shape[1]), dtype=weights_LD.dtype)
    fill_rows(np.uint64(seed % 2**64), table, first_bound(rows), row_C, drawn)
    weights_LD[line_C] = drawn
    state_LK[line_C] = 0
