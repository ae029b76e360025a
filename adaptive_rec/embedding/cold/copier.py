"""Copies of rows and their optimizer state, by several threads where it pays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.cold.home import OfParts, no_rows
from adaptive_rec.embedding.host import Arrays
from adaptive_rec.kernels import staging
from adaptive_rec.system.crew import Crew

_CHUNK_BYTES = 1 << 20
"""Least size of a thread's share of a copy."""


class RowCopier:
    """Copies rows and their optimizer state out of and into a pool's arrays."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def gather(self, arrays: Arrays, rows_C: NDArray[np.int64], packed: Arrays) -> None:
        self._share(staging.gather_rows, arrays, rows_C, packed)

    def scatter(self, arrays: Arrays, rows_C: NDArray[np.int64], packed: Arrays, also: OfParts = no_rows) -> None:
        """`also` is called for parts of the rows, by the threads that copied them."""
        self._share(staging.scatter_rows, arrays, rows_C, packed, also)

    def _share(
        self, kernel: Any, arrays: Arrays, rows_C: NDArray[np.int64], packed: Arrays, also: OfParts = no_rows
    ) -> None:
        weights_CD, state_CK = packed

        def copy(first: int, end: int) -> None:
            kernel(*arrays, rows_C[first:end], weights_CD[first:end], state_CK[first:end])
            also(first, end)

        self._crew.share(copy, len(rows_C), _CHUNK_BYTES * len(rows_C) // max(1, weights_CD.nbytes + state_CK.nbytes))


class PlainCopier(RowCopier):
    """Copies on the calling thread, without kernels: for a CPU, where rows move between steps only."""

    def __init__(self) -> None: ...

    def gather(self, arrays: Arrays, rows_C: NDArray[np.int64], packed: Arrays) -> None:
        for kept, out in zip(arrays, packed, strict=True):
            np.take(kept, rows_C, axis=0, out=out, mode="clip")

    def scatter(self, arrays: Arrays, rows_C: NDArray[np.int64], packed: Arrays, also: OfParts = no_rows) -> None:
        for kept, values in zip(arrays, packed, strict=True):
            kept[rows_C] = values
        also(0, len(rows_C))
