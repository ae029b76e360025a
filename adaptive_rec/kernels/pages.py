"""Pages of rows in files: packing, checksums, and reading of random rows.

A page has a head and then its rows, each with its optimizer state, up to its last byte. The head has a crc32 of what follows in
it: the number of rows, the number of the page's file and the page's place in it, then the number of each row, then a crc32 of
each row. So the head of a page and one row, a small part of the page, show whether that row is whole and the right one. The crc32
of a head is checked once for all rows of its page; what the head says of a row and of its page is compared with each row that is
read. Arrays of rows are given as bytes (`L` lines of them). The plain twin, with `zlib.crc32` and `os.pread`, is in
`reference/pages.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, types
from numba.np.numpy_support import carray

from adaptive_rec.kernels.crc import crc32
from adaptive_rec.kernels.jit import JIT, JIT_INLINE
from adaptive_rec.kernels.page_reads import QUEUED, add_read, queue_of_thread, read_added
from adaptive_rec.kernels.prefetch import pointer_to, prefetch_row

CRC, ROWS, FILE, PAGE, HEADER = 0, 1, 2, 3, 4
"""Places of the head's first numbers, each of four bytes, and how many there are."""

ROW_BYTES = 8
"""Bytes of the head for each row."""

_ROWS_AHEAD = 12
"""How far ahead of their use rows in memory are prefetched."""

WHOLE, SHORT, DAMAGED, WRONG = 0, 1, 2, 3
"""What was found of a row: it is there; its page cannot be read whole; it or its page's head is damaged; another row or page is
in its place."""

WILL_NEED = 3
"""Advice to the system to read a part of a file ahead."""

_advise = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))


class PageLayout(NamedTuple):
    """Sizes of a page and its rows, in bytes, and how many rows a page has."""

    page_bytes: int
    row_bytes: int
    state_bytes: int
    rows: int
    first_byte: int
    """Where the first row begins."""


class RowPlaces(NamedTuple):
    """Rows to read, in the order of their pages: the file descriptor, number of the file, page and place in it of each, the row's
    number, the line where it goes, and the line of its file in the flags of checked heads."""

    descriptor_C: np.ndarray
    file_C: np.ndarray
    page_C: np.ndarray
    place_C: np.ndarray
    row_C: np.ndarray
    line_C: np.ndarray
    segment_C: np.ndarray

    @staticmethod
    def room_for(rows):
        """Return memory for the places of some rows."""
        return RowPlaces(np.empty(rows, np.int32), *np.empty((6, rows), np.int64))


