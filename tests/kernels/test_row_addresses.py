"""Addresses of rows in a log: kernels beside their plain twins."""

from __future__ import annotations

from typing import Any

import numpy as np

from adaptive_rec.embedding.disk.segment import page_layout
from adaptive_rec.kernels import row_addresses as kernels
from adaptive_rec.kernels.pages import RowPlaces
from tests.kernels.reference import row_addresses as plain

LAYOUT = page_layout(64, 4)
CAPACITY, PLACES, ROWS = 7 * LAYOUT.rows, 9, 3000


def world(seed: int) -> tuple[Any, ...]:
    """Addresses of rows, a third of which were never written, numbers of segments, and some rows."""
    random = np.random.default_rng(seed)
    address_R = np.zeros(ROWS, np.uint32)
    written = random.permutation(ROWS)[: 2 * ROWS // 3]
    address_R[written] = 1 + random.permutation(PLACES * CAPACITY)[: len(written)]
    return random, address_R, random.permutation(100)[:PLACES], random.permutation(ROWS)[:500]


def test_addresses_and_stamps_are_those_of_the_plain_twin() -> None:
    for seed in range(5):
        _, address_R, number_P, row_C = world(seed)
        found = []
        for module in (kernels, plain):
            address_C, stamp_C = np.empty(len(row_C), np.uint32), np.empty(len(row_C), np.int64)
            module.find_addresses(address_R, row_C, number_P, CAPACITY, address_C, stamp_C)
            found.append((address_C, stamp_C))
        np.testing.assert_array_equal(*(each[0] for each in found))
        np.testing.assert_array_equal(*(each[1] for each in found))
        stamps = found[0][1][found[0][0] > 0]
        assert 100 < len(stamps) == len(set(stamps.tolist())), "a stamp names one value"


def test_rows_that_are_moved_are_counted_in_their_segment_alone() -> None:
    for seed in range(5):
        random, address_R, _, row_C = world(seed)
        live_P = np.bincount((address_R[address_R > 0].astype(np.int64) - 1) // CAPACITY, minlength=PLACES)
        first, found = 1 + int(random.integers(PLACES)) * CAPACITY + 3, []
        for module in (kernels, plain):
            addresses, counts = address_R.copy(), live_P.copy()
            module.set_addresses(addresses, row_C[: CAPACITY - 3], first, CAPACITY, counts)
            found.append((addresses, counts))
        np.testing.assert_array_equal(*(each[0] for each in found))
        np.testing.assert_array_equal(*(each[1] for each in found))
        assert found[0][1].sum() == np.count_nonzero(found[0][0])


def test_places_in_files_are_those_of_the_plain_twin() -> None:
    random, address_R, number_P, _ = world(1)
    row_C = np.flatnonzero(address_R)
    line_C, descriptor_P = random.permutation(len(row_C)), np.arange(PLACES, dtype=np.int32) + 50
    order_C = np.argsort(address_R[row_C])
    found = [RowPlaces.room_for(len(row_C)) for _ in range(2)]
    for module, places in zip((kernels, plain), found, strict=True):
        module.place_rows(LAYOUT, CAPACITY, descriptor_P, number_P, address_R[row_C], row_C, line_C, order_C, places)
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    order = found[0].segment_C * 7 + found[0].page_C
    assert (np.diff(order) >= 0).all(), "each page is read once"
