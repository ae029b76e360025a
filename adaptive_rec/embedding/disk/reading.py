"""Reading of rows at their addresses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.disk.saved_segments import NOWHERE, segment_path
from adaptive_rec.errors import DiskError
from adaptive_rec.kernels import pages as kernels
from adaptive_rec.kernels.aligned import BLOCK_BYTES, zeros
from adaptive_rec.kernels.pages import PageLayout
from adaptive_rec.kernels.row_addresses import place_rows
from adaptive_rec.system.direct_files import passes_cache_by

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


@dataclass(frozen=True)
class OpenFiles:
    """Files of a log, by the places of its segments (P)."""

    capacity: int
    """Rows of a whole segment."""
    descriptor_P: NDArray[np.int32]
    number_P: NDArray[np.int64]
    checked_PX: NDArray[np.bool_]
    """Which pages (X) had whole heads when a row of theirs was read."""
    folder: Path
    memory: Mapping[int, NDArray[np.uint8]] = field(default_factory=dict)
    """The pages of those that are in memory."""
    address_P: NDArray[np.uint64] = field(init=False)
    """Where these are; 0 for the others."""

    def __post_init__(self) -> None:
        address_P = np.zeros(len(self.number_P), np.uint64)
        for place, pages in self.memory.items():
            address_P[place] = pages.ctypes.data
        object.__setattr__(self, "address_P", address_P)


def read_at(
    layout: PageLayout, wanted: WantedRows, files: OpenFiles, values: tuple[NDArray[np.uint8], NDArray[np.uint8]]
) -> tuple[int, int]:
    """Read rows into lines of bytes, of weights and of optimizer state. Returns how many rows were in memory, and how many were
    read from files. Raises DiskError."""
    found_C, found = find_in_memory(layout, wanted, files, values)
    some = np.flatnonzero(~found_C & (wanted.address_C != NOWHERE))
    if not len(some):
        return found, 0
    places = kernels.RowPlaces.room_for(len(some))
    order_C = some[np.argsort(wanted.address_C[some])]
    arrays = wanted.address_C, wanted.row_C, wanted.line_C
    place_rows(layout, files.capacity, files.descriptor_P, files.number_P, *arrays, order_C, places)
    done, what = read_places(layout, places, files.checked_PX, values)
    if what != kernels.WHOLE:
        raise DiskError(_fault(layout, files.folder, places, done, what))
    return found, done


def read_places(
    layout: PageLayout, places: kernels.RowPlaces, checked_PX: NDArray[np.bool_],
    values: tuple[NDArray[np.uint8], NDArray[np.uint8]],
) -> tuple[int, int]:  # fmt: skip
    """Read rows from files, at least one, in the order of their pages. Returns what `kernels.read_rows` does."""
    if not passes_cache_by(int(places.descriptor_C[0])):
        kernels.announce_rows(layout, places)
    found: tuple[int, int] = kernels.read_rows(layout, places, checked_PX, *values)
    return found


def find_in_memory(
    layout: PageLayout, wanted: WantedRows, files: OpenFiles, values: tuple[NDArray[np.uint8], NDArray[np.uint8]]
) -> tuple[NDArray[np.bool_], int]:
    """Read those rows whose pages are in memory into lines of bytes. Returns which they are, and how many."""
    found_C = np.empty(len(wanted.row_C), np.bool_)
    arrays = wanted.address_C, wanted.row_C, wanted.line_C
    count = kernels.copy_near(layout, files.capacity, files.address_P, *arrays, *values, found_C)
    assert count >= 0, "rows in memory are where their addresses say"
    return found_C, count


def _fault(layout: PageLayout, folder: Path, places: kernels.RowPlaces, failed: int, what: int) -> str:
    """Return the error text for a row that could not be read."""
    start = int(places.page_C[failed]) * layout.page_bytes
    where = f"the page at byte {start} of {segment_path(folder, int(places.file_C[failed]))}"
    try:
        page = zeros((layout.page_bytes,), np.uint8, BLOCK_BYTES)
        os.preadv(int(places.descriptor_C[failed]), [page.data], start)
    except OSError as error:
        return f"{where} must be read, which failed: {error.strerror}"
    return f"{where} {_FOUND[what].format(row=int(places.row_C[failed]))}"


def as_bytes(lines: NDArray[Any]) -> NDArray[np.uint8]:
    """Return lines of an array as bytes."""
    if not lines.size:
        return np.empty((len(lines), 0), dtype=np.uint8)
    return lines.view(np.uint8).reshape(len(lines), -1)
