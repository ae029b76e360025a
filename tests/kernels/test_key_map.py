"""The map of raw keys beside its plain twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adaptive_rec.kernels import key_map as kernels
from adaptive_rec.kernels.reference import key_map as plain

ROWS = (400, 3, 1200)
FIRST = np.concatenate([[0], np.cumsum(ROWS)])
SALTS = np.random.default_rng(1).integers(0, 2**64, len(ROWS), dtype=np.uint64)
TABLES = kernels.KeyTables(SALTS, FIRST, np.array([1, 1, 5]))
TABLE_F = np.array([2, 0, 1, 2])
EXTREMES = [0, 1, -1, 2**63 - 1, -(2**63), 2**32, 2**32 - 1]


class Maps:
    """The map and its twin with the same keys, most of which are keys of several tables."""

    def __init__(self, slots: int = 2048) -> None:
        self.slots, self.rows = np.zeros((slots, kernels.WORDS), np.uint32), plain.KeyRows()
        random = np.random.default_rng(2)
        for table, rows in enumerate(ROWS):
            keys = np.unique([*EXTREMES, *random.integers(-(2**63), 2**63, rows)])[:rows]
            numbers = FIRST[table] + random.permutation(rows)[: len(keys)]
            tables = np.full(len(keys), table)
            kernels.add_keys(self.slots, TABLES, keys, tables, numbers)
            plain.add_keys(self.rows, keys, tables, numbers)
        self.known = np.array(sorted({key for _, key in self.rows}))

    def batch(self, bags: int, seed: int) -> kernels.Keys:
        random = np.random.default_rng(seed)
        offsets = np.concatenate([[0], np.cumsum(random.integers(0, 4, bags * len(TABLE_F)))])
        unknown = random.integers(-(2**63), 2**63, offsets[-1])
        keys = np.where(random.random(offsets[-1]) < 0.8, random.choice(self.known, offsets[-1]), unknown)
        return kernels.Keys(keys, offsets, TABLE_F)

    def check(self, seed: int, bags: int = 200) -> None:
        batch, limit_T = self.batch(bags, seed), FIRST[1:] - np.array([100, 0, 0])
        ours, theirs = ([np.zeros(len(batch.key_N), np.int64) for _ in range(3)] for _ in range(2))
        unknown = plain.find_ids(self.rows, TABLES, batch, limit_T, *theirs)
        assert kernels.find_ids(self.slots, TABLES, batch, limit_T, *ours) == unknown
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(mine, other)
        assert 0 < unknown < len(batch.key_N) or not bags


@pytest.fixture(scope="module")
def maps() -> Any:
    return Maps()


@pytest.mark.parametrize("seed", range(3))
def test_ids_of_keys_are_those_of_a_dict(maps: Maps, seed: int) -> None:
    maps.check(seed)


def test_a_batch_may_be_empty(maps: Maps) -> None:
    maps.check(0, bags=0)


@pytest.mark.parametrize("limits", [(0, 0, 0), (50, 1, 700)], ids=str)
def test_other_slots_have_the_keys_below_the_limits(limits: tuple[int, ...]) -> None:
    maps, limit_T = Maps(), FIRST[1:] - np.array(limits)
    others = np.zeros((8192, kernels.WORDS), np.uint32)
    moved = kernels.move_slots(maps.slots, TABLES, limit_T, others)
    maps.slots, maps.rows = others, plain.move_slots(maps.rows, limit_T)
    assert moved == len(maps.rows)
    maps.check(7)


def test_a_full_table_of_slots_still_finds_its_keys() -> None:
    maps = Maps(slots=2048)
    assert 0.7 < np.count_nonzero(maps.slots[:, kernels.ROW]) / len(maps.slots) < 1
    maps.check(8)


def test_keys_are_listed_by_row(maps: Maps) -> None:
    for first, end in ((0, FIRST[-1]), (FIRST[1], FIRST[2]), (10, 500)):
        ours, theirs = np.zeros(end - first, np.int64), np.zeros(end - first, np.int64)
        kernels.list_keys(maps.slots, ours, first)
        plain.list_keys(maps.rows, theirs, first)
        np.testing.assert_array_equal(ours, theirs)
