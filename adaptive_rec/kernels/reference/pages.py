"""Plain twin of `pages.py`, with `zlib` and the system's calls from Python."""

from __future__ import annotations

import os
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.pages import DAMAGED, HEADER, SHORT, WHOLE, WRONG, PageLayout, RowPlaces

Bytes = NDArray[np.uint8]


def crc32(words: NDArray[np.uint32]) -> int:
    return zlib.crc32(words.tobytes())


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
        one[:4] = np.frombuffer(struct.pack("=I", zlib.crc32(one.data)), np.uint8)


def find_damage(layout: PageLayout, file: int, pages: Bytes) -> int:
    for page in range(len(pages) // layout.page_bytes):
        one = bytearray(pages[page * layout.page_bytes : (page + 1) * layout.page_bytes])
        found, _, of_file, number = struct.unpack_from("=4I", one)
        one[:4] = bytes(4)
        if zlib.crc32(one) != found or (of_file, number) != (file, page):
            return page
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
        data = bytearray(os.pread(descriptor, layout.page_bytes, page * layout.page_bytes))
        if len(data) != layout.page_bytes:
            return c, SHORT
        crc, rows, of_file, number = struct.unpack_from("=4I", data)
        data[:4] = bytes(4)
        if zlib.crc32(data) != crc:
            return c, DAMAGED
        if (of_file, number) != (file, page):
            return c, WRONG
        if place >= rows or struct.unpack_from("=I", data, 4 * (HEADER + place))[0] != row:
            return c, WRONG
        _unpack(layout, np.frombuffer(data, np.uint8), 0, place, line, weights_LB, state_LB)
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
