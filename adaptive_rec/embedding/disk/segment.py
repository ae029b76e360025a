"""A segment: a file of pages of rows, filled in memory from front to back and written once.

Files are read and written past the system's cache where their file system has that: rows in memory are what was placed there, and
nothing of a file takes room beside them.
"""

from __future__ import annotations

import os
import stat
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.disk.saved_segments import SegmentEntry
from adaptive_rec.errors import DiskError
from adaptive_rec.kernels import pages as kernels
from adaptive_rec.kernels.aligned import BLOCK_BYTES, zeros
from adaptive_rec.kernels.pages import PageLayout
from adaptive_rec.system.direct_files import pass_cache_by, passes_cache_by

_MOST_WASTE = 8
"""A page of several blocks is taken where one block wastes more than one part in this many."""

_MOST_BLOCKS = 64

_WRITE_BYTES = 1 << 20
"""Bytes handed to the system at a time."""


def page_layout(row_bytes: int, state_bytes: int) -> PageLayout:
    """Return the layout of the smallest page that wastes little room on rows of this size."""
    size, header = row_bytes + state_bytes + kernels.ROW_BYTES, 4 * kernels.HEADER
    for blocks in range(1, _MOST_BLOCKS + 1):
        rows = (blocks * BLOCK_BYTES - header) // size
        if rows and _MOST_WASTE * (blocks * BLOCK_BYTES - header - rows * size) <= blocks * BLOCK_BYTES:
            break
    else:
        blocks = -(-(header + size) // BLOCK_BYTES)
        rows = 1
    return layout_of(row_bytes, state_bytes, blocks * BLOCK_BYTES, rows)


def layout_of(row_bytes: int, state_bytes: int, page_bytes: int, rows: int) -> PageLayout:
    """Return the layout of pages of this size, with so many rows each. Raises DiskError where they have no room for them."""
    first_byte, head = page_bytes - rows * (row_bytes + state_bytes), 4 * kernels.HEADER + rows * kernels.ROW_BYTES
    if first_byte < head:
        size = row_bytes + state_bytes
        raise DiskError(f"pages of {page_bytes} bytes must have room for {rows} rows of {size} bytes and their head of {head}")
    return PageLayout(page_bytes, row_bytes, state_bytes, rows, first_byte)


class Segment:
    """One file. Rows are packed into `pages`; pages that are sealed do not change and can be written."""

    def __init__(self, path: Path, number: int, place: int, layout: PageLayout, pages: int, descriptor: int) -> None:
        """`number` is in every page; `place` is that of its rows' addresses. See `create` and `existing`."""
        self.path, self.number, self.place, self.descriptor = path, number, place, descriptor
        self._closing = weakref.finalize(self, os.close, descriptor)
        self._writing = threading.Lock()
        self._layout, self._page_count = layout, pages
        self.pages: NDArray[np.uint8] | None = None
        """Its pages in memory, until they are dropped."""
        self.rows = 0
        """Places for rows that are taken; those after the last row of a sealed page are never used."""
        self.sealed = 0
        """Pages that are whole."""
        self.written = 0
        """Pages handed to the system."""
        self.synced = 0
        """Pages that are on the disk."""
        self._is_lost = False
        """Whether a sync has failed: the system may have dropped pages, and takes them for written."""
        self.holds = 0
        """Checkpoints that need the file."""
        self.file_bytes = self.size_bytes
        """Bytes of the file, which may have room for more pages than the checkpoint that it was taken over from names."""

    @property
    def size_bytes(self) -> int:
        return self._page_count * self._layout.page_bytes

    @property
    def room(self) -> int:
        """Rows that it can still take."""
        return self._page_count * self._layout.rows - self.rows

    @property
    def is_closed(self) -> bool:
        """Whether all its pages are sealed."""
        return self.sealed == self._page_count

    def take(self, rows: int) -> int:
        """Take places for some rows, and return the first one."""
        first, self.rows = self.rows, self.rows + rows
        return first

    def seal(self) -> None:
        """Seal all pages that have rows. The last one takes no more."""
        assert self.pages is not None, "pages are sealed while they are in memory"
        per_page = self._layout.rows
        end = -(-self.rows // per_page)
        if end > self.sealed:
            in_last = self.rows - (end - 1) * per_page
            kernels.seal_pages(self._layout, self.number, self.sealed, end, in_last, self.pages)
        self.sealed, self.rows = end, end * per_page

    @staticmethod
    def existing(path: Path, entry: SegmentEntry, layout: PageLayout) -> Segment:
        """Open a file that was written before; it takes no more rows. Raises DiskError, also for a link and a pipe."""
        with disk_errors("opening", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise DiskError(f"{path} must be a regular file")
        pass_cache_by(descriptor)
        segment = Segment(path, entry.number, entry.place, layout, entry.pages, descriptor)
        segment.file_bytes = found.st_size
        if segment.file_bytes < segment.size_bytes:
            segment.close()
            raise DiskError(f"{path} must have {segment.size_bytes} bytes, it is cut off")
        segment.rows = entry.pages * layout.rows
        segment.sealed = segment.written = segment.synced = entry.pages
        return segment

    @staticmethod
    def create(path: Path, number: int, place: int, layout: PageLayout, pages: int) -> Segment:
        """Create a file with room for this many pages. Raises DiskError."""
        with disk_errors("creation", path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                os.posix_fallocate(descriptor, 0, pages * layout.page_bytes)  # so that a full disk is noticed now
                pass_cache_by(descriptor)
            except OSError:
                os.close(descriptor)
                os.unlink(path)
                raise
        segment = Segment(path, number, place, layout, pages, descriptor)
        segment.pages = zeros((segment.size_bytes,), np.uint8, BLOCK_BYTES)
        return segment

    @property
    def entry(self) -> SegmentEntry:
        """Return what a checkpoint says of it."""
        return SegmentEntry(self.number, self.place, self.synced)

    def write(self) -> None:
        """Hand sealed pages to the system. Raises DiskError."""
        with self._writing:
            if self._is_lost:
                self._write_again()
            if self.written == self.sealed:
                return
            assert self.pages is not None, "pages are dropped after they were written"
            end = self.sealed
            self._hand_over(self.pages, self.written, end)
            self.written = end

    def _hand_over(self, pages: NDArray[np.uint8], first: int, end: int) -> None:
        size, data = self._layout.page_bytes, memoryview(pages.data)
        start, stop = first * size, end * size
        with disk_errors("write", self.path):
            while start < stop:
                start += os.pwrite(self.descriptor, data[start : min(stop, start + _WRITE_BYTES)], start)

    def _write_again(self) -> None:
        """Hand all pages to the system once more that a failed sync may have lost."""
        self._hand_over(self.read_checked(), self.synced, self.written)
        self._is_lost = False

    def sync(self) -> None:
        """Return when the written pages are on the disk. Raises DiskError; the next `write` then writes them again, as another
        sync alone may succeed without the data."""
        end = self.written
        if self.synced == end:
            return
        try:
            with disk_errors("sync", self.path):
                os.fdatasync(self.descriptor)
        except DiskError:
            self._is_lost = True
            raise
        self.synced = end

    def drop_pages(self) -> None:
        """Free the memory of its pages, once they are written; they are read from the file from now on."""
        with self._writing:
            if self.written == self.sealed:
                self.pages = None

    def read_whole(self) -> NDArray[np.uint8]:
        """Read all pages that are on their way to the disk, or there. Raises DiskError."""
        pages, size = self.pages, self.written * self._layout.page_bytes
        if pages is not None:
            return pages[: self.sealed * self._layout.page_bytes]
        pages, done = zeros((size,), np.uint8, BLOCK_BYTES), 0
        with disk_errors("reading", self.path):
            while done < size:
                got = os.preadv(self.descriptor, [memoryview(pages.data)[done:]], done)
                if not got:
                    raise DiskError(f"{self.path} must have {size} bytes, got {done}")
                done += got
            if not passes_cache_by(self.descriptor):
                os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return pages

    def read_checked(self) -> NDArray[np.uint8]:
        """Read all pages as `read_whole` does. Raises DiskError where one is damaged, too."""
        pages = self.read_whole()
        damaged = kernels.find_damage(self._layout, self.number, pages)
        if damaged >= 0:
            start = damaged * self._layout.page_bytes
            raise DiskError(f"the page at byte {start} of {self.path} is damaged: its crc32 differs")
        return pages

    def hold(self, more: int) -> None:
        """Count checkpoints that need the file from now on, or no longer (negative)."""
        self.holds += more

    def remove(self) -> None:
        """Close and remove the file. Raises DiskError."""
        self.close()
        with disk_errors("removal", self.path):
            os.unlink(self.path)

    def close(self) -> None:
        """Close the file. It is closed with the last reference to this segment, too."""
        self._closing()


@contextmanager
def disk_errors(operation: str, path: Path) -> Iterator[None]:
    """Turn an OSError in the body into a DiskError that names operation and file."""
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"rows must be kept on the disk, {operation} of {path} failed: {error.strerror or error}",
            faq="disk-full",
        ) from None
