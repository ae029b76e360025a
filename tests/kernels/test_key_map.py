"""The map of raw keys beside its plain twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adaptive_rec.kernels import key_map as kernels
from tests.kernels.reference import key_map as plain

ROWS = (400, 3, 1200)
FIRST = np.concatenate([[0], np.cumsum(ROWS)])
SALTS = np.random.default_rng(1).integers(0, 2**64, len(ROWS), dtype=np.uint64)
TABLES = kernels.KeyTables(SALTS, FIRST, np.array([1, 1, 5]))
TABLE_F = np.array([2, 0, 1, 2])
EXTREMES = [0, 1, -1, 2**63 - 1, -(2**63), 2**32, 2**32 - 1]


FLAGS = [0, kernels.NEW, kernels.LEAVING]


class Maps:
    """The map and its twin with the same keys, most of which are keys of several tables; every third has a flag."""

    def __init__(self, slots: int = 2048) -> None:
        self.slots, self.rows = np.zeros((slots, kernels.WORDS), np.uint32), plain.no_rows()
        random = np.random.default_rng(2)
        for table, rows in enumerate(ROWS):
            keys = np.unique([*EXTREMES, *random.integers(-(2**63), 2**63, rows)])[:rows]
            numbers = FIRST[table] + random.permutation(rows)[: len(keys)]
            tables = np.full(len(keys), table)
            for first, flags in enumerate(FLAGS):
                some = keys[first::3], tables[first::3], numbers[first::3]
                kernels.add_keys(self.slots, TABLES, *some, flags)
                plain.add_keys(self.rows, *some, flags)
        self.known = np.array(sorted({key for kept in self.rows.values() for _, key in kept}))

    def batch(self, bags: int, seed: int) -> kernels.Keys:
        random = np.random.default_rng(seed)
        offsets = np.concatenate([[0], np.cumsum(random.integers(0, 4, bags * len(TABLE_F)))])
        unknown = random.integers(-(2**63), 2**63, offsets[-1])
        keys = np.where(random.random(offsets[-1]) < 0.8, random.choice(self.known, offsets[-1]), unknown)
        return kernels.Keys(keys, offsets, TABLE_F)

    def check(self, seed: int, bags: int = 200) -> None:
        batch = self.batch(bags, seed)
        for hidden in (kernels.NEW, kernels.LEAVING):
            ours, theirs = ([np.zeros(len(batch.key_N), np.int64) for _ in range(3)] for _ in range(2))
            unknown = plain.find_ids(self.rows, TABLES, batch, hidden, *theirs)
            assert kernels.find_ids(self.slots, TABLES, batch, hidden, *ours) == unknown
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


@pytest.mark.parametrize("hidden", FLAGS)
def test_other_slots_have_the_keys_that_are_not_hidden(hidden: int) -> None:
    maps = Maps()
    others = np.zeros((8192, kernels.WORDS), np.uint32)
    moved = kernels.move_slots(maps.slots, TABLES, hidden, others)
    maps.slots, maps.rows = others, plain.move_slots(maps.rows, hidden)
    assert moved == sum(map(len, maps.rows.values()))
    maps.check(7)


def test_a_full_table_of_slots_still_finds_its_keys() -> None:
    maps = Maps(slots=2048)
    assert 0.7 < np.count_nonzero(maps.slots[:, kernels.ROW]) / len(maps.slots) < 1
    maps.check(8)


@pytest.mark.parametrize("after", [0, kernels.LEAVING, kernels.NEW | kernels.LEAVING], ids=["seen", "leaving", "gone"])
@pytest.mark.parametrize("before", [0, kernels.NEW, kernels.LEAVING])
def test_flags_of_keys_change(before: int, after: int) -> None:
    maps = Maps()
    some = list(maps.rows[before])[::2]
    tables, keys = (np.array(part) for part in zip(*some, strict=True))
    kernels.change_flags(maps.slots, TABLES, keys, tables, before, after)
    plain.change_flags(maps.rows, keys, tables, before, after)
    maps.check(9)


def test_a_key_takes_the_place_of_one_that_is_gone_and_others_are_still_found() -> None:
    maps, gone = Maps(), kernels.NEW | kernels.LEAVING
    before = np.count_nonzero(maps.slots[:, kernels.ROW])
    for seed in range(30):
        table, key = list(maps.rows[0])[seed * 5]
        row = maps.rows[0][table, key]
        kernels.change_flags(maps.slots, TABLES, np.array([key]), np.array([table]), 0, gone)
        plain.change_flags(maps.rows, np.array([key]), np.array([table]), 0, gone)
        new = np.random.default_rng(seed).integers(-(2**63), 2**63, 1)
        kernels.add_keys(maps.slots, TABLES, new, np.array([table]), np.array([row]), 0)
        plain.add_keys(maps.rows, new, np.array([table]), np.array([row]), 0)
    assert np.count_nonzero(maps.slots[:, kernels.ROW]) < before + 30, "some free slots were used again"
    maps.check(10)


@pytest.mark.parametrize("hidden", FLAGS[1:])
def test_keys_are_listed_by_row(maps: Maps, hidden: int) -> None:
    for first, end in ((0, FIRST[-1]), (FIRST[1], FIRST[2]), (10, 500)):
        ours, theirs = ((np.zeros(end - first, np.int64), np.zeros(end - first, np.bool_)) for _ in range(2))
        kernels.list_keys(maps.slots, hidden, first, *ours)
        plain.list_keys(maps.rows, hidden, first, *theirs)
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("slots", [2048, 8192])
@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0.25), (0.4, 0.6), (0.999, 1), (0, 0.0001)])
def test_keys_of_a_part_of_all_hashes_are_the_same_however_many_slots_there_are(slots: int, low: float, high: float) -> None:
    maps, wanted = Maps(slots), np.array([True, False, True])
    bounds = int(low * 2**32) << 32, (int(high * 2**32) << 32) - 1
    found = kernels.list_part(maps.slots, TABLES, *(np.uint64(bound) for bound in bounds), wanted)
    listed = list(zip(*(part.tolist() for part in found), strict=True))
    assert set(listed) == plain.list_part(maps.rows, TABLES, *bounds, wanted)
    assert len(set(listed)) == len(listed)


def test_marks_are_set_as_by_the_twin(maps: Maps) -> None:
    batch = maps.batch(50, seed=3)
    table_B = np.resize(TABLE_F, len(batch.offsets) - 1)
    id_N = np.random.default_rng(4).integers(0, np.repeat(np.array(ROWS)[table_B], np.diff(batch.offsets)))
    ours, theirs = (np.zeros(FIRST[-1], np.uint32) for _ in range(2))
    kernels.mark_rows(FIRST, TABLE_F, batch.offsets, id_N, 2**32 - 1, ours)
    plain.mark_rows(FIRST, TABLE_F, batch.offsets, id_N, 2**32 - 1, theirs)
    assert 0 < np.count_nonzero(ours) < len(ours)
    np.testing.assert_array_equal(ours, theirs)
