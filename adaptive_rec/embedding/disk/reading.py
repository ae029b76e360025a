"""Reading of rows at their addresses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.disk.saved_segments import NOWHERE, segment_path
from adaptive_rec.errors import DiskError
from adaptive_rec.kernels import pages as kernels
from adaptive_rec.kernels.aligned import BLOCK_BYTES, zeros
from adaptive_rec.kernels.pages import PageLayout
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
    memory: Mapping[int, NDArray[np.uint8]]
    """The pages of those that are in memory."""
    folder: Path


def read_at(
    layout: PageLayout, wanted: WantedRows, files: OpenFiles, values: tuple[NDArray[np.uint8], NDArray[np.uint8]]
) -> tuple[int, int]:
    """Read rows into lines of bytes, of weights and of optimizer state. Returns how many rows were in memory, and how many were
    read from files. Raises DiskError."""
    found_C = find_in_memory(layout, wanted, files, values)
    some = np.flatnonzero(~found_C & (wanted.address_C != NOWHERE))
    if not len(some):
        return int(np.count_nonzero(found_C)), 0
    some = some[np.argsort(wanted.address_C[some])]
    place_C, page_C, within_C = _divided(layout, wanted.address_C[some], files)
    rest = page_C, within_C, wanted.row_C[some], wanted.line_C[some]
    places = kernels.RowPlaces(files.descriptor_P[place_C], files.number_P[place_C], *rest)
    done, what = read_places(layout, places, values)
    if what != kernels.WHOLE:
        raise DiskError(_fault(layout, files.folder, places, done, what))
    return int(np.count_nonzero(found_C)), done


def read_places(
    layout: PageLayout, places: kernels.RowPlaces, values: tuple[NDArray[np.uint8], NDArray[np.uint8]]
) -> tuple[int, int]:
    """Read rows from files, at least one, in the order of their pages. Returns what `kernels.read_rows` does."""
    if not passes_cache_by(int(places.descriptor_C[0])):
        kernels.announce_rows(layout, places)
    found: tuple[int, int] = kernels.read_rows(layout, places, *values)
    return found


def find_in_memory(
    layout: PageLayout, wanted: WantedRows, files: OpenFiles, values: tuple[NDArray[np.uint8], NDArray[np.uint8]]
) -> NDArray[np.bool_]:
    """Read those rows whose pages are in memory into lines of bytes. Returns which they are."""
    found_C = np.zeros(len(wanted.row_C), np.bool_)
    place_C, page_C, within_C = _divided(layout, wanted.address_C, files)
    for place, memory in files.memory.items():
        some = np.flatnonzero(place_C == place)
        where = page_C[some], within_C[some], wanted.row_C[some], wanted.line_C[some]
        count = kernels.unpack_rows(layout, *where, memory, *values)
        assert count == len(some), "rows in memory are where their addresses say"
        found_C[some] = True
    return found_C


def _divided(
    layout: PageLayout, address_C: NDArray[np.uint32], files: OpenFiles
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of segments, the pages and the places within these that some addresses stand for; -1 for NOWHERE."""
    place_C, position_C = np.divmod(address_C.astype(np.int64) - 1, files.capacity)
    page_C, within_C = np.divmod(position_C, layout.rows)
    return place_C, page_C, within_C


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
