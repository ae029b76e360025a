"""The numbers that keys of tables are scrambled with. Loads nothing heavy: programs that read checkpoints need them too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def salts(seed: int, tables: int) -> NDArray[np.uint64]:
    """Return a number for each table of a run with this seed (T)."""
    return np.random.default_rng(seed).integers(0, 2**64, tables, dtype=np.uint64)