@njit(**JIT)
def pack_rows(layout, first, row_C, line_C, weights_LB, state_LB, pages):
    """Write rows into the memory of a file's pages, the first of them at place `first` of the file."""
    numbers = pages.view(np.uint32)
    for c in range(len(row_C)):
        page, place = (first + c) // layout.rows, (first + c) % layout.rows
        start = page * layout.page_bytes
        numbers[start // 4 + HEADER + place] = row_C[c]
        at = start + layout.first_byte + place * (layout.row_bytes + layout.state_bytes)
        _copy(weights_LB, line_C[c], layout.row_bytes, pages, at)
        _copy(state_LB, line_C[c], layout.state_bytes, pages, at + layout.row_bytes)


@njit(**JIT_INLINE)
def _copy(from_LB, line, size, pages, at):
    for b in range(size):
        pages[at + b] = from_LB[line, b]


@njit(**JIT)
def seal_pages(layout, file, first_page, end_page, rows, pages):
    """Write the heads of some pages, of which the last one has `rows` rows and the others are full."""
    numbers = pages.view(np.uint32)
    for page in range(first_page, end_page):
        start = page * layout.page_bytes
        head = start // 4
        numbers[head + ROWS] = layout.rows if page < end_page - 1 else rows
        numbers[head + FILE], numbers[head + PAGE] = file, page
        for place in range(layout.rows):
            numbers[head + HEADER + layout.rows + place] = _row_crc(layout, pages, start, place)
        numbers[head + CRC] = _head_crc(layout, pages, start)


@njit(**JIT_INLINE)
def _head_crc(layout, pages, start):
    return crc32(pages, start + 4, start + layout.first_byte)


@njit(**JIT_INLINE)
def _row_crc(layout, pages, start, place):
    size = layout.row_bytes + layout.state_bytes
    first = start + layout.first_byte + place * size
    return crc32(pages, first, first + size)


@njit(**JIT)
def find_damage(layout, file, pages):
    """Return the first of a file's pages, in memory, that is damaged anywhere, or another one; -1 where there is none."""
    numbers = pages.view(np.uint32)
    for page in range(len(pages) // layout.page_bytes):
        start = page * layout.page_bytes
        if _check_head(layout, pages, numbers, start, file, page) != WHOLE:
            return page
        for place in range(layout.rows):
            if numbers[start // 4 + HEADER + layout.rows + place] != _row_crc(layout, pages, start, place):
                return page
    return -1


@njit(**JIT_INLINE)
def _check_head(layout, pages, numbers, start, file, page):
    if not _is_head_whole(layout, pages, numbers, start):
        return DAMAGED
    return WHOLE if _is_page(numbers, start, file, page) else WRONG


@njit(**JIT_INLINE)
def _is_head_whole(layout, pages, numbers, start):
    return numbers[start // 4 + CRC] == _head_crc(layout, pages, start)


@njit(**JIT_INLINE)
def _is_page(numbers, start, file, page):
    return numbers[start // 4 + FILE] == file and numbers[start // 4 + PAGE] == page


@njit(**JIT_INLINE)
def _check_row(layout, pages, numbers, start, place, row):
    head = start // 4
    if place >= numbers[head + ROWS] or numbers[head + HEADER + place] != row:
        return WRONG
    if numbers[head + HEADER + layout.rows + place] != _row_crc(layout, pages, start, place):
        return DAMAGED
    return WHOLE


@njit(**JIT)
def unpack_rows(layout, page_C, place_C, row_C, line_C, pages, weights_LB, state_LB):
    """Copy rows out of the memory of a file's pages. Returns how many were there, which is all of them unless another row was
    found in the place of one."""
    numbers = pages.view(np.uint32)
    for c in range(len(row_C)):
        start = page_C[c] * layout.page_bytes
        if numbers[start // 4 + HEADER + place_C[c]] != row_C[c]:
            return c
        _unpack(layout, pages, start, place_C[c], line_C[c], weights_LB, state_LB)
    return len(row_C)


@njit(**JIT)
def copy_near(layout, capacity, address_P, address_C, row_C, line_C, weights_LB, state_LB, found_C):
    """Copy those rows whose pages are in memory, by their addresses in a log (`row_addresses.py`), and set which they are.
    `address_P`: where each segment's pages are in memory; 0 where they are in a file only. Returns how many rows were found, or
    -1 where another row was in the place of one."""
    found, segment_bytes = 0, capacity // layout.rows * layout.page_bytes
    for c in range(len(row_C)):
        if c + _ROWS_AHEAD < len(row_C):
            memory, start, within = _near_place(layout, capacity, address_P, address_C[c + _ROWS_AHEAD])
            if memory:
                pages = carray(pointer_to(memory), (segment_bytes,), np.uint8)
                at = start + layout.first_byte + within * (layout.row_bytes + layout.state_bytes)
                prefetch_row(pages, start + 4 * (HEADER + within))
                prefetch_row(pages, at)
                prefetch_row(pages, at + layout.row_bytes + layout.state_bytes - 1)
        memory, start, within = _near_place(layout, capacity, address_P, address_C[c])
        found_C[c] = memory != 0
        if not memory:
            continue
        pages = carray(pointer_to(memory), (segment_bytes,), np.uint8)
        if pages.view(np.uint32)[start // 4 + HEADER + within] != row_C[c]:
            return -1
        _unpack(layout, pages, start, within, line_C[c], weights_LB, state_LB)
        found += 1
    return found


@njit(**JIT_INLINE)
def _near_place(layout, capacity, address_P, address):
    """Return where the segment of an address is in memory (0: it is not), where the row's page begins there, and the row's place
    in that."""
    if address == 0:
        return np.uint64(0), 0, 0
    place, position = divmod(np.int64(address) - 1, capacity)
    page, within = divmod(position, layout.rows)
    return address_P[place], page * layout.page_bytes, within


@njit(**JIT_INLINE)
def _unpack(layout, pages, start, place, line, weights_LB, state_LB):
    at = start + layout.first_byte + place * (layout.row_bytes + layout.state_bytes)
    for b in range(layout.row_bytes):
        weights_LB[line, b] = pages[at + b]
    at += layout.row_bytes
    for b in range(layout.state_bytes):
        state_LB[line, b] = pages[at + b]


@njit(**JIT)
def announce_rows(layout, places):
    """Have the system start to read the pages of some rows into its cache."""
    for c in range(len(places.row_C)):
        if c == 0 or _is_next_page(places, c):
            _advise(places.descriptor_C[c], places.page_C[c] * layout.page_bytes, layout.page_bytes, WILL_NEED)


def read_rows(layout, places, checked_PX, weights_LB, state_LB):
    """Read rows, each page once. `checked_PX` flags the pages (X) of each file whose heads were found whole, and is brought up to
    date. Returns how many rows were read, and what was found of the next one: WHOLE where there is none."""
    return _read_rows(layout, places, checked_PX, queue_of_thread(layout.page_bytes), weights_LB, state_LB)


@njit(**JIT)
def _read_rows(layout, places, checked_PX, queue, weights_LB, state_LB):
    done = 0
    while done < len(places.row_C):
        end, count = done, 0
        while end < len(places.row_C):
            if end == done or _is_next_page(places, end):
                if count == QUEUED:
                    break
                add_read(queue, count, places.descriptor_C[end], places.page_C[end] * layout.page_bytes, layout.page_bytes)
                count += 1
            end += 1
        read_added(queue, count)
        page = -1
        for c in range(done, end):
            if c == done or _is_next_page(places, c):
                page += 1
                if queue.found_Q[page] != layout.page_bytes:
                    return c, SHORT
            what = _check_read(layout, places, c, checked_PX, queue.pages, queue.numbers, page * layout.page_bytes)
            if what != WHOLE:
                return c, what
            _unpack(layout, queue.pages, page * layout.page_bytes, places.place_C[c], places.line_C[c], weights_LB, state_LB)
        done = end
    return done, WHOLE


@njit(**JIT_INLINE)
def _check_read(layout, places, c, checked_PX, pages, numbers, start):
    """Return what is found of a row in its page, whose head is checked where no row of it was read before, or where it is not
    the row's."""
    file, page, segment = places.file_C[c], places.page_C[c], places.segment_C[c]
    if not checked_PX[segment, page]:
        what = _check_head(layout, pages, numbers, start, file, page)
        if what != WHOLE:
            return what
        checked_PX[segment, page] = True
    what = WRONG
    if _is_page(numbers, start, file, page):
        what = _check_row(layout, pages, numbers, start, places.place_C[c], places.row_C[c])
    if what == WRONG and not _is_head_whole(layout, pages, numbers, start):
        return DAMAGED
    return what


@njit(**JIT_INLINE)
def _is_next_page(places, c):
    return places.page_C[c] != places.page_C[c - 1] or places.file_C[c] != places.file_C[c - 1]
