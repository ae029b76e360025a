"""The segments of a log: where they are, which of them have newest values, who needs them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.disk.reading import OpenFiles
from adaptive_rec.embedding.disk.saved_segments import NOWHERE, SegmentEntry, segment_path
from adaptive_rec.embedding.disk.segment import Segment
from adaptive_rec.errors import DiskError
from adaptive_rec.kernels.pages import PageLayout
from adaptive_rec.kernels.row_addresses import find_addresses, set_addresses

MOST_ADDRESSES = 1 << 32

_ENOUGH_ROOM, _MOST_ROOM, SPARE_SEGMENTS = 1.8, 2.2, 2
"""How many times their newest values the segments have room for, besides so many spare segments: with less compaction ends, with
more training waits for it."""

_WORTH_MOVING = 0.9
"""A segment with a larger part of newest values is left as it is."""

_FIRST_PLACES = 64


class Segments:
    """All segments of a log. A segment's *place* is its part in the addresses of its rows; arrays of places are marked `P`."""

    def __init__(self, folder: Path, layout: PageLayout, pages: int) -> None:
        """`pages`: those of a whole segment."""
        self._folder, self._layout, self._pages = folder, layout, pages
        self.capacity = pages * layout.rows
        """Rows of a whole segment."""
        self.lock = threading.Lock()
        """Held for moments only: while addresses change, and by all methods here that do not say otherwise."""
        self._of: dict[int, Segment] = {}
        self._live_P = np.zeros(_FIRST_PLACES, dtype=np.int64)
        """Rows whose newest value on the disk is in each segment."""
        self._descriptor_P = np.zeros(_FIRST_PLACES, dtype=np.int32)
        self._number_P = np.zeros(_FIRST_PLACES, dtype=np.int64)
        self._checked_PX = np.zeros((_FIRST_PLACES, pages), dtype=np.bool_)
        self._near: dict[int, Segment] = {}
        """Segments whose pages are in memory, or were when they were last looked at."""
        self._files: OpenFiles | None = None
        self._free: deque[int] = deque()
        """Places of removed segments."""
        self._count = self._size_bytes = 0
        self._next_number = max((int(path.stem) for path in folder.glob("*.rows")), default=-1) + 1
        """No file that is there is written over, whichever checkpoint needs it."""
        self._next_place = 0
        self._readings: set[int] = set()
        """Numbers of the readings under way."""
        self._next_reading = 0
        self._retired: list[tuple[int, Segment]] = []
        """Segments that nothing needs but readings with lower numbers than these."""

    # New ones --------------------------------------------------------------------------------------------------------

    def create(self) -> Segment:
        """Create the next segment. Raises DiskError."""
        number, self._next_number = self._next_number, self._next_number + 1
        with self.lock:
            place = self._free[0] if self._free else self._next_place
        if (place + 1) * self.capacity >= MOST_ADDRESSES:
            rule = f"rows of a pool on the disk must have fewer than {MOST_ADDRESSES:,} places"
            raise DiskError(f"{rule}, segment {place + 1} is too many")
        segment = Segment.create(segment_path(self._folder, number), number, place, self._layout, self._pages)
        with self.lock:
            self._add(segment)
            if place == self._next_place:
                self._next_place += 1
            else:
                self._free.popleft()
        return segment

    def adopt(self, entries: Sequence[SegmentEntry]) -> None:
        """Open the segments of a checkpoint, each held once, before there is any other. Raises DiskError."""
        assert not self._of, "segments are taken over before any other"
        for entry in entries:
            segment = Segment.existing(segment_path(self._folder, entry.number), entry, self._layout)
            segment.hold(1)
            self._add(segment)
        self._next_place = max(self._of, default=-1) + 1
        self._free.extend(sorted(set(range(self._next_place)) - set(self._of)))

    def _add(self, segment: Segment) -> None:
        while segment.place >= len(self._live_P):
            self._live_P, self._descriptor_P, self._number_P, self._checked_PX = (
                np.concatenate([array, np.zeros_like(array)])
                for array in (self._live_P, self._descriptor_P, self._number_P, self._checked_PX)
            )
        place = segment.place
        self._of[place] = self._near[place] = segment
        self._checked_PX[place] = False
        self._files = None
        self._count_file(segment, 1)
        self._live_P[place], self._descriptor_P[place], self._number_P[place] = 0, segment.descriptor, segment.number

    def _count_file(self, segment: Segment, more: int) -> None:
        """Count a file that is there from now on, or no longer (-1). The caller holds the lock."""
        self._count += more
        self._size_bytes += more * segment.file_bytes

    # Newest values ---------------------------------------------------------------------------------------------------

    def first_address(self, segment: Segment) -> int:
        """Return the address of a segment's first row."""
        return 1 + segment.place * self.capacity

    def find(self, address_R: NDArray[np.uint32], row_C: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the addresses of some rows, and what no other value in the log ever has: an address comes back when the place of
        a removed segment is used again, a segment's number does not. NOWHERE stays. The caller holds the lock."""
        address_C, stamp_C = np.empty(len(row_C), np.uint32), np.empty(len(row_C), np.int64)
        find_addresses(address_R, row_C, self._number_P, self.capacity, address_C, stamp_C)
        return address_C, stamp_C

    def set_addresses(self, address_R: NDArray[np.uint32], row_C: NDArray[np.int64], first_address: int) -> None:
        """Set and count the addresses of rows that were put into a segment, from this one on. The caller holds the lock."""
        set_addresses(address_R, row_C, first_address, self.capacity, self._live_P)

    def count_found(self, address_C: NDArray[np.uint32]) -> None:
        """Count the rows at some addresses. Raises DiskError where rows are in no segment."""
        some = address_C[address_C != NOWHERE].astype(np.int64)
        places, counts = np.unique((some - 1) // self.capacity, return_counts=True)
        for place, count in zip(places.tolist(), counts.tolist(), strict=True):
            if place not in self._of:
                raise DiskError(f"rows of {self._folder} must be in the checkpoint's segments, {count} are in place {place}")
            self._live_P[place] += count

    # Who needs them --------------------------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let all present segments stay while the body of a ``with`` reads them. The caller takes the lock, then `files`."""
        with self.lock:
            number, self._next_reading = self._next_reading, self._next_reading + 1
            self._readings.add(number)
        try:
            yield
        finally:
            with self.lock:
                self._readings.discard(number)

    def files(self) -> OpenFiles:
        """Return the present files, and the memory of those that are not written yet. The caller holds the lock."""
        dropped = [place for place, segment in self._near.items() if segment.pages is None]
        for place in dropped:
            del self._near[place]
        if self._files is None or dropped:
            memory = {place: pages for place, segment in self._near.items() if (pages := segment.pages) is not None}
            arrays = self._descriptor_P, self._number_P, self._checked_PX
            self._files = OpenFiles(self.capacity, *arrays, self._folder, memory)
        return self._files

    def hold_live(self, held: Sequence[Segment] = ()) -> list[Segment]:
        """Keep all segments that have newest values, besides those that are `held`, until they are released; return them."""
        known = {segment.number for segment in held}
        with self.lock:
            found = [each for each in self._of.values() if self._live_P[each.place] and each.number not in known]
            for segment in found:
                segment.hold(1)
        return found

    def release(self, entries: Sequence[SegmentEntry]) -> None:
        """Let go of segments that were kept, and remove those that nothing needs any more. Raises DiskError."""
        with self.lock:
            for entry in entries:
                self._of[entry.place].hold(-1)
        self.sweep()

    def sweep(self) -> None:
        """Remove the segments that nothing needs. Raises DiskError."""
        with self.lock:
            for segment in list(self._of.values()):
                if segment.is_closed and segment.pages is None and not segment.holds and not self._live_P[segment.place]:
                    del self._of[segment.place]
                    self._retired.append((self._next_reading, segment))
            oldest = min(self._readings, default=self._next_reading)
            free = [segment for number, segment in self._retired if number <= oldest]
            self._retired = [(number, segment) for number, segment in self._retired if number > oldest]
            self._free.extend(segment.place for segment in free)
        failed = None
        for segment in free:
            try:
                segment.remove()
            except DiskError as error:  # the others are removed all the same
                failed = error
                continue
            with self.lock:
                self._count_file(segment, -1)
        if failed is not None:
            raise failed

    @property
    def entries(self) -> list[SegmentEntry]:
        """All segments."""
        with self.lock:
            return [segment.entry for segment in self._of.values()]

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of all files and their bytes, at one moment; with those of segments that only a reading still needs."""
        with self.lock:
            return self._count, self._size_bytes

    # Room ------------------------------------------------------------------------------------------------------------

    @contextmanager
    def sparsest(self) -> Iterator[Segment | None]:
        """Yield the written segment with the fewest newest values, if segments have more room than they should. It is kept in the
        body of the ``with``."""
        with self.reading():
            with self.lock:
                written = [place for place, segment in self._of.items() if segment.pages is None]
                some = [place for place in written if 0 < self._live_P[place] <= _WORTH_MOVING * self.capacity]
                is_due = some and self._have_more_room_than(_ENOUGH_ROOM)
                found = self._of[min(some, key=lambda place: int(self._live_P[place]))] if is_due else None
            yield found

    @property
    def are_bloated(self) -> bool:
        """Whether segments have so much room that nothing should be appended before some of them are compacted."""
        with self.lock:
            return self._have_more_room_than(_MOST_ROOM)

    def _have_more_room_than(self, times: float) -> bool:
        count = sum(1 for place, segment in self._of.items() if self._live_P[place] or not segment.holds)
        return count * self.capacity > times * int(self._live_P.sum()) + SPARE_SEGMENTS * self.capacity
