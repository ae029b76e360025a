"""Plain twin of `kernels/columns.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def pick_columns(
    table_SN: NDArray[Any], column_P: NDArray[np.int64], first: int, out_SM: NDArray[Any], threads: int = 1
) -> None:
    out_SM[:, first : first + len(column_P)] = np.where(column_P >= 0, table_SN[:, column_P], 0)
