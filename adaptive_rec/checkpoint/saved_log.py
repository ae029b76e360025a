"""Rows of a generation that lie on a disk, in segments that it names (see `embedding/disk/`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import TableSpec
from adaptive_rec.checkpoint.disk_entry import TYPES
from adaptive_rec.checkpoint.safetensors_file import DTYPES, StoredArray
from adaptive_rec.embedding.disk.reading import OpenFiles, WantedRows, as_bytes, read_at
from adaptive_rec.embedding.disk.saved_segments import NOWHERE, SavedLog, SavedPool, pool_folder, segment_path
from adaptive_rec.embedding.disk.segment import Segment, layout_of
from adaptive_rec.embedding.first_values import FreshRows
from adaptive_rec.embedding.peers.ownership import Ownership
from adaptive_rec.errors import CheckpointError, DiskError
from adaptive_rec.kernels.pages import PageLayout
from adaptive_rec.placement import RowSpace


def verify_segments(logs: list[SavedLog]) -> int:
    """Read every page of a generation's segments. Returns how many bytes they have. Raises CheckpointError with file and place of
    the first that is damaged."""
    size_bytes = 0
    for number, pool, folder in ((*each, log.folder) for log in logs for each in enumerate(log.pools)):
        for entry in pool.segments:
            path = segment_path(pool_folder(folder, number), entry.number)
            with _checkpoint_errors(), closing(Segment.existing(path, entry, _layout(pool))) as segment:
                segment.read_checked()
                size_bytes += segment.size_bytes
    return size_bytes


class SegmentsReader:
    """Reads rows of a generation from the segments of all ranks that have written them. The files are open while it lives, so a
    run may remove them meanwhile."""

    def __init__(self, logs: list[SavedLog], seed: int, tables: tuple[TableSpec, ...]) -> None:
        """`logs`: of each rank; `seed`: that of the first values. Raises CheckpointError where the ranks' pools are not those of
        these tables."""
        self._ownership = _ownership_of(logs, tables)
        self._space, self._first = self._ownership.space, FreshRows(seed, tables)
        self._pools = [log.pools for log in logs]
        self._segments: list[Segment] = []
        self._files: list[list[OpenFiles]] = []
        """The files of each pool of each rank."""
        for rank, log in enumerate(logs):
            rule = [(pool.first_row, pool.rows, (0, pool.dim)) for pool in self._ownership.own_of(rank).pools]
            found = [(pool.first_row, pool.rows, pool.weights.shape) for pool in log.pools]
            if found != rule:
                raise CheckpointError(f"pools in {log.folder} must have first row, rows and shape {rule}, got {found}")
            if [_types_of(pool) for pool in log.pools] != [_types_of(pool) for pool in logs[0].pools]:
                raise CheckpointError(f"rows in {log.folder} must be of the types of those in {logs[0].folder}")
            self._files.append([self._open(pool, pool_folder(log.folder, number)) for number, pool in enumerate(log.pools)])

    def _open(self, pool: SavedPool, folder: Path) -> OpenFiles:
        layout = _layout(pool)
        with _checkpoint_errors():
            found = [Segment.existing(segment_path(folder, entry.number), entry, layout) for entry in pool.segments]
        self._segments += found
        places = 1 + max((segment.place for segment in found), default=-1)
        descriptor_P, number_P = np.full(places, -1, dtype=np.int32), np.full(places, -1, dtype=np.int64)
        for segment in found:
            descriptor_P[segment.place], number_P[segment.place] = segment.descriptor, segment.number
        checked_PX = np.zeros((places, pool.segment_pages), dtype=np.bool_)
        return OpenFiles(pool.segment_pages * layout.rows, descriptor_P, number_P, checked_PX, folder)

    def types(self, table: int) -> tuple[StoredArray, StoredArray]:
        """Return types and shapes of weights and optimizer state in the pool of a table."""
        number, _, _ = self._space.table_range(table)
        pool, rows = self._pools[0][number], self._space.pools[number].rows
        kinds = (
            StoredArray(TYPES[like.dtype], (rows, like.shape[1]), 0, rows * like.shape[1] * like.itemsize)
            for like in (pool.weights, pool.state)
        )
        weight, state = kinds
        return weight, state

    def read(self, table: int, first: int, address_N: NDArray[np.uint32]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Read the rows of a table from number `first` on, which are at these addresses, and their optimizer state."""
        number, _, _ = self._space.table_range(table)
        like = self._pools[0][number]
        weights, state = (np.empty((len(address_N), each.shape[1]), each.dtype) for each in (like.weights, like.state))
        owner_N, own_N = self._ownership.split(self._space.table_first_row[table] + first + np.arange(len(address_N)))
        for rank, (pools, files) in enumerate(zip(self._pools, self._files, strict=True)):
            some = np.flatnonzero((owner_N == rank) & (address_N != NOWHERE))
            wanted = WantedRows(address_N[some], own_N[some] - pools[number].first_row, some)
            _check_places(wanted, files[number])
            with _checkpoint_errors():
                read_at(_layout(pools[number]), wanted, files[number], (as_bytes(weights), as_bytes(state)))
        fresh = np.flatnonzero(address_N == NOWHERE)
        self._first.draw(table, first + fresh, fresh, weights, state)
        return weights.view(DTYPES[TYPES[weights.dtype]]), state

    def close(self) -> None:
        for segment in self._segments:
            segment.close()


def _ownership_of(logs: list[SavedLog], tables: tuple[TableSpec, ...]) -> Ownership:
    """Return the owners of the rows of some tables, which have a pool for each dim or for each table, as the logs have. Raises
    CheckpointError where the logs' owners cannot be those of these tables."""
    home_T = logs[0].home_T
    if any(log.home_T != home_T for log in logs) or len(home_T) not in (0, len(tables)) or max(home_T, default=-1) >= len(logs):
        raise CheckpointError(f"homes of {logs[0].folder} must be a rank or -1 for each table, as for all ranks, got {home_T}")
    first_T = Ownership(RowSpace.of(tables, ()), len(logs), 0, home_T=home_T).own.table_first_row
    pool_T = tuple(np.searchsorted([pool.first_row for pool in logs[0].pools], first_T, side="right").tolist())
    return Ownership(RowSpace.of(tables, (), kinds=pool_T), len(logs), 0, pool_T, home_T)


def _check_places(wanted: WantedRows, files: OpenFiles) -> None:
    """Raise CheckpointError where rows are in none of a pool's segments."""
    place_N = (wanted.address_C.astype(np.int64) - 1) // files.capacity
    if len(place_N) and (place_N.max() >= len(files.number_P) or (files.number_P[place_N] < 0).any()):
        raise CheckpointError(f"rows in {files.folder} must be in the checkpoint's segments, some are not")


@contextmanager
def _checkpoint_errors() -> Iterator[None]:
    try:
        yield
    except DiskError as error:
        raise CheckpointError(str(error)) from None


def _types_of(pool: SavedPool) -> tuple[Any, ...]:
    return pool.weights.dtype, pool.state.dtype, pool.state.shape


def _layout(pool: SavedPool) -> PageLayout:
    row_bytes, state_bytes = (each.shape[1] * each.itemsize for each in (pool.weights, pool.state))
    with _checkpoint_errors():
        return layout_of(row_bytes, state_bytes, pool.page_bytes, pool.page_rows)
