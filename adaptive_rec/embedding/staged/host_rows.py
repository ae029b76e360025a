"""Cold rows of a device run, as they leave the host for the device and come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.host import Arrays, HostTier
from adaptive_rec.kernels import staging
from adaptive_rec.system.crew import Crew

_CHUNK_BYTES = 1 << 20
"""Least size of a thread's share of a copy."""


OfParts: TypeAlias = Callable[[int, int], object]
"""Work on the rows from one to another."""


def no_rows(first: int, end: int) -> None: ...


class HostRows(Protocol):
    """Where cold rows are read and written. `packed` are weights and optimizer state that lie side by side (C). The staging
    worker reads while the write-back thread writes; a row that an earlier flight still holds is forwarded, whatever
    is read here."""

    def read(self, pool: int, rows_C: NDArray[np.int64], packed: Arrays) -> int:
        """Copy rows, by their numbers within the pool, into `packed`. Returns how many were not in host memory."""

    def write(
        self, pool: int, rows_C: NDArray[np.int64], packed: Arrays, changed_C: NDArray[np.bool_] | None, also: OfParts = no_rows
    ) -> None:
        """Copy `packed` to rows, by their numbers within the pool; `changed_C`: which have changed since they were read (None:
        all). `also` is called for parts of the rows, which together are all."""


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


class RowsInMemory:
    """Cold rows that are all in host memory."""

    def __init__(self, host: HostTier, copier: RowCopier) -> None:
        self._host, self._copier = host, copier

    def read(self, pool: int, rows_C: NDArray[np.int64], packed: Arrays) -> int:
        self._copier.gather(self._host.arrays(pool), rows_C, packed)
        return 0

    def write(
        self, pool: int, rows_C: NDArray[np.int64], packed: Arrays, changed_C: NDArray[np.bool_] | None, also: OfParts = no_rows
    ) -> None:
        self._host.keep(pool, rows_C)
        self._copier.scatter(self._host.arrays(pool), rows_C, packed, also)
