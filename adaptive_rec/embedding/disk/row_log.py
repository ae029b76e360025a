"""The rows of one pool on a disk: a log of segments (after Rosenblum and Ousterhout, "The design and implementation of a
log-structured file system", 1992).

A row is never changed in place. It is appended with its optimizer state, and its *address* then names the new place. So a value
that was read ahead is still the newest one exactly where the row's address is what it was then.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.disk.reading import NOWHERE, WantedRows, as_bytes, places_of, read_at
from adaptive_rec.embedding.disk.saved_segments import SegmentEntry, segment_path
from adaptive_rec.embedding.disk.segment import Segment, disk_errors, page_layout
from adaptive_rec.errors import DiskError
from adaptive_rec.kernels import pages as kernels
from adaptive_rec.kernels.pages import PageLayout
from adaptive_rec.system.durable import sync_folder

MOST_ADDRESSES = 1 << 32

_LEAST_SEGMENT_BYTES, _MOST_SEGMENT_BYTES = 4 << 20, 64 << 20
_SEGMENTS = 512
"""How many segments hold all rows once, where their size is between these limits: each is an open file."""

_CHUNK_ROWS = 1 << 24
"""Rows whose addresses are looked at at a time."""

_KEPT = 2
"""Written segments that stay in memory: rows used again soon are read from there, and so are rows that were read ahead and have
changed since."""

_ENOUGH_ROOM, _MOST_ROOM, _SPARE = 1.8, 2.2, 2
"""How many times their newest values the segments have room for, besides so many spare segments: with less compaction ends, with
more training waits for it."""

_WORTH_MOVING = 0.9
"""A segment with a larger part of newest values is left as it is."""

_RESTING = 4
"""Places of removed segments that rest before they are used again, so that no address comes back while a batch is on its way."""


PLACE_BYTES = 4 + 1 + 4
"""Host memory of a row: its slot, a flag whether it has changed since it was saved, its address."""

MOST_SPACE = 2.5
"""How many times the bytes of their rows segments take at the most, as long as checkpoints keep no older ones."""

MOST_WAITING = 8
"""Limit of segments that wait to be written; training then waits for the disk."""


def pages_of_segment(rows: int, layout: PageLayout) -> int:
    """Return the pages of a segment in the log of a pool of so many rows."""
    whole = -(-rows // layout.rows) * layout.page_bytes
    return max(1, min(max(whole // _SEGMENTS, _LEAST_SEGMENT_BYTES), _MOST_SEGMENT_BYTES) // layout.page_bytes)


def log_memory_bytes(rows: int, row_bytes: int, state_bytes: int) -> int:
    """Return the bytes of the segments that a log holds in memory at the most."""
    layout = page_layout(row_bytes, state_bytes)
    return (1 + _KEPT + MOST_WAITING) * pages_of_segment(rows, layout) * layout.page_bytes


@dataclass
class LogCounts:
    """What a log has read and written so far."""

    rows_read: int = 0
    """Rows read from files."""
    rows_found: int = 0
    """Rows found in segments that are still in memory."""
    rows_written: int = 0
    rows_moved: int = 0
    """Rows written once more, so that their segment could be removed."""


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
        self._pages = pages_of_segment(rows, self.layout)
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
        self._next_number = self._next_place = 0
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
            start = 1 + segment.place * self._capacity + first
            with self._lock:
                self._count_dead(self.address_R[rows])
                segment.count_live(len(rows))
                self.address_R[rows] = np.arange(start, start + len(rows), dtype=np.uint32)

    def hold_live(self, held: Sequence[Segment] = ()) -> list[Segment]:
        """Keep all segments that have newest values, besides those that are `held`, until they are released; return them."""
        known = {segment.number for segment in held}
        with self._lock:
            found = [segment for segment in self._segments.values() if segment.live and segment.number not in known]
            for segment in found:
                segment.hold(1)
        return found

    def sync(self, held: list[Segment]) -> list[Segment]:
        """Have all that was appended so far on the disk, and keep the segments that have newest values besides those `held`.
        Returns all of these. Raises DiskError."""
        with self._appending:
            if self._open is not None:
                self._open.seal()
            segments = held + self.hold_live(held)
        for segment in segments:
            segment.write()
            segment.sync()
        with disk_errors("sync", self._folder):
            sync_folder(self._folder)
        return segments

    def release(self, entries: list[SegmentEntry]) -> None:
        """Let go of segments that were kept, and remove those that nothing needs any more. Raises DiskError."""
        with self._lock:
            for entry in entries:
                self._segments[entry.place].hold(-1)
        self.sweep()

    def sweep(self) -> None:
        """Remove the segments that nothing needs. Raises DiskError."""
        with self._lock:
            needless = [
                segment
                for segment in self._segments.values()
                if segment.is_closed and not segment.live and not segment.holds and segment.pages is None
            ]
            for segment in needless:
                del self._segments[segment.place]
                self._resting.append(segment.place)
        for segment in needless:
            segment.remove()

    def sparse(self) -> list[Segment]:
        """Return written segments, the one with the fewest newest values first, if segments have more room than they should."""
        if not self._has_more_room_than(_ENOUGH_ROOM):
            return []
        with self._lock:
            written = [segment for segment in self._segments.values() if segment.pages is None]
            written = [segment for segment in written if 0 < segment.live <= _WORTH_MOVING * self._capacity]
        return sorted(written, key=lambda segment: segment.live)

    @property
    def is_bloated(self) -> bool:
        """Whether segments have so much room that nothing should be appended before some of them are compacted."""
        return self._has_more_room_than(_MOST_ROOM)

    def _has_more_room_than(self, times: float) -> bool:
        with self._lock:
            free = [segment for segment in self._segments.values() if segment.live or not segment.holds]
            live = sum(segment.live for segment in free)
        return len(free) * self._capacity > times * live + _SPARE * self._capacity

    def first_address(self, segment: Segment) -> int:
        """Return the address of a segment's first row."""
        return 1 + segment.place * self._capacity


    def _with_room(self) -> Segment:
        """Return the open segment, or another one where it is full."""
        segment = self._open
        if segment is not None and segment.room:
            return segment
        if segment is not None:
            segment.seal()
            self._write(segment.write)
            self._kept.append(segment)
            if len(self._kept) > _KEPT:
                self._write(self._kept.popleft().drop_pages)
            self._on_full()
        self._open = self._new_segment()
        return self._open

    def _new_segment(self) -> Segment:
        number, self._next_number = self._next_number, self._next_number + 1
        if len(self._resting) > _RESTING:
            place = self._resting.popleft()
        else:
            place, self._next_place = self._next_place, self._next_place + 1
        if (place + 1) * self._capacity >= MOST_ADDRESSES:
            raise DiskError(
                f"rows of a pool on the disk must have fewer than {MOST_ADDRESSES:,} places, segment {place + 1} is too many"
            )
        segment = Segment.create(segment_path(self._folder, number), number, place, self.layout, self._pages)
        with self._lock:
            self._segments[place] = segment
        return segment

    def adopt(self, entries: list[SegmentEntry]) -> None:
        """Take over segments of a checkpoint, each held once. Then `set_addresses`, and `count_rows`. Raises DiskError."""
        assert not self._segments, "segments are taken over before any other"
        for entry in entries:
            segment = Segment.existing(segment_path(self._folder, entry.number), entry, self.layout)
            segment.hold(1)
            self._segments[entry.place] = segment
        self._next_place = max(self._segments, default=-1) + 1
        self._resting.extend(sorted(set(range(self._next_place)) - set(self._segments)))
        self._next_number = max((int(path.stem) for path in self._folder.glob("*.rows")), default=-1) + 1

    def set_addresses(self, row_C: NDArray[np.int64], address_C: NDArray[np.uint32]) -> None:
        """Set where the values of some rows are."""
        self.address_R[row_C] = address_C

    def count_rows(self) -> None:
        """Count the live rows of each segment by the addresses. Raises DiskError where rows are in none."""
        for first in range(0, len(self.address_R), _CHUNK_ROWS):
            address_C = self.address_R[first : first + _CHUNK_ROWS]
            some = address_C[address_C != NOWHERE].astype(np.int64)
            places, counts = np.unique((some - 1) // self._capacity, return_counts=True)
            for place, count in zip(places.tolist(), counts.tolist(), strict=True):
                if place not in self._segments:
                    raise DiskError(
                        f"rows of {self._folder} must be in the checkpoint's segments, {count} are in place {place}"
                    )
                self._segments[place].count_live(count)

    def remove_others(self, numbers: set[int]) -> None:
        """Remove the files of segments that are neither among these numbers nor in use. Raises DiskError."""
        used = numbers | {segment.number for segment in self._segments.values()}
        for path in self._folder.glob("*.rows"):
            if int(path.stem) not in used:
                with disk_errors("removal", path):
                    path.unlink()

    def _count_dead(self, address_C: NDArray[np.uint32]) -> None:
        """Count rows at these addresses as written elsewhere."""
        some = address_C[address_C != NOWHERE].astype(np.int64)
        places, counts = np.unique((some - 1) // self._capacity, return_counts=True)
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
            segments = {place: self._segments[place] for place in places_of(address_C, self._capacity)}
            pages = {place: segment.pages for place, segment in segments.items()}
            for segment in segments.values():
                segment.hold(1)
        try:
            wanted = WantedRows(address_C, row_C, line_C)
            found, read = read_at(self.layout, self._capacity, wanted, segments, pages, values)
        finally:
            with self._lock:
                for segment in segments.values():
                    segment.hold(-1)
        self.counts.rows_found += found
        self.counts.rows_read += read
        return address_C

    # Sizes -----------------------------------------------------------------------------------------------------------

    @property
    def segment_pages(self) -> int:
        """Pages of a whole segment."""
        return self._pages

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        with self._lock:
            return sum(segment.size_bytes for segment in self._segments.values())
