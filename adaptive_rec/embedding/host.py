"""The host tier: the tables in host memory, one array of rows and one of optimizer state for each pool."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.errors import MemoryPlanError
from adaptive_rec.placement import RowSpace

_CHUNK_ROWS = 1 << 18


class HostTier:
    """Rows start as U(-1/sqrt(rows of the table), +1/sqrt(rows of the table)), as in the DLRM reference."""

    def __init__(self, space: RowSpace, rule: RowRule, seed: int, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        itemsize = self.dtype.itemsize
        needed = sum(pool.rows * (pool.dim + rule.state_width(pool.dim)) * itemsize for pool in space.pools)
        available = _available_bytes()
        if needed > available:
            raise MemoryPlanError(
                f"the tables and their optimizer state need {needed / 2**30:.1f} GiB of host memory, "
                f"{available / 2**30:.1f} GiB are available; lower data.max_table_rows or model.embedding_dim"
            )
        self.weights: list[NDArray[np.floating]] = [
            np.empty((pool.rows, pool.dim), dtype=dtype) for pool in space.pools
        ]
        self.state: list[NDArray[np.floating]] = [
            np.zeros((pool.rows, rule.state_width(pool.dim)), dtype=dtype) for pool in space.pools
        ]
        for table in range(len(space.tables)):
            pool, first, end = space.table_range(table)
            _initialise(self.weights[pool][first:end], seed, table)


def _initialise(weights_RD: NDArray[np.floating], seed: int, table: int) -> None:
    rng = np.random.Generator(np.random.Philox(key=[seed, table]))
    bound = 1 / np.sqrt(len(weights_RD))
    for start in range(0, len(weights_RD), _CHUNK_ROWS):
        chunk = weights_RD[start : start + _CHUNK_ROWS]
        chunk[:] = rng.random(chunk.shape, dtype=chunk.dtype.type)
        chunk *= 2 * bound
        chunk -= bound


def _available_bytes() -> int:
    """Host memory that can be taken without swapping; unlimited where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 1 << 62
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 1 << 62)
