"""Plain NumPy twins of `row_vectors.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def sum_rows(hot_HD: Array, cold_RD: Array, source_N: Array, start: int, stop: int, out_LD: Array, line: int) -> None:
    out_LD[line] = 0
    for source in source_N[start:stop]:
        out_LD[line] += hot_HD[source] if source >= 0 else cold_RD[~source]


def sum_of_squares(values_LD: Array, line: int) -> Any:
    return np.square(values_LD[line]).sum()


def subtract_scaled(rows_RD: Array, row: int, scale: float, values_LD: Array, line: int) -> None:
    rows_RD[row] -= rows_RD.dtype.type(scale) * values_LD[line]
