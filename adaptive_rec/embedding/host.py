"""Arrays of rows in host memory, one of weights and one of optimizer state for each pool."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from adaptive_rec.embedding.optimizer import RowRule, rules_of_pools
from adaptive_rec.kernels.aligned import BLOCK_BYTES, zeros
from adaptive_rec.kernels.rows16 import PATTERNS
from adaptive_rec.placement import RowSpace

_CHUNK_ROWS = 1 << 16

COPIED_ROWS = 1 << 18
"""Limit of rows that are copied between tiers at a time."""

SLOT_BYTES = np.dtype(np.int32).itemsize + 2
"""Host memory of a row besides weights and optimizer state: its slot, and two flags for rows that changed and are to be saved."""

Arrays: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
"""Rows and their optimizer state."""

GivenRows: TypeAlias = tuple[NDArray[Any] | None, NDArray[Any] | None]
"""Rows and their optimizer state that are set; None: they stay."""


class ColdTier:
    """Where cold rows are: arrays of those that are in host memory."""

    def __init__(self, space: RowSpace, rule: RowRule | Sequence[RowRule], dtype: DTypeLike, rows_P: list[int]) -> None:
        """`dtype` is the type of the optimizer state, and of weights that are not kept in 16 bits; `rows_P`: rows of each pool in
        host memory."""
        self.dtype = np.dtype(dtype)
        rules = rules_of_pools(rule, len(space.pools))
        kept = PATTERNS.get(rules[0].row_precision, self.dtype)
        pools = list(zip(space.pools, rows_P, strict=True))
        # Each on pages of its own, as a device that reads them has whole pages locked.
        self.weights: list[NDArray[Any]] = [zeros((rows, pool.dim), kept, BLOCK_BYTES) for pool, rows in pools]
        """Bit patterns where rows are kept in 16 bits, see `kernels/rows16.py`."""
        self.state: list[NDArray[np.floating]] = [
            zeros((rows, own.state_width(pool.dim)), dtype, BLOCK_BYTES) for own, (pool, rows) in zip(rules, pools, strict=True)
        ]

    def arrays(self, pool: int) -> Arrays:
        """Return a pool's rows and optimizer state."""
        return self.weights[pool], self.state[pool]


def room_like(arrays: Arrays, rows: int) -> Arrays:
    """Return zeros for some rows like others, with their optimizer state."""
    weights, state = (np.zeros((rows, like.shape[1]), like.dtype) for like in arrays)
    return weights, state


def first_bound(rows: int) -> float:
    """Return the bound of the first values in a table of so many rows."""
    return float(1 / np.sqrt(max(1, rows)))


def fill_parts(rows: int, fill: Callable[[slice], None]) -> None:
    """Call a function for each part of some rows, on all cores."""
    parts = [slice(first, first + _CHUNK_ROWS) for first in range(0, rows, _CHUNK_ROWS)]
    if len(parts) == 1:
        fill(parts[0])
        return
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        deque(threads.map(fill, parts), maxlen=0)  # raises what a thread raised
