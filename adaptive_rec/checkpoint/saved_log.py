"""Rows of a generation that lie on a disk, in segments that it names (see `embedding/disk/`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.checkpoint.disk_entry import TYPES
from adaptive_rec.checkpoint.safetensors_file import DTYPES, StoredArray
from adaptive_rec.embedding.disk.first_values import draw_first
from adaptive_rec.embedding.disk.reading import OpenFiles, WantedRows, as_bytes, read_at
from adaptive_rec.embedding.disk.saved_segments import NOWHERE, SavedLog, SavedPool, pool_folder, segment_path
from adaptive_rec.embedding.disk.segment import Segment, layout_of
from adaptive_rec.errors import CheckpointError, DiskError
from adaptive_rec.kernels.pages import PageLayout


def verify_segments(saved: SavedLog) -> int:
    """Read every page of a generation's segments. Returns how many bytes they have. Raises CheckpointError with file and place of
    the first that is damaged."""
    size_bytes = 0
    for number, pool in enumerate(saved.pools):
        for entry in pool.segments:
            path = segment_path(pool_folder(saved.folder, number), entry.number)
            with _checkpoint_errors(), closing(Segment.existing(path, entry, _layout(pool))) as segment:
                segment.read_checked()
                size_bytes += segment.size_bytes
    return size_bytes


class SegmentsReader:
    """Reads rows of a generation from its segments. The files are open while it lives, so a run may remove them meanwhile."""

    def __init__(self, saved: SavedLog, seed: int, rows_T: list[tuple[int, int]]) -> None:
        """`seed`: that of the first values; `rows_T`: first row and rows of each table."""
        self._saved, self._seed, self._rows_T = saved, seed, rows_T
        self._segments: list[list[Segment]] = []
        self._files: list[OpenFiles] = []
        for number, pool in enumerate(saved.pools):
            layout, folder = _layout(pool), pool_folder(saved.folder, number)
            with _checkpoint_errors():
                found = [Segment.existing(segment_path(folder, entry.number), entry, layout) for entry in pool.segments]
            places = 1 + max((segment.place for segment in found), default=-1)
            descriptor_P, number_P = np.full(places, -1, dtype=np.int32), np.full(places, -1, dtype=np.int64)
            for segment in found:
                descriptor_P[segment.place], number_P[segment.place] = segment.descriptor, segment.number
            self._segments.append(found)
            self._files.append(OpenFiles(pool.segment_pages * layout.rows, descriptor_P, number_P, {}, folder))

    def types(self, row: int) -> tuple[StoredArray, StoredArray]:
        """Return types and shapes of weights and optimizer state in the pool of a row of the joint row space."""
        pool = self._saved.pools[self._pool_of(row)]
        kinds = (
            StoredArray(TYPES[like.dtype], (pool.rows, like.shape[1]), 0, pool.rows * like.shape[1] * like.itemsize)
            for like in (pool.weights, pool.state)
        )
        weight, state = kinds
        return weight, state

    def read(self, table: int, first: int, address_N: NDArray[np.uint32]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Read the rows of a table from number `first` on, which are at these addresses, and their optimizer state."""
        row = self._rows_T[table][0] + first
        number = self._pool_of(row)
        pool, files = self._saved.pools[number], self._files[number]
        weights, state = (np.empty((len(address_N), like.shape[1]), like.dtype) for like in (pool.weights, pool.state))
        lines = np.arange(len(address_N))
        place_N = (address_N[address_N != NOWHERE].astype(np.int64) - 1) // files.capacity
        if len(place_N) and (place_N.max() >= len(files.number_P) or (files.number_P[place_N] < 0).any()):
            raise CheckpointError(f"rows in {files.folder} must be in the checkpoint's segments, some are not")
        wanted = WantedRows(address_N, row - pool.first_row + lines, lines)
        with _checkpoint_errors():
            read_at(_layout(pool), wanted, files, (as_bytes(weights), as_bytes(state)))
        fresh = np.flatnonzero(address_N == NOWHERE)
        draw_first(self._seed, table, self._rows_T[table][1], first + fresh, fresh, weights, state)
        return weights.view(DTYPES[TYPES[weights.dtype]]), state

    def close(self) -> None:
        for segment in (segment for found in self._segments for segment in found):
            segment.close()

    def _pool_of(self, row: int) -> int:
        return next(
            number
            for number, pool in enumerate(self._saved.pools)
            if pool.first_row <= row < pool.first_row + pool.rows
        )


@contextmanager
def _checkpoint_errors() -> Iterator[None]:
    try:
        yield
    except DiskError as error:
        raise CheckpointError(str(error)) from None


def _layout(pool: SavedPool) -> PageLayout:
    row_bytes, state_bytes = (each.shape[1] * each.itemsize for each in (pool.weights, pool.state))
    return layout_of(row_bytes, state_bytes, pool.page_bytes, pool.page_rows)
