"""Compaction: rows of sparse segments are written once more, so that these segments can be removed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.disk.row_log import RowLog
from adaptive_rec.embedding.disk.segment import Segment
from adaptive_rec.kernels import pages as kernels

_MOVED_AT_A_TIME = 1 << 12
"""Rows that are moved while training waits to append."""


def compact(log: RowLog, is_wanted: Callable[[], bool], on_moving: Callable[[NDArray[np.int64]], None]) -> None:
    """Move rows out of sparse segments until there are few enough, or `is_wanted` says no. `on_moving` is given rows before they
    are moved, and again afterwards: a snapshot in between may have either address. Any one thread may call it. Raises DiskError
    where a page is damaged or nothing can be written."""
    log.segments.sweep()
    while is_wanted():
        with log.segments.sparsest() as segment:
            if segment is None:
                return
            _move_out(log, segment, on_moving)
        log.segments.sweep()


def _move_out(log: RowLog, segment: Segment, on_moving: Callable[[NDArray[np.int64]], None]) -> None:
    layout = log.layout
    row_N, position_N, pages = _rows_of(log, segment)
    address_N = (log.segments.first_address(segment) + position_N).astype(np.uint32)
    live = np.flatnonzero(log.address_R[row_N] == address_N)
    for first in range(0, len(live), _MOVED_AT_A_TIME):
        some = live[first : first + _MOVED_AT_A_TIME]
        weights_LB, state_LB = (
            np.empty((len(some), size), np.uint8) for size in (layout.row_bytes, layout.state_bytes)
        )
        page_C, place_C = np.divmod(position_N[some], layout.rows)
        kernels.unpack_rows(layout, page_C, place_C, row_N[some], np.arange(len(some)), pages, weights_LB, state_LB)
        on_moving(row_N[some])
        log.move(row_N[some], address_N[some], (weights_LB, state_LB))
        on_moving(row_N[some])


def _rows_of(log: RowLog, segment: Segment) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Return the rows of a segment, their positions in it, and its pages."""
    layout, pages = log.layout, segment.read_checked()
    numbers_PW = pages.view(np.uint32).reshape(-1, layout.page_bytes // 4)
    is_row_PR = np.arange(layout.rows) < numbers_PW[:, kernels.ROWS, None]
    row_N = numbers_PW[:, kernels.HEADER : kernels.HEADER + layout.rows][is_row_PR].astype(np.int64)
    return row_N, np.flatnonzero(is_row_PR), pages
