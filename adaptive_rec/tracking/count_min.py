"""A decayed count-min sketch counts how popular each row is, in a small fixed memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import CheckpointError, ConfigError
from adaptive_rec.kernels.sketch import sketch_add, sketch_decay, sketch_estimate, sketch_observe
from adaptive_rec.kernels.sketch_numpy import UNIT, sketch_seeds
from adaptive_rec.saved import Saved

DEPTH = 4
MIN_WIDTH = 1 << 10


class CountMinSketch:
    """Count-min sketch with conservative update and decay. Its answers may be too high, never too low.

    Cormode & Muthukrishnan 2005; conservative update: Estan & Varghese 2002. A 32-bit cell holds 2^28 lookups and
    then stays there. Fixed memory whatever the number of rows: ``4 * depth * width`` bytes.
    """

    def __init__(self, width: int, depth: int = DEPTH, seed: int = 0) -> None:
        if width < 2 or width & (width - 1):
            raise ConfigError(f"width must be a power of two of at least 2, got {width}")
        if depth < 1:
            raise ConfigError(f"depth must be at least 1, got {depth}")
        self.seeds: NDArray[np.uint64] = sketch_seeds(seed, depth)
        self._hashes = tuple(self.seeds)
        self.counters: NDArray[np.uint32] = np.zeros((depth, width), dtype=np.uint32)
        self.seed = seed
        self.decays = 0
        """Decays so far. It is saved with `counters`, as each decay draws other random numbers."""

    @property
    def bytes(self) -> int:
        return int(self.counters.nbytes)

    def add(self, rows_U: NDArray[np.int64], counts_U: NDArray[np.int64]) -> None:
        """Count each row (best distinct, given once with its number of lookups) `counts_U` more times."""
        if len(rows_U) != len(counts_U):
            raise ValueError(f"rows and counts must be equally long, got {len(rows_U)} and {len(counts_U)}")
        # Clipped first: a cell holds no more anyway, and the product must not overflow.
        units_U = np.minimum(np.asarray(counts_U, dtype=np.int64), 1 << 32) * UNIT
        sketch_add(self.counters, rows_U, units_U, self._hashes)

    def observe(
        self,
        rows_U: NDArray[np.int64],
        segments_U1: NDArray[np.int64],
        source_U: NDArray[np.int64],
        out: NDArray[np.int64],
    ) -> int:
        """Count a batch's distinct rows, ``segments_U1[u + 1] - segments_U1[u]`` lookups of row u.

        The cold ones (``source_U < 0``) are written to `out`, which has room for all; returns how many they are.
        """
        return int(sketch_observe(self.counters, rows_U, segments_U1, source_U, UNIT, self._hashes, out))

    def estimate(self, rows_U: NDArray[np.int64], threads: int = 1) -> NDArray[np.float64]:
        """Return about how many lookups of each row are remembered (1/16 is the smallest step)."""
        lookups_U = np.empty(len(rows_U))
        sketch_estimate(self.counters, rows_U, self._hashes, UNIT, lookups_U, threads)
        return lookups_U

    def decay(self, factor: float, threads: int = 1) -> None:
        """Multiply all counts so far by `factor`, 0 to 1. Only the training thread may ask for more threads."""
        if not 0 <= factor <= 1:
            raise ConfigError(f"decay must be between 0 and 1, got {factor}")
        sketch_decay(self.counters, factor, np.uint64((self.seed * 2**32 + self.decays) % 2**64), threads)
        self.decays += 1

    def state(self) -> dict[str, Any]:
        return {"counters": self.counters, "decays": self.decays}

    def set_state(self, found: Saved) -> None:
        self.counters[:] = found.array("counters", np.uint32, *self.counters.shape)
        self.decays = found.integer("decays")


def saved_sketch(found: Saved, seed: int) -> CountMinSketch:
    """Return a sketch as it was saved. Raises CheckpointError where it can be none."""
    shape = found.shape("counters")
    if len(shape) != 2 or shape[0] < 1 or shape[1] < 2 or shape[1] & (shape[1] - 1):
        raise CheckpointError(f"a sketch must have lines of 2^n cells, got {shape}")
    sketch = CountMinSketch(shape[1], shape[0], seed)
    sketch.set_state(found)
    return sketch


def width_for(hot_rows: int, rows: int, limit_bytes: int, depth: int = DEPTH) -> int:
    """Return a sketch's width: a power of two, at least 4 times the hot rows, as far as `limit_bytes` allows.

    No less than 2^16 (1 MiB, still in a core's cache) unless the tables are smaller than that: in a narrow sketch the
    many rare rows add up and look popular.
    """
    if limit_bytes < 4 * depth * MIN_WIDTH:
        raise ConfigError(f"limit_bytes must be at least {4 * depth * MIN_WIDTH}, got {limit_bytes}")
    wanted = max(4 * min(hot_rows, rows), min(rows, 1 << 16), MIN_WIDTH)
    affordable = limit_bytes // (4 * depth)
    return min(1 << (wanted - 1).bit_length(), 1 << (affordable.bit_length() - 1))
