"""Plain twins of the passes over rows that are ranked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def are_hot(slot_of_row: NDArray[Any], rows: NDArray[np.int64], threads: int = 1) -> NDArray[np.bool_]:
    return slot_of_row[rows] >= 0


def places_between(scores: NDArray[Any], low: float, high: float, threads: int = 1) -> NDArray[np.int64]:
    return np.flatnonzero((low <= scores) & (scores <= high))
