"""Pages of rows: kernels beside their plain twins, and every flipped bit is found."""

from __future__ import annotations

import os
import platform
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.embedding.disk.segment import layout_of, page_layout
from adaptive_rec.errors import DiskError
from adaptive_rec.kernels import page_reads
from adaptive_rec.kernels import pages as kernels
from adaptive_rec.kernels.crc import crc32
from tests.kernels.reference import pages as plain

ROWS, FILE = 300, 7


class World:
    """Rows in pages, in memory and in a file."""

    def __init__(self, folder: Path, row_bytes: int, state_bytes: int) -> None:
        random = np.random.default_rng(row_bytes)
        self.layout = page_layout(row_bytes, state_bytes)
        self.rows, self.lines = random.permutation(10_000)[:ROWS], random.permutation(ROWS)
        self.values = tuple(random.integers(0, 256, (ROWS, size), np.uint8) for size in (row_bytes, state_bytes))
        self.count = -(-ROWS // self.layout.rows)
        self.pages = self.packed(kernels)
        self.path = folder / "rows"
        self.path.write_bytes(self.pages.tobytes())
        self.descriptor = os.open(self.path, os.O_RDWR)

    def packed(self, module: Any) -> Any:
        pages = np.zeros(self.count * self.layout.page_bytes, np.uint8)
        module.pack_rows(self.layout, 0, self.rows, self.lines, *self.values, pages)
        module.seal_pages(self.layout, FILE, 0, self.count, ROWS - (self.count - 1) * self.layout.rows, pages)
        return pages

    def places(self) -> kernels.RowPlaces:
        page_C, place_C = np.divmod(np.arange(ROWS), self.layout.rows)
        descriptors = np.full(ROWS, self.descriptor, np.int32)
        segments = np.zeros(ROWS, np.int64)
        return kernels.RowPlaces(descriptors, np.full(ROWS, FILE), page_C, place_C, self.rows, self.lines, segments)

    def read(self, module: Any, checked: Any = None) -> tuple[Any, ...]:
        """Read all rows. `checked`: flags of pages whose heads were found whole before."""
        values = [np.zeros_like(each) for each in self.values]
        checked = np.zeros((1, self.count), np.bool_) if checked is None else checked
        return (*module.read_rows(self.layout, self.places(), checked, *values), values)


@pytest.fixture(params=[(32, 4), (64, 0), (512, 512), (6, 12), (9000, 4)], ids=str)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = World(tmp_path, *request.param)
    yield made
    os.close(made.descriptor)


@pytest.mark.parametrize("refused", [0, 2], ids=["io_setup", "io_submit"])
def test_pages_are_read_where_the_system_takes_no_reads_together(
    world: World, refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list(page_reads._NUMBERS[platform.machine()])
    calls[refused] = 1 << 20
    monkeypatch.setitem(page_reads._NUMBERS, platform.machine(), tuple(calls))
    monkeypatch.setattr(page_reads, "_owners", threading.local())

    done, what, values = world.read(kernels)

    assert (done, what) == (ROWS, kernels.WHOLE)
    for read, kept in zip(values, world.values, strict=True):
        np.testing.assert_array_equal(read, kept)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 1), (3, 70), (1, 9), (4, 4096)])
def test_the_checksum_is_zlibs(start: int, end: int) -> None:
    data = np.random.default_rng(end).integers(0, 256, 5000, dtype=np.uint8)
    assert crc32(data, start, end) == zlib.crc32(data[start:end].tobytes()) == plain.crc32(data, start, end)


def test_kernels_equal_their_plain_twins(world: World) -> None:
    np.testing.assert_array_equal(world.packed(plain), world.pages)
    assert kernels.find_damage(world.layout, FILE, world.pages) == plain.find_damage(world.layout, FILE, world.pages) == -1
    for module in (kernels, plain):
        done, what, values = world.read(module)
        assert (done, what) == (ROWS, kernels.WHOLE)
        for found, written in zip(values, world.values, strict=True):
            np.testing.assert_array_equal(found, written)
        values = [np.zeros_like(each) for each in world.values]
        places = world.places()
        where = places.page_C, places.place_C, places.row_C, places.line_C
        assert module.unpack_rows(world.layout, *where, world.pages, *values) == ROWS
        near, found = [np.zeros_like(each) for each in world.values], np.zeros(ROWS + 2, np.bool_)
        memory = np.array([0, world.pages.ctypes.data], np.uint64)  # the first segment is in a file
        capacity = world.count * world.layout.rows
        addresses = np.concatenate([1 + capacity + np.arange(ROWS), [0, capacity]]).astype(np.uint32)
        numbers = (np.append(each, [0, 0]) for each in (world.rows, world.lines))
        assert module.copy_near(world.layout, capacity, memory, addresses, *numbers, *near, found) == ROWS
        assert found.tolist() == ROWS * [True] + 2 * [False]
        for copied, read in zip(near, values, strict=True):
            np.testing.assert_array_equal(copied, read)
        one = (world.rows[:1] + 1, world.lines[:1])
        assert module.copy_near(world.layout, capacity, memory, addresses[:1], *one, *near, found[:1]) == -1
        for found, written in zip(values, world.values, strict=True):
            np.testing.assert_array_equal(found, written)


