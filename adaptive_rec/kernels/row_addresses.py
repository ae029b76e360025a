"""Addresses of rows in a log: 1 and the place of a segment times the rows of one, and the row's place there; 0 for a row that was
never written. Arrays of segments' places are marked `P`. The plain twins are in `reference/row_addresses.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT
from adaptive_rec.kernels.prefetch import prefetch_row

_ROWS_AHEAD = 16
"""How far ahead of their use addresses are prefetched: those of a batch lie far apart."""


@njit(**JIT)
def find_addresses(address_R, row_C, number_P, capacity, address_C, stamp_C):
    """Find the address of each row, and its stamp: the address that it would have if each segment's place were its number."""
    for c in range(len(row_C)):
        if c + _ROWS_AHEAD < len(row_C):
            prefetch_row(address_R, row_C[c + _ROWS_AHEAD])
        address = np.int64(address_R[row_C[c]])
        address_C[c], stamp_C[c] = address, 0
        if address:
            place = (address - 1) // capacity
            stamp_C[c] = address + (number_P[place] - place) * capacity


@njit(**JIT)
def set_addresses(address_R, row_C, first_address, capacity, live_P):
    """Set the addresses of rows that lie in a segment one after the other, and count each in that segment instead of the one in
    which it was."""
    for c in range(len(row_C)):
        if c + _ROWS_AHEAD < len(row_C):
            prefetch_row(address_R, row_C[c + _ROWS_AHEAD])
        before = np.int64(address_R[row_C[c]])
        if before:
            live_P[(before - 1) // capacity] -= 1
        address_R[row_C[c]] = first_address + c
    live_P[(first_address - 1) // capacity] += len(row_C)


@njit(**JIT)
def place_rows(layout, capacity, descriptor_P, number_P, address_C, row_C, line_C, order_C, places):
    """Set the places in files of rows at some addresses, in an order."""
    for n in range(len(order_C)):
        c = order_C[n]
        place, position = divmod(np.int64(address_C[c]) - 1, capacity)
        page, within = divmod(position, layout.rows)
        places.descriptor_C[n], places.file_C[n] = descriptor_P[place], number_P[place]
        places.page_C[n], places.place_C[n] = page, within
        places.row_C[n], places.line_C[n] = row_C[c], line_C[c]
        places.segment_C[n] = place
