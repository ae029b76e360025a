"""Plain twin of `pages.py`, with `zlib` and the system's calls from Python."""

from __future__ import annotations

import os
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.pages import DAMAGED, HEADER, ROWS, SHORT, WHOLE, WRONG, PageLayout, RowPlaces

Bytes = NDArray[np.uint8]


def crc32(data: Bytes, start: int, end: int) -> int:
    return zlib.crc32(data[start:end].tobytes())


def pack_rows(
    layout: PageLayout,
    first: int,
    row_C: NDArray[Any],
    line_C: NDArray[Any],
    weights_LB: Bytes,
    state_LB: Bytes,
    pages: Bytes,
) -> None:
    for c, (row, line) in enumerate(zip(row_C.tolist(), line_C.tolist(), strict=True)):
        page, place = divmod(first + c, layout.rows)
        start = page * layout.page_bytes
        number = start + 4 * (HEADER + place)
        pages[number : number + 4] = np.frombuffer(struct.pack("=I", row), np.uint8)
        pages[_bytes_of(layout, start, place)] = np.concatenate([weights_LB[line], state_LB[line]])


def seal_pages(layout: PageLayout, file: int, first_page: int, end_page: int, rows: int, pages: Bytes) -> None:
    for page in range(first_page, end_page):
        one = pages[page * layout.page_bytes : (page + 1) * layout.page_bytes]
        count = layout.rows if page < end_page - 1 else rows
        one[: 4 * HEADER] = np.frombuffer(struct.pack("=4I", 0, count, file, page), np.uint8)
        first = 4 * (HEADER + layout.rows)
        crcs = np.array(_row_crcs(layout, one), np.uint32)
        one[first : first + 4 * layout.rows] = crcs.view(np.uint8)
        one[:4] = np.frombuffer(struct.pack("=I", zlib.crc32(one[4 : layout.first_byte].tobytes())), np.uint8)


def _row_crcs(layout: PageLayout, page: Bytes) -> list[int]:
    return [zlib.crc32(page[_bytes_of(layout, 0, place)].tobytes()) for place in range(layout.rows)]


def _check_head(layout: PageLayout, file: int, number: int, page: Bytes) -> int:
    crc, _, *where = struct.unpack_from("=4I", page.data)
    if zlib.crc32(page[4 : layout.first_byte].tobytes()) != crc:
        return DAMAGED
    return WHOLE if where == [file, number] else WRONG


def find_damage(layout: PageLayout, file: int, pages: Bytes) -> int:
    for number in range(len(pages) // layout.page_bytes):
        page = pages[number * layout.page_bytes : (number + 1) * layout.page_bytes]
        crcs = struct.unpack_from(f"={layout.rows}I", page.data, 4 * (HEADER + layout.rows))
        if _check_head(layout, file, number, page) != WHOLE or list(crcs) != _row_crcs(layout, page):
            return number
    return -1


def unpack_rows(
    layout: PageLayout, page_C: NDArray[Any], place_C: NDArray[Any], row_C: NDArray[Any], line_C: NDArray[Any],
    pages: Bytes, weights_LB: Bytes, state_LB: Bytes,
) -> int:  # fmt: skip
    for c, (page, place, row, line) in enumerate(
        zip(*map(np.ndarray.tolist, (page_C, place_C, row_C, line_C)), strict=True)
    ):
        start = page * layout.page_bytes
        if struct.unpack_from("=I", pages.data, start + 4 * (HEADER + place))[0] != row:
            return c
        _unpack(layout, pages, start, place, line, weights_LB, state_LB)
    return len(row_C)


def read_rows(layout: PageLayout, places: RowPlaces, weights_LB: Bytes, state_LB: Bytes) -> tuple[int, int]:
    for c, (descriptor, file, page, place, row, line) in enumerate(zip(*map(np.ndarray.tolist, places), strict=True)):
        data = np.frombuffer(os.pread(descriptor, layout.page_bytes, page * layout.page_bytes), np.uint8)
        if len(data) != layout.page_bytes:
            return c, SHORT
        what = _check_head(layout, file, page, data)
        if what != WHOLE:
            return c, what
        head = np.frombuffer(data[: 4 * (HEADER + 2 * layout.rows)], np.uint32)
        if place >= head[ROWS] or head[HEADER + place] != row:
            return c, WRONG
        if head[HEADER + layout.rows + place] != zlib.crc32(data[_bytes_of(layout, 0, place)].tobytes()):
            return c, DAMAGED
        _unpack(layout, data, 0, place, line, weights_LB, state_LB)
    return len(places.row_C), WHOLE


def _bytes_of(layout: PageLayout, start: int, place: int) -> slice:
    size = layout.row_bytes + layout.state_bytes
    first = start + layout.first_byte + place * size
    return slice(first, first + size)


def _unpack(
    layout: PageLayout, pages: Bytes, start: int, place: int, line: int, weights_LB: Bytes, state_LB: Bytes
) -> None:
    row = pages[_bytes_of(layout, start, place)]
    weights_LB[line], state_LB[line] = row[: layout.row_bytes], row[layout.row_bytes :]
