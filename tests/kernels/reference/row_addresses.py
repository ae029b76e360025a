"""Plain twin of `row_addresses.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.pages import PageLayout, RowPlaces


def find_addresses(
    address_R: NDArray[np.uint32], row_C: NDArray[Any], number_P: NDArray[np.int64], capacity: int,
    address_C: NDArray[np.uint32], stamp_C: NDArray[np.int64],
) -> None:  # fmt: skip
    address_C[:] = address_R[row_C]
    place_C, position_C = np.divmod(address_C.astype(np.int64) - 1, capacity)
    stamp_C[:] = np.where(address_C == 0, 0, 1 + number_P[place_C] * capacity + position_C)


def set_addresses(
    address_R: NDArray[np.uint32], row_C: NDArray[Any], first_address: int, capacity: int, live_P: NDArray[np.int64]
) -> None:
    before_C = address_R[row_C].astype(np.int64)
    np.subtract.at(live_P, (before_C[before_C > 0] - 1) // capacity, 1)
    live_P[(first_address - 1) // capacity] += len(row_C)
    address_R[row_C] = first_address + np.arange(len(row_C))


def place_rows(
    layout: PageLayout, capacity: int, descriptor_P: NDArray[np.int32], number_P: NDArray[np.int64],
    address_C: NDArray[np.uint32], row_C: NDArray[Any], line_C: NDArray[Any], order_C: NDArray[Any], places: RowPlaces,
) -> None:  # fmt: skip
    place_C, position_C = np.divmod(address_C[order_C].astype(np.int64) - 1, capacity)
    found = descriptor_P[place_C], number_P[place_C], *np.divmod(position_C, layout.rows), row_C[order_C], line_C[order_C]
    for array, values in zip(places, (*found, place_C), strict=True):
        array[:] = values
