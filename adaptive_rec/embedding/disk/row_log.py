"""The rows of one pool on a disk: a log of segments (after Rosenblum and Ousterhout, "The design and implementation of a
log-structured file system", 1992).

A row is never changed in place. It is appended with its optimizer state, and its *address* then names the new place. So a value
that was read ahead is still the newest one exactly where the row's address is what it was then.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.disk.segment import Segment, SegmentEntry, disk_errors, page_layout
from adaptive_rec.errors import DiskError
from adaptive_rec.kernels import pages as kernels
from adaptive_rec.system.durable import sync_folder

NOWHERE = 0
"""The address of a row that was never written: it has its first value."""

MOST_ADDRESSES = 1 << 32

_LEAST_SEGMENT_BYTES, _MOST_SEGMENT_BYTES = 4 << 20, 64 << 20
_SEGMENTS = 512
"""How many segments hold all rows once, where their size is between these limits: each is an open file."""

_KEPT = 2
"""Written segments that stay in memory: rows used again soon are read from there, and so are rows that were read ahead and have
changed since."""

_RESTING = 4
"""Places of removed segments that rest before they are used again, so that no address comes back while a batch is on its way."""

_FOUND = {
    kernels.SHORT: "must be read whole, its end is missing",
    kernels.DAMAGED: "is damaged: its crc32 differs",
    kernels.WRONG: "must hold row {row}, it holds another page or row",
}


@dataclass
class LogCounts:
    """What a log has read and written so far."""

    rows_read: int = 0
    """Rows read from files."""
    rows_found: int = 0
    """Rows found in segments that are still in memory."""
    rows_written: int = 0


class RowLog:
    """The newest values of a pool's rows. Any thread may append and read; no two append the same row at one time."""

    def __init__(
        self, folder: Path, rows: int, row_bytes: int, state_bytes: int, write: Callable[[Callable[[], None]], None]
    ) -> None:
        """`write` has the writing thread do something, after what it was given before."""
        self._folder = folder
        self._write = write
        self.layout = page_layout(row_bytes, state_bytes)
        whole = -(-rows // self.layout.rows) * self.layout.page_bytes
        segment_bytes = min(max(whole // _SEGMENTS, _LEAST_SEGMENT_BYTES), _MOST_SEGMENT_BYTES)
        self._pages = max(1, segment_bytes // self.layout.page_bytes)
        self._capacity = self._pages * self.layout.rows
        self.address_R = np.zeros(rows, dtype=np.uint32)
        """Where each row's newest value on the disk is: 1 and the place of its segment times the rows of one, and its place
        there; NOWHERE for a row that was never written."""
        self.counts = LogCounts()
        self._appending = threading.Lock()
        self._lock = threading.Lock()
        """Held for moments only, inside of `_appending` where both are needed."""
        self._segments: dict[int, Segment] = {}
        """All segments, by their places."""
        self._resting: deque[int] = deque()
        """Places of removed segments, the one that rests longest first."""
        self._next_number = 0
        self._kept: deque[Segment] = deque()
        self._open = self._new_segment()

    # Writing ---------------------------------------------------------------------------------------------------------

    def append(
        self, row_C: NDArray[np.int64], line_C: NDArray[np.int64], weights_LD: NDArray[Any], state_LK: NDArray[Any]
    ) -> None:
        """Write the newest values of some rows, each named once: row ``row_C[c]`` is line ``line_C[c]``. Raises DiskError where an
        earlier one could not be written or there is no room."""
        values = as_bytes(weights_LD), as_bytes(state_LK)
        done = 0
        with self._appending:
            while done < len(row_C):
                if not self._open.room:
                    self._close_segment()
                segment = self._open
                some = slice(done, done + min(segment.room, len(row_C) - done))
                rows, done = row_C[some], some.stop
                first = segment.take(len(rows))
                assert segment.pages is not None, "the open segment is in memory"
                kernels.pack_rows(self.layout, first, rows, line_C[some], *values, segment.pages)
                start = 1 + segment.place * self._capacity + first
                with self._lock:
                    self._count_dead(self.address_R[rows])
                    segment.count_live(len(rows))
                    self.address_R[rows] = np.arange(start, start + len(rows), dtype=np.uint32)
            self.counts.rows_written += len(row_C)

    def sync(self) -> list[SegmentEntry]:
        """Have all that was appended so far on the disk. Returns the segments that have the newest values, each held once. Raises
        DiskError."""
        with self._appending:
            self._open.seal()
            with self._lock:
                segments = [segment for segment in self._segments.values() if segment.live]
                for segment in segments:
                    segment.hold(1)
        for segment in segments:
            segment.write()
            segment.sync()
        with disk_errors("sync", self._folder):
            sync_folder(self._folder)
        return [segment.entry for segment in segments]

    def release(self, entries: list[SegmentEntry]) -> None:
        """Let go of segments that `sync` returned or `adopt` was given."""
        with self._lock:
            for entry in entries:
                self._segments[entry.place].hold(-1)

    def _close_segment(self) -> None:
        segment = self._open
        segment.seal()
        self._write(segment.write)
        self._open = self._new_segment()
        self._kept.append(segment)
        if len(self._kept) > _KEPT:
            oldest = self._kept.popleft()
            self._write(oldest.drop_pages)

    def _new_segment(self) -> Segment:
        number, self._next_number = self._next_number, self._next_number + 1
        place = self._resting.popleft() if len(self._resting) > _RESTING else len(self._segments) + len(self._resting)
        if (place + 1) * self._capacity >= MOST_ADDRESSES:
            raise DiskError(
                f"rows of a pool on the disk must have fewer than {MOST_ADDRESSES:,} places, the {place + 1}th segment is too many"
            )
        segment = Segment.create(self._path(number), number, place, self.layout, self._pages)
        with self._lock:
            self._segments[place] = segment
        return segment

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:09d}.rows"

    def _count_dead(self, address_C: NDArray[np.uint32]) -> None:
        """Count rows at these addresses as written elsewhere."""
        places, counts = np.unique((address_C[address_C != NOWHERE] - np.uint32(1)) // self._capacity, return_counts=True)
        for place, count in zip(places.tolist(), counts.tolist(), strict=True):
            self._segments[place].count_live(-count)

    # Reading ---------------------------------------------------------------------------------------------------------

    def read(
        self, row_C: NDArray[np.int64], line_C: NDArray[np.int64], weights_LD: NDArray[Any], state_LK: NDArray[Any]
    ) -> NDArray[np.uint32]:
        """Read the newest values of some rows: row ``row_C[c]`` goes to line ``line_C[c]``. Returns the address at which each was
        read; where that is NOWHERE, its line is left as it is. Raises DiskError where a row cannot be read as it was written."""
        values = as_bytes(weights_LD), as_bytes(state_LK)
        with self._lock:
            address_C = self.address_R[row_C]
            place_C = (address_C.astype(np.int64) - 1) // self._capacity
            segments = {place: self._segments[place] for place in np.unique(place_C[address_C != NOWHERE]).tolist()}
            pages = {place: segment.pages for place, segment in segments.items()}
            for segment in segments.values():
                segment.hold(1)
        try:
            self._read(address_C, place_C, segments, pages, row_C, line_C, values)
        finally:
            with self._lock:
                for segment in segments.values():
                    segment.hold(-1)
        return address_C

    def _read(
        self, address_C: NDArray[np.uint32], place_C: NDArray[np.int64], segments: dict[int, Segment],
        pages: dict[int, NDArray[np.uint8] | None], row_C: NDArray[np.int64], line_C: NDArray[np.int64],
        values: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    ) -> None:  # fmt: skip
        position_C = (address_C.astype(np.int64) - 1) % self._capacity
        page_C, within_C = np.divmod(position_C, self.layout.rows)
        on_disk_C = address_C != NOWHERE
        for place, memory in pages.items():
            if memory is None:
                continue
            some = np.flatnonzero(place_C == place)
            found = kernels.unpack_rows(
                self.layout, page_C[some], within_C[some], row_C[some], line_C[some], memory, *values
            )
            assert found == len(some), "rows in memory are where their addresses say"
            on_disk_C[some] = False
            self.counts.rows_found += found
        some = np.flatnonzero(on_disk_C)
        if not len(some):
            return
        some = some[np.argsort(address_C[some])]
        of_place = {place: index for index, place in enumerate(segments)}
        index_C = np.array([of_place[place] for place in place_C[some].tolist()])
        descriptors = np.array([segment.descriptor for segment in segments.values()], dtype=np.int32)
        numbers = np.array([segment.number for segment in segments.values()], dtype=np.int64)
        places = kernels.RowPlaces(
            descriptors[index_C], numbers[index_C], page_C[some], within_C[some], row_C[some], line_C[some]
        )
        kernels.announce_rows(self.layout, places)
        done, found = kernels.read_rows(self.layout, places, *values)
        self.counts.rows_read += done
        if found != kernels.WHOLE:
            segment, page = list(segments.values())[index_C[done]], int(places.page_C[done])
            raise DiskError(self._fault(segment, page, found, int(places.row_C[done])))

    def _fault(self, segment: Segment, page: int, found: int, row: int) -> str:
        """Return the error text for a page that could not be used."""
        start = page * self.layout.page_bytes
        where = f"the page at byte {start} of {segment.path}"
        try:
            os.pread(segment.descriptor, self.layout.page_bytes, start)
        except OSError as error:
            return f"{where} must be read, which failed: {error.strerror}"
        return f"{where} {_FOUND[found].format(row=row)}"

    # The end ---------------------------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        with self._lock:
            return sum(segment.size_bytes for segment in self._segments.values())

    def close(self) -> None:
        """Close all files."""
        for segment in self._segments.values():
            segment.close()


def as_bytes(lines: NDArray[Any]) -> NDArray[np.uint8]:
    """Return lines of an array as bytes."""
    if not lines.size:
        return np.empty((len(lines), 0), dtype=np.uint8)
    return lines.view(np.uint8).reshape(len(lines), -1)
