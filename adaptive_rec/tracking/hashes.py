"""Hashes of row numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def hash_rows(rows: NDArray[np.int64], salt: np.uint64) -> NDArray[np.uint64]:
    """Scramble row numbers (the finalizer of SplitMix64)."""
    mixed = rows.astype(np.uint64) + salt
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
