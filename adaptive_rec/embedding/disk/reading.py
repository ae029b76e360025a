"""Reading of rows at their addresses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.disk.segment import Segment
from adaptive_rec.errors import DiskError
from adaptive_rec.kernels import pages as kernels
from adaptive_rec.kernels.pages import PageLayout

NOWHERE = 0
"""The address of a row that was never written: it has its first value."""

_FOUND = {
    kernels.SHORT: "must be read whole, its end is missing",
    kernels.DAMAGED: "is damaged: its crc32 differs",
    kernels.WRONG: "must hold row {row}, it holds another page or row",
}


@dataclass(frozen=True)
class WantedRows:
    """Rows by their addresses and numbers within the pool, and the lines they go to; those that are NOWHERE are passed over."""

    address_C: NDArray[np.uint32]
    row_C: NDArray[np.int64]
    line_C: NDArray[np.int64]


def places_of(address_C: NDArray[np.uint32], capacity: int) -> list[int]:
    """Return the places of the segments that have some addresses, where each segment has room for `capacity` rows."""
    places: list[int] = np.unique((address_C[address_C != NOWHERE].astype(np.int64) - 1) // capacity).tolist()
    return places


def read_at(
    layout: PageLayout, capacity: int, wanted: WantedRows, segments: Mapping[int, Segment],
    pages: Mapping[int, NDArray[np.uint8] | None], values: tuple[NDArray[np.uint8], NDArray[np.uint8]],
) -> tuple[int, int]:  # fmt: skip
    """Read rows into lines of bytes, of weights and of optimizer state. `segments` and `pages`, their memory where they have it,
    are by their places. Returns how many rows were in memory, and how many were read from files. Raises DiskError."""
    on_disk_C = wanted.address_C != NOWHERE
    place_C, position_C = np.divmod(wanted.address_C.astype(np.int64) - 1, capacity)
    page_C, within_C = np.divmod(position_C, layout.rows)
    found = 0
    for place, memory in pages.items():
        if memory is None:
            continue
        some = np.flatnonzero(place_C == place)
        where = page_C[some], within_C[some], wanted.row_C[some], wanted.line_C[some]
        count = kernels.unpack_rows(layout, *where, memory, *values)
        assert count == len(some), "rows in memory are where their addresses say"
        on_disk_C[some] = False
        found += count
    some = np.flatnonzero(on_disk_C)
    if not len(some):
        return found, 0
    some = some[np.argsort(wanted.address_C[some])]
    index_C = np.searchsorted(sorted(segments), place_C[some])
    ordered = [segments[place] for place in sorted(segments)]
    descriptors = np.array([segment.descriptor for segment in ordered], dtype=np.int32)
    numbers = np.array([segment.number for segment in ordered], dtype=np.int64)
    rest = page_C[some], within_C[some], wanted.row_C[some], wanted.line_C[some]
    places = kernels.RowPlaces(descriptors[index_C], numbers[index_C], *rest)
    kernels.announce_rows(layout, places)
    done, what = kernels.read_rows(layout, places, *values)
    if what != kernels.WHOLE:
        raise DiskError(_fault(layout, ordered[index_C[done]], int(places.page_C[done]), what, int(places.row_C[done])))
    return found, done


def _fault(layout: PageLayout, segment: Segment, page: int, what: int, row: int) -> str:
    """Return the error text for a page that could not be used."""
    start = page * layout.page_bytes
    where = f"the page at byte {start} of {segment.path}"
    try:
        os.pread(segment.descriptor, layout.page_bytes, start)
    except OSError as error:
        return f"{where} must be read, which failed: {error.strerror}"
    return f"{where} {_FOUND[what].format(row=row)}"


def as_bytes(lines: NDArray[Any]) -> NDArray[np.uint8]:
    """Return lines of an array as bytes."""
    if not lines.size:
        return np.empty((len(lines), 0), dtype=np.uint8)
    return lines.view(np.uint8).reshape(len(lines), -1)
