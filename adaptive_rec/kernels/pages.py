"""Pages of rows in files: packing, checksums, and reading of random rows.

A page has a header, then the numbers of its rows, then the rows, each with its optimizer state. The header has a crc32 of all
that follows it, the number of rows, the number of the page's file and the page's place in it. So every page that is read shows
whether it is whole, and whether it is the right one. Arrays of rows are given as bytes (`L` lines of them). The plain twin, with
`zlib.crc32` and `os.pread`, is in `reference/pages.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, types

from adaptive_rec.kernels.crc import crc32
from adaptive_rec.kernels.jit import JIT, JIT_INLINE
from adaptive_rec.kernels.page_reads import QUEUED, add_read, queue_of_thread, read_added

CRC, ROWS, FILE, PAGE, HEADER = 0, 1, 2, 3, 4
"""Places of the header's numbers, each of four bytes, and how many there are."""

WHOLE, SHORT, DAMAGED, WRONG = 0, 1, 2, 3
"""What was found of a row: it is there; its page cannot be read whole, or is damaged; another row or page is in its place."""

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
    number, and the line where it goes."""

    descriptor_C: np.ndarray
    file_C: np.ndarray
    page_C: np.ndarray
    place_C: np.ndarray
    row_C: np.ndarray
    line_C: np.ndarray


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
    """Write the headers of some pages, of which the last one has `rows` rows and the others are full."""
    numbers, words = pages.view(np.uint32), layout.page_bytes // 4
    for page in range(first_page, end_page):
        start = page * words
        numbers[start + ROWS] = layout.rows if page < end_page - 1 else rows
        numbers[start + FILE], numbers[start + PAGE], numbers[start + CRC] = file, page, 0
        numbers[start + CRC] = crc32(numbers[start : start + words])


@njit(**JIT)
def find_damage(layout, file, pages):
    """Return the first of a file's pages, in memory, that is damaged or another one; -1 where there is none."""
    numbers, words = pages.view(np.uint32), layout.page_bytes // 4
    for page in range(len(numbers) // words):
        one = numbers[page * words : (page + 1) * words].copy()
        found, one[CRC] = one[CRC], 0
        if crc32(one) != found or one[FILE] != file or one[PAGE] != page:
            return page
    return -1


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


def read_rows(layout, places, weights_LB, state_LB):
    """Read rows, each page once. Returns how many were read, and what was found of the next one: WHOLE where there is none."""
    return _read_rows(layout, places, queue_of_thread(layout.page_bytes), weights_LB, state_LB)


@njit(**JIT)
def _read_rows(layout, places, queue, weights_LB, state_LB):
    words, done = layout.page_bytes // 4, 0
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
                numbers = queue.numbers[page * words : (page + 1) * words]
                what = _check(numbers, places, c)
                if what != WHOLE:
                    return c, what
            place = places.place_C[c]
            if place >= numbers[ROWS] or numbers[HEADER + place] != places.row_C[c]:
                return c, WRONG
            _unpack(layout, queue.pages, page * layout.page_bytes, place, places.line_C[c], weights_LB, state_LB)
        done = end
    return done, WHOLE


@njit(**JIT_INLINE)
def _is_next_page(places, c):
    return places.page_C[c] != places.page_C[c - 1] or places.file_C[c] != places.file_C[c - 1]


@njit(**JIT_INLINE)
def _check(numbers, places, c):
    found = numbers[CRC]
    numbers[CRC] = 0
    if crc32(numbers) != found:
        return DAMAGED
    if numbers[FILE] != places.file_C[c] or numbers[PAGE] != places.page_C[c]:
        return WRONG
    return WHOLE