def test_every_flipped_bit_is_found_before_a_value_is_used(world: World) -> None:
    """Reading finds it with the row that it is in, or with the page's first row; what no row has is not read."""
    random, layout = np.random.default_rng(3), world.layout
    for byte, bit in zip(random.integers(0, len(world.pages), 200).tolist(), random.integers(0, 8, 200).tolist(), strict=True):
        damaged = world.pages.copy()
        damaged[byte] ^= 1 << bit
        os.pwrite(world.descriptor, damaged[byte : byte + 1].tobytes(), byte)
        page, within = divmod(byte, layout.page_bytes)
        row = page * layout.rows + max(within - layout.first_byte, 0) // (layout.row_bytes + layout.state_bytes)
        for module in (kernels, plain):
            done, what, _ = world.read(module)
            assert (done, what) == ((row, kernels.DAMAGED) if row < ROWS else (ROWS, kernels.WHOLE))
            assert module.find_damage(world.layout, FILE, damaged) == page
        os.pwrite(world.descriptor, world.pages[byte : byte + 1].tobytes(), byte)


def test_a_head_is_checked_once_and_compared_with_every_row(world: World) -> None:
    """A bit that flips in it later is found where it says something of the row; else the row is right, and all is found by a
    check of the whole page."""
    random, layout, passed = np.random.default_rng(4), world.layout, 0
    used = 4 * kernels.HEADER + layout.rows * kernels.ROW_BYTES
    for byte, bit in zip(random.integers(0, used, 60).tolist(), random.integers(0, 8, 60).tolist(), strict=True):
        found = []
        for module in (kernels, plain):
            checked = np.zeros((1, world.count), np.bool_)
            assert world.read(module, checked)[:2] == (ROWS, kernels.WHOLE)
            assert checked.all()
            damaged = world.pages.copy()
            damaged[byte] ^= 1 << bit
            os.pwrite(world.descriptor, damaged[byte : byte + 1].tobytes(), byte)
            done, what, values = world.read(module, checked)
            found.append((done, what))
            assert what in (kernels.WHOLE, kernels.DAMAGED)
            for read, kept in zip(values, world.values, strict=True):
                lines = world.lines[:done]
                np.testing.assert_array_equal(read[lines], kept[lines])
            assert module.find_damage(layout, FILE, damaged) == 0
            os.pwrite(world.descriptor, world.pages[byte : byte + 1].tobytes(), byte)
        assert found[0] == found[1]
        passed += found[0][1] == kernels.WHOLE
    assert passed < 60, "most of a head are numbers and checksums of rows"


@pytest.mark.parametrize("module", [kernels, plain], ids=["kernels", "plain"])
def test_a_short_file_another_page_and_another_row_are_told_apart(world: World, module: Any) -> None:
    last = (world.count - 1) * world.layout.rows
    os.ftruncate(world.descriptor, len(world.pages) - 1)
    assert world.read(module)[:2] == (last, kernels.SHORT)
    end = (world.count - 1) * world.layout.page_bytes
    os.pwrite(world.descriptor, world.pages[: world.layout.page_bytes].tobytes(), end)
    assert world.read(module)[:2] == ((last, kernels.WRONG) if world.count > 1 else (ROWS, kernels.WHOLE))
    world.rows = world.rows + 1
    assert world.read(module)[:2] == (0, kernels.WRONG)


@pytest.mark.parametrize("row_bytes", [2, 4, 64, 100, 512, 2048, 4080, 4096, 9000, 70_000, 300_000])
def test_pages_waste_little_room(row_bytes: int) -> None:
    layout = page_layout(row_bytes, 4)
    used = 4 * kernels.HEADER + layout.rows * (kernels.ROW_BYTES + row_bytes + 4)
    assert used <= layout.page_bytes
    assert layout.page_bytes - used <= max(layout.page_bytes // 8, 4096)


@pytest.mark.parametrize("rows", [54, 1 << 30])
def test_a_page_has_no_more_rows_than_it_has_room_for(rows: int) -> None:
    assert page_layout(64, 4).rows == layout_of(64, 4, 4096, 53).rows == 53
    with pytest.raises(DiskError, match=f"pages of 4096 bytes must have room for {rows} rows of 68 bytes"):
        layout_of(64, 4, 4096, rows)
