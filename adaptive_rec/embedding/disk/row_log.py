"""The rows of one pool on a disk: a log of segments (after Rosenblum and Ousterhout, "The design and implementation of a
log-structured file system", 1992).

A row is never changed in place. It is appended with its optimizer state, and its *address* then names the new place. A *stamp*,
made of that and the number of the segment, names one value for ever: what was read ahead is still the newest value exactly where
the row's stamp is what it was then.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.disk.reading import WantedRows, as_bytes, find_in_memory, read_at
from adaptive_rec.embedding.disk.saved_segments import SavedPool
from adaptive_rec.embedding.disk.segment import Segment, disk_errors, layout_of, page_layout
from adaptive_rec.embedding.disk.segments import SPARE_SEGMENTS, Segments
from adaptive_rec.kernels import pages as kernels
from adaptive_rec.kernels.pages import PageLayout
from adaptive_rec.system.durable import sync_folder

_LEAST_SEGMENT_BYTES, _MOST_SEGMENT_BYTES = 4 << 20, 64 << 20
_SEGMENTS = 512
"""How many segments hold all rows once, where their size is between these limits: each is an open file."""

_CHUNK_ROWS = 1 << 24
"""Rows whose addresses are looked at at a time."""

_KEPT_BYTES = 16 << 20
"""Written segments of so many bytes stay in memory, at least one: rows used again soon are read from there, and so are rows that
were read ahead and have changed since, or that become hot."""

ADDRESS_BYTES = 4
PLACE_BYTES = 4 + 1 + ADDRESS_BYTES
"""Host memory of a row: its slot, a flag whether it has changed since it was saved, its address."""

MOST_SPACE = 2.5
"""Upper bound of space amplification: bytes of segments over those of their rows, while checkpoints keep no older segments."""

MOST_WAITING = 8
"""Limit of segments that wait to be written; training then waits for the disk."""


def pages_of_segment(rows: int, layout: PageLayout) -> int:
    """Return the pages of a segment in the log of a pool of so many rows."""
    whole = -(-rows // layout.rows) * layout.page_bytes
    return max(1, min(max(whole // _SEGMENTS, _LEAST_SEGMENT_BYTES), _MOST_SEGMENT_BYTES) // layout.page_bytes)


def _segment_bytes(rows: int, row_bytes: int, state_bytes: int) -> int:
    layout = page_layout(row_bytes, state_bytes)
    return pages_of_segment(rows, layout) * layout.page_bytes


def spare_bytes(rows: int, row_bytes: int, state_bytes: int) -> int:
    """Return the bytes of the segments that a log has room for besides those of its rows: they are made whole."""
    return SPARE_SEGMENTS * _segment_bytes(rows, row_bytes, state_bytes)


def log_memory_bytes(rows: int, row_bytes: int, state_bytes: int) -> int:
    """Return the bytes of the segments that a log holds in memory at the most."""
    segment_bytes = _segment_bytes(rows, row_bytes, state_bytes)
    return (1 + _kept_segments(segment_bytes) + MOST_WAITING) * segment_bytes


def _kept_segments(segment_bytes: int) -> int:
    return -(-_KEPT_BYTES // segment_bytes)


@dataclass
class LogCounts:
    """What a log has read and written so far."""

    rows_read: int = 0
    """Rows read from files."""
    rows_found: int = 0
    """Rows found in segments that are still in memory."""
    rows_drawn: int = 0
    """Rows that were never written: their first values are drawn."""
    rows_written: int = 0
    rows_moved: int = 0
    """Rows written once more, so that their segment could be removed."""
    written_bytes: int = 0
    """Bytes of the segments that were filled and handed to the writing thread."""


class RowLog:
    """The newest values of a pool's rows. Any thread may append and read; no two append the same row at one time."""

    def __init__(
        self, folder: Path, rows: int, row_bytes: int, state_bytes: int, write: Callable[[Callable[[], None]], None],
        on_full: Callable[[], None],
    ) -> None:  # fmt: skip
        """`write` has the writing thread do something, after what it was given before; `on_full` is called when a segment is
        full."""
        self._folder = folder
        self._write, self._on_full = write, on_full
        self.layout = page_layout(row_bytes, state_bytes)
        self.segment_pages = pages_of_segment(rows, self.layout)
        """Pages of a whole segment."""
        self.segments = Segments(folder, self.layout, self.segment_pages)
        self.address_R = np.zeros(rows, dtype=np.uint32)
        """Where each row's newest value on the disk is: 1 and the place of its segment times the rows of one, and its place
        there; NOWHERE for a row that was never written."""
        self.counts = LogCounts()
        self._appending = threading.Lock()
        self._kept: deque[Segment] = deque()
        self._open: Segment | None = None
        """The segment that takes rows; there is one from the first of them on."""

    # Writing ---------------------------------------------------------------------------------------------------------

    def append(
        self, row_C: NDArray[np.int64], line_C: NDArray[np.int64], weights_LD: NDArray[Any], state_LK: NDArray[Any]
    ) -> None:
        """Write the newest values of some rows, each named once: row ``row_C[c]`` is line ``line_C[c]``. Raises DiskError where
        an earlier one could not be written or there is no room."""
        with self._appending:
            self._append(row_C, line_C, (as_bytes(weights_LD), as_bytes(state_LK)))
            self.counts.rows_written += len(row_C)

    def has_room(self, rows: int) -> bool:
        """Return whether the open segment takes so many rows, unless another thread appends at this moment."""
        segment = self._open
        return segment is not None and segment.room >= rows

    def move(
        self, row_C: NDArray[np.int64], address_C: NDArray[np.uint32], values: tuple[NDArray[np.uint8], NDArray[np.uint8]]
    ) -> None:
        """Write values once more, line ``c`` for row ``row_C[c]``, of those rows whose newest value is still at this address.
        Raises DiskError as `append` does."""
        with self._appending:
            some = np.flatnonzero(self.address_R[row_C] == address_C)
            self._append(row_C[some], some, values)
            self.counts.rows_moved += len(some)

    def _append(
        self, row_C: NDArray[np.int64], line_C: NDArray[np.int64], values: tuple[NDArray[np.uint8], NDArray[np.uint8]]
    ) -> None:
        done = 0
        while done < len(row_C):
            segment = self._with_room()
            some = slice(done, done + min(segment.room, len(row_C) - done))
            rows, done = row_C[some], some.stop
            first = segment.take(len(rows))
            assert segment.pages is not None, "the open segment is in memory"
            kernels.pack_rows(self.layout, first, rows, line_C[some], *values, segment.pages)
            start = self.segments.first_address(segment) + first
            with self.segments.lock:
                self.segments.set_addresses(self.address_R, rows, start)

    def _with_room(self) -> Segment:
        """Return the open segment, or another one where it is full."""
        segment = self._open
        if segment is not None and segment.room:
            return segment
        if segment is not None:
            segment.seal()
            self._open = None  # also where what follows fails
            self._kept.append(segment)
            self.counts.written_bytes += segment.size_bytes
            self._write(segment.write)
            if len(self._kept) > _kept_segments(segment.size_bytes):
                self._write(self._kept.popleft().drop_pages)
            self._on_full()
        self._open = self.segments.create()
        return self._open

    def sync(self, held: list[Segment]) -> list[Segment]:
        """Have all that was appended so far on the disk, and keep the segments that have newest values besides those `held`.
        Returns all of these. Raises DiskError."""
        with self._appending:
            if self._open is not None:
                self._open.seal()
            segments = held + self.segments.hold_live(held)
        for segment in segments:
            segment.write()
            segment.sync()
        with disk_errors("sync", self._folder):
            sync_folder(self._folder)
        return segments

    # Reading ---------------------------------------------------------------------------------------------------------

    def read(
        self, row_C: NDArray[np.int64], line_C: NDArray[np.int64], weights_LD: NDArray[Any], state_LK: NDArray[Any]
    ) -> NDArray[np.int64]:
        """Read the newest values of some rows: row ``row_C[c]`` goes to line ``line_C[c]``. Returns the stamp of each; where that
        is NOWHERE, its line is left as it is. Raises DiskError where a row cannot be read as it was written."""
        values = as_bytes(weights_LD), as_bytes(state_LK)
        with self.segments.reading():
            with self.segments.lock:
                address_C, stamp_C = self.segments.find(self.address_R, row_C)
                files = self.segments.files()
            found, read = read_at(self.layout, WantedRows(address_C, row_C, line_C), files, values)
        with self.segments.lock:  # several threads read
            self.counts.rows_found += found
            self.counts.rows_read += read
            self.counts.rows_drawn += len(row_C) - found - read
        return stamp_C

    def read_at(
        self, address_C: NDArray[np.uint32], row_C: NDArray[np.int64], weights_CD: NDArray[Any], state_CK: NDArray[Any]
    ) -> None:
        """Read the values that rows had when they were at some addresses, whose segments are held. Raises DiskError."""
        wanted = WantedRows(address_C, row_C, np.arange(len(row_C)))
        with self.segments.reading():
            with self.segments.lock:
                files = self.segments.files()
            read_at(self.layout, wanted, files, (as_bytes(weights_CD), as_bytes(state_CK)))

    def read_in_memory(
        self, row_C: NDArray[np.int64], line_C: NDArray[np.int64], weights_LD: NDArray[Any], state_LK: NDArray[Any]
    ) -> NDArray[np.bool_]:
        """Read those rows whose newest value is in a segment that is still in memory, as `read` does. Returns which they are."""
        with self.segments.reading():
            with self.segments.lock:
                address_C, files = self.address_R[row_C], self.segments.files()
            wanted = WantedRows(address_C, row_C, line_C)
            found_C, found = find_in_memory(self.layout, wanted, files, (as_bytes(weights_LD), as_bytes(state_LK)))
        with self.segments.lock:
            self.counts.rows_found += found
        return found_C

    def stamps(self, row_C: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the stamps of the newest values of some rows: numbers that no other value ever has. NOWHERE: never written."""
        with self.segments.lock:
            return self.segments.find(self.address_R, row_C)[1]

    # A checkpoint's --------------------------------------------------------------------------------------------------

    def adopt(self, pool: SavedPool) -> None:
        """Take over the segments of a checkpoint, and their sizes, before there is any other one. Then `set_addresses`. Raises
        DiskError."""
        self.layout = layout_of(self.layout.row_bytes, self.layout.state_bytes, pool.page_bytes, pool.page_rows)
        self.segment_pages = pool.segment_pages
        self.segments = Segments(self._folder, self.layout, self.segment_pages)
        self.segments.adopt(pool.segments)

    def set_addresses(self, row_C: NDArray[np.int64], address_C: NDArray[np.uint32]) -> None:
        """Set where the values of some rows are, in segments that were adopted. Then `count_rows`."""
        self.address_R[row_C] = address_C

    def share_addresses(self, address_R: NDArray[np.uint32]) -> None:
        """Keep the addresses in this memory from now on."""
        with self._appending, self.segments.lock:
            address_R[:] = self.address_R
            self.address_R = address_R

    def count_rows(self) -> None:
        """Count the newest values in each segment. Raises DiskError where rows are in none."""
        for first in range(0, len(self.address_R), _CHUNK_ROWS):
            self.segments.count_found(self.address_R[first : first + _CHUNK_ROWS])
