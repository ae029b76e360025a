"""The cold rows of a batch, and which of them earlier batches still hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels import staging
from adaptive_rec.system.crew import Crew

LEAST_FOUND, LEAST_INDEXED = 4096, 1 << 15
"""Smallest numbers of rows that are worth another thread: to find them among those of earlier batches, and to index them."""


Index: TypeAlias = tuple[NDArray[np.int64], list[int]]
"""The places of a batch's rows by a hash of their numbers, and a line that tells `find_travelling` where all is."""


class TravellingRows:
    """The cold rows of a batch, pool by pool, and an index of them for later batches."""

    def __init__(
        self, row_C: NDArray[np.int64], host_row_C: NDArray[np.int64], ends_P: NDArray[np.int64], crew: Crew,
        indexed: bool = True,
    ) -> None:  # fmt: skip
        """Their numbers in the joint row space and in the host tier, and where those of each pool end. Unless `indexed`, no later
        batch will look for them."""
        self.row_C, self.ends_P = row_C, ends_P
        self._crew = crew
        self._bounds = [0, *ends_P.tolist()]
        self.host_rows = [host_row_C[first:end] for first, end in zip(self._bounds, self._bounds[1:], strict=False)]
        """Rows of the host tier, for each pool."""
        self.index = crew.start(partial(_index_of, row_C, self._bounds[:-1]), len(row_C) * indexed, LEAST_INDEXED)
        """Returns the index, which the next batch that is staged needs."""

    def find(self, earlier: list[TravellingRows]) -> Taken | None:
        """Find the last of the earlier batches that holds each row, and the row's place there. None where none holds any."""
        if not earlier or not len(self.row_C):
            return None
        indices = [each.index() for each in earlier]  # kept, as kernels know only addresses
        earlier_EX = np.array([line for _, line in indices], dtype=np.int64)
        origin_C, place_C = np.empty(len(self.row_C), dtype=np.int32), np.empty(len(self.row_C), dtype=np.int32)
        counts: list[NDArray[np.int64]] = []

        def find(first: int, end: int) -> None:
            count_PE = np.zeros((len(self.ends_P), len(earlier)), dtype=np.int64)
            staging.find_travelling(earlier_EX, self.row_C, first, end, self.ends_P, origin_C, place_C, count_PE)
            counts.append(count_PE)

        self._crew.share(find, len(self.row_C), LEAST_FOUND)
        count_PE = sum(counts[1:], counts[0])
        lines = [
            (pool, number, count)
            for pool, counts_E in enumerate(count_PE.tolist())
            for number, count in enumerate(counts_E)
            if count
        ]
        return Taken(origin_C, place_C, self.ends_P, count_PE, lines) if lines else None


@dataclass(frozen=True)
class Taken:
    """Rows of a batch that earlier ones hold."""

    origin_C: NDArray[np.int32]
    """The last earlier batch that has each row of the batch; -1: none."""
    place_C: NDArray[np.int32]
    """The row's place there among the rows of its pool."""
    ends_P: NDArray[np.int64]
    """Where the rows of each pool end."""
    count_PE: NDArray[np.int64]
    lines: list[tuple[int, int, int]]
    """Pool, earlier batch, and number of rows, for each pair that shares any."""

    def write(self, from_R: NDArray[np.int32], to_R: NDArray[np.int32]) -> None:
        """List places there and places here, line by line."""
        staging.list_taken(self.origin_C, self.place_C, self.ends_P, self.count_PE, from_R, to_R)


def _index_of(row_C: NDArray[np.int64], starts: list[int]) -> Index:
    places = np.zeros(1 << max(1, (2 * len(row_C)).bit_length()), dtype=np.int64)
    staging.index_travelling(row_C, places)
    return places, [_address(places), len(places), _address(row_C), *starts]


def _address(array: NDArray[np.generic]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
