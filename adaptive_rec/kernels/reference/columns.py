"""Plain twin of `kernels/columns.py`."""

from __future__ import annotations

import numpy as np


def pick_columns(table_SN, column_P, first, out_SM, threads=1):
    out_SM[:, first : first + len(column_P)] = np.where(column_P >= 0, table_SN[:, column_P], 0)
