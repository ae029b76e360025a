"""Plain twin of `pages.py`, with `zlib` and the system's calls from Python."""

from __future__ import annotations

import ctypes
import os
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.pages import DAMAGED, FILE, HEADER, PAGE, ROWS, SHORT, WHOLE, WRONG, PageLayout, RowPlaces

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


def copy_near(
    layout: PageLayout, capacity: int, address_P: NDArray[np.uint64], address_C: NDArray[np.uint32], row_C: NDArray[Any],
    line_C: NDArray[Any], weights_LB: Bytes, state_LB: Bytes, found_C: NDArray[np.bool_],
) -> int:  # fmt: skip
    found_C[:] = False
    for c, (address, row, line) in enumerate(zip(address_C.tolist(), row_C.tolist(), line_C.tolist(), strict=True)):
        place, position = divmod(address - 1, capacity)
        if not address or not address_P[place]:
            continue
        page, within = divmod(position, layout.rows)
        memory = (ctypes.c_uint8 * layout.page_bytes).from_address(int(address_P[place]) + page * layout.page_bytes)
        data = np.frombuffer(memory, np.uint8)
        if struct.unpack_from("=I", data.data, 4 * (HEADER + within))[0] != row:
            return -1
        _unpack(layout, data, 0, within, line, weights_LB, state_LB)
        found_C[c] = True
    return int(found_C.sum())


def read_rows(
    layout: PageLayout, places: RowPlaces, checked_PX: NDArray[np.bool_], weights_LB: Bytes, state_LB: Bytes
) -> tuple[int, int]:  # fmt: skip
    arrays = map(np.ndarray.tolist, places)
    for c, (descriptor, file, page, place, row, line, segment) in enumerate(zip(*arrays, strict=True)):
        data = np.frombuffer(os.pread(descriptor, layout.page_bytes, page * layout.page_bytes), np.uint8)
        if len(data) != layout.page_bytes:
            return c, SHORT
        of_page = _check_head(layout, file, page, data)
        if of_page != WHOLE and not checked_PX[segment, page]:
            return c, of_page
        checked_PX[segment, page] = True
        head = np.frombuffer(data[: 4 * (HEADER + 2 * layout.rows)], np.uint32)
        if head[FILE] != file or head[PAGE] != page or place >= head[ROWS] or head[HEADER + place] != row:
            return c, WRONG if of_page == WHOLE else of_page
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
