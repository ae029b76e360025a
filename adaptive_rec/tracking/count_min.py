"""A decayed count-min sketch counts how popular each row is, in a small fixed memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import CheckpointError, ConfigError
from adaptive_rec.kernels import sketch_numpy
from adaptive_rec.kernels.aligned import zeros
from adaptive_rec.kernels.sketch import estimate_range, sketch_add, sketch_decay, sketch_estimate, sketch_observe
from adaptive_rec.kernels.sketch_numpy import BLOCK_CELLS, REGION_BLOCKS, UNIT, has_lines, sketch_seeds
from adaptive_rec.saved import ANY, Saved
from adaptive_rec.system.crew import Crew

DEPTH = 4
"""Cells of a row."""
MIN_WIDTH = 1 << 10
LEAST_ROWS = 1 << 14
"""Least number of rows for which another thread counts or estimates."""
LEAST_CELLS = 1 << 18
"""Least number of cells for which another thread decays."""


class Estimates(Protocol):
    """Estimates how many lookups of rows are remembered."""

    def estimate(self, rows_U: NDArray[np.int64], /) -> NDArray[np.float64]: ...


class CountMinSketch:
    """Count-min sketch with conservative update and decay. Its answers may be too high, never too low.

    Cormode & Muthukrishnan 2005; conservative update: Estan & Varghese 2002. A 32-bit cell holds 2^28 lookups and
    then stays there. Fixed memory whatever the number of rows: ``16 * width`` bytes. Each of a row's four cells is one of
    `width`; where they lie `kernels/sketch.py` describes. The threads of `crew` count batches and change no result.
    """

    def __init__(self, width: int, seed: int = 0, crew: Crew | None = None) -> None:
        if width < BLOCK_CELLS or width & (width - 1):
            raise ConfigError(f"width must be a power of two of at least {BLOCK_CELLS}, got {width}")
        self.seeds: NDArray[np.uint64] = sketch_seeds(seed)
        self.counters: NDArray[np.uint32] = zeros((DEPTH * width // BLOCK_CELLS, BLOCK_CELLS), np.uint32)
        self.width = width
        self.seed = seed
        self.decays = 0
        """Decays so far. It is saved with `counters`, as each decay draws other random numbers."""
        self._crew = Crew(1) if crew is None else crew

    @property
    def bytes(self) -> int:
        return int(self.counters.nbytes)

    def add(self, rows_U: NDArray[np.int64], counts_U: NDArray[np.int64]) -> None:
        """Count each row (best distinct, given once with its number of lookups) `counts_U` more times."""
        if len(rows_U) != len(counts_U):
            raise ValueError(f"rows and counts must be equally long, got {len(rows_U)} and {len(counts_U)}")
        # Clipped first: a cell holds no more anyway, and the product must not overflow.
        units_U = np.minimum(np.asarray(counts_U, dtype=np.int64), 1 << 32) * UNIT
        sketch_add(self.counters, rows_U, units_U, self.seeds[0])

    def take_over(self, other: Estimates, rows_U: NDArray[np.int64]) -> None:
        """Count what another sketch remembers of some rows, all given once."""
        units_U = (other.estimate(rows_U) * UNIT).astype(np.int64)
        sketch_add(self.counters, rows_U, units_U, self.seeds[0])

    def observe(self, rows_U: NDArray[np.int64], segments_U1: NDArray[np.int64]) -> None:
        """Count a batch's distinct rows, ``segments_U1[u + 1] - segments_U1[u]`` lookups of row u."""

        def count(first_region: int, end_region: int) -> None:
            sketch_observe(self.counters, rows_U, segments_U1, UNIT, self.seeds[0], first_region, end_region)

        regions = -(-len(self.counters) // REGION_BLOCKS)
        self._crew.share(count, regions, -(-regions * LEAST_ROWS // max(1, len(rows_U))))

    def estimate(self, rows_U: NDArray[np.int64], threads: int = 1) -> NDArray[np.float64]:
        """Return about how many lookups of each row are remembered (1/16 is the smallest step). Only the training thread may ask
        for more threads; for others the crew works."""
        lookups_U = np.empty(len(rows_U))
        arrays = self.counters, rows_U, self.seeds[0], UNIT, lookups_U
        if threads > 1:
            sketch_estimate(*arrays, threads)
        else:
            self._crew.share(lambda first, end: estimate_range(first, end, *arrays), len(rows_U), LEAST_ROWS)
        return lookups_U

    def decay(self, factor: float) -> None:
        """Multiply all counts so far by `factor`, 0 to 1."""
        if not 0 <= factor <= 1:
            raise ConfigError(f"decay must be between 0 and 1, got {factor}")
        arguments = self.counters, factor, np.uint64((self.seed * 2**32 + self.decays) % 2**64)
        self._crew.share(lambda first, end: sketch_decay(*arguments, first, end), self.counters.size, LEAST_CELLS)
        self.decays += 1

    def state(self) -> dict[str, Any]:
        return {"counters": self.counters, "decays": self.decays}

    def set_state(self, found: Saved) -> None:
        """Restore a saved state. Of an older version's, which has lines, only the number of decays is: see `take_over`."""
        self.decays = found.integer("decays")
        if of_older_version(found):
            self.counters[:] = 0
        else:
            self.counters[:] = found.array("counters", np.uint32, *self.counters.shape)


@dataclass(frozen=True)
class LineSketch:
    """A sketch that an older version saved: a line of cells for each of several hashes. Nothing is added to it any more."""

    counters: NDArray[np.uint32]
    seeds: NDArray[np.uint64]

    def estimate(self, rows_U: NDArray[np.int64]) -> NDArray[np.float64]:
        lookups_U = np.empty(len(rows_U))
        for start in range(0, len(rows_U), LEAST_ROWS):
            some = slice(start, start + LEAST_ROWS)
            sketch_numpy.sketch_estimate(self.counters, rows_U[some], self.seeds, UNIT, lookups_U[some])
        return lookups_U


def of_older_version(found: Saved) -> bool:
    """Return whether an older version saved this sketch. Raises CheckpointError where it can be none."""
    try:
        return has_lines(found.shape("counters"))
    except ValueError as error:
        raise CheckpointError(str(error)) from None


def saved_width(found: Saved) -> int:
    """Return the width of a saved sketch. Raises CheckpointError where it can be none."""
    lines, shape = of_older_version(found), found.shape("counters")
    return shape[1] if lines else shape[0] * BLOCK_CELLS // DEPTH


def saved_sketch(found: Saved, seed: int) -> CountMinSketch | LineSketch:
    """Return a sketch as it was saved. Raises CheckpointError where it can be none."""
    if of_older_version(found):
        counters = found.array("counters", np.uint32, ANY, ANY)
        return LineSketch(counters, sketch_seeds(seed, len(counters)))
    sketch = CountMinSketch(saved_width(found), seed)
    sketch.set_state(found)
    return sketch


def width_for(hot_rows: int, rows: int, limit_bytes: int) -> int:
    """Return a sketch's width: a power of two, at least 4 times the hot rows, as far as `limit_bytes` allows.

    No less than 2^16 (1 MiB, still in a core's cache) unless the tables are smaller than that: in a narrow sketch the
    many rare rows add up and look popular.
    """
    if limit_bytes < 4 * DEPTH * MIN_WIDTH:
        raise ConfigError(f"limit_bytes must be at least {4 * DEPTH * MIN_WIDTH}, got {limit_bytes}")
    wanted = max(4 * min(hot_rows, rows), min(rows, 1 << 16), MIN_WIDTH)
    affordable = limit_bytes // (4 * DEPTH)
    return min(1 << (wanted - 1).bit_length(), 1 << (affordable.bit_length() - 1))
