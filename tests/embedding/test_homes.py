"""Every home of cold rows keeps one contract (`embedding/cold/home.py`): plain arrays are what it must equal.

It knows of no policy and of no step. A home that is slow, and one that fails now and then, are homes too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.batch import FeatureSpec, TableSpec
from adaptive_rec.embedding.cold.cascade import Cascade
from adaptive_rec.embedding.cold.copier import PlainCopier
from adaptive_rec.embedding.cold.home import ColdHome
from adaptive_rec.embedding.cold.lazy_hot import LazyHotRows
from adaptive_rec.embedding.cold.log import OnLog
from adaptive_rec.embedding.cold.memory import InMemory
from adaptive_rec.embedding.disk import row_log
from adaptive_rec.embedding.disk.disk_tier import DiskTier
from adaptive_rec.embedding.first_values import FreshRows
from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.optimizer import RULES, RowRule
from adaptive_rec.embedding.shard_arrays import ADDRESS, OPTIMIZER_STATE, ROW, WEIGHT
from adaptive_rec.errors import DiskError
from adaptive_rec.placement import Migration, RowSpace

TABLES = (TableSpec("A", 300, 4), TableSpec("B", 90, 6), TableSpec("C", 41, 4))
SPACE = RowSpace.of(TABLES, tuple(FeatureSpec(table.name, number) for number, table in enumerate(TABLES)))
RULE = RowRule(RULES["adagrad"], 1e-8, 0.9, 0.999)
NONE = np.empty(0, dtype=np.int64)
OPERATIONS = 120

Pair = tuple[np.ndarray, np.ndarray]


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all rows are read from files."""
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)


class Kept:
    """A home beside plain arrays of what it must have."""

    def __init__(self, kind: str, folder: Path, seed: int = 3) -> None:
        self.index, rules = RowIndex(SPACE), [RULE] * len(SPACE.pools)
        first, self.random = FreshRows(seed, TABLES), np.random.default_rng(seed)
        self.hot: HotRows
        self.home: ColdHome
        common = self.index, rules, np.float64, first
        if kind == "memory":
            self.home = InMemory(*common)
            self.hot = HotRows(self.index, rules, torch.float64, torch.device("cpu"), False)
        else:
            folder.mkdir(exist_ok=True)
            cascade = kind == "cascade"
            self.home = Cascade(*common, folder, 4096, PlainCopier()) if cascade else OnLog(*common, folder)
            self.hot = LazyHotRows(self.index, rules, torch.float64, torch.device("cpu"), False)
        self.plain = [self._read(pool, np.arange(spec.rows)) for pool, spec in enumerate(SPACE.pools)]

    def _room(self, pool: int, rows: int) -> Pair:
        weights, state = (np.full((rows, like.shape[1]), np.nan) for like in self.home.arrays(pool))
        return weights, state

    def _read(self, pool: int, rows_C: np.ndarray) -> Pair:
        packed = self._room(pool, len(rows_C))
        self.home.read(pool, rows_C, packed)
        return packed

    def _some(self) -> tuple[int, np.ndarray, Pair]:
        pool = int(self.random.integers(len(SPACE.pools)))
        rows = self.random.permutation(SPACE.pools[pool].rows)[: self.random.integers(1, 40)]
        weights, state = (self.random.random(part.shape) for part in self._room(pool, len(rows)))
        return pool, rows, (weights, state)

    def _set(self, pool: int, rows_C: np.ndarray, given: Any) -> None:
        for kept, values in zip(self.plain[pool], given, strict=True):
            if values is not None:
                kept[rows_C] = values
        self.index.changed_R[self.index.joint_rows(pool, rows_C)] = True

    # Operations ------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        pool, rows, packed = self._some()
        changed = None if self.random.random() < 0.3 else self.random.random(len(rows)) < 0.7
        parts: list[tuple[int, int]] = []
        chosen = np.ones(len(rows), np.bool_) if changed is None else changed
        before = self._read(pool, rows)
        for now, values in zip(before, packed, strict=True):
            now[chosen] = values[chosen]  # what has not changed is as it was read
        self.home.write(pool, rows, before, changed, lambda first, end: parts.append((first, end)))
        assert sorted(parts)[0][0] == 0
        assert sum(end - first for first, end in parts) == len(rows)
        self._set(pool, rows[chosen], [part[chosen] for part in before])

    def overwrite(self) -> None:
        pool, rows, (weights, state) = self._some()
        given = [(weights, state), (weights, None), (None, state)][self.random.integers(3)]
        self.home.overwrite(pool, rows, given)
        self._set(pool, rows, given)

    def draw(self) -> None:
        pool, rows, packed = self._some()
        if not self.home.is_near(pool, rows):
            self.home.draw(pool, rows, packed)
            self._set(pool, rows, packed)

    def place(self) -> None:
        if (memory := self.home.memory) is None:
            return
        inside = np.flatnonzero(memory.slot_of_row >= 0)
        leaving = inside[self.random.random(len(inside)) < 0.5]
        coming = []
        for pool, spec in enumerate(SPACE.pools):
            room = memory.capacities[pool] - len(memory.rows_of(pool)) + len(spec.select(leaving))
            outside = spec.select(np.flatnonzero(memory.slot_of_row < 0))
            coming.append(np.sort(self.random.permutation(outside)[: self.random.integers(0, room + 1)]))
        self.home.place_in_memory(Migration(np.concatenate(coming), leaving))

    def check(self) -> None:
        pool = int(self.random.integers(len(SPACE.pools)))
        rows = self.random.permutation(SPACE.pools[pool].rows)[:50]
        for mine, plain in zip(self._read(pool, rows), self.plain[pool], strict=True):
            np.testing.assert_array_equal(mine, plain[rows])

    def operate(self, operations: int) -> None:
        names = ("write", "overwrite", "draw", "place", "check")
        for name in self.random.choice(names, operations, p=(0.4, 0.1, 0.1, 0.2, 0.2)).tolist():
            getattr(self, name)()

    # Snapshots -------------------------------------------------------------------------------------------------------

    def saved_rows(self, snapshot: Any) -> dict[int, tuple[bytes, bytes]]:
        """The rows that a snapshot saves, by their joint numbers; those with an address are read there."""
        found = {}
        for shard in self.home.shards(snapshot):
            for number, row in enumerate(shard[ROW].tolist()):
                pool = next(pool for pool, spec in enumerate(SPACE.pools) if row < spec.end_row)
                if ADDRESS in shard:
                    values = self._at(pool, row, shard[ADDRESS][number : number + 1])
                else:
                    values = shard[WEIGHT][number], shard[OPTIMIZER_STATE][number]
                found[row] = values[0].tobytes(), values[1].tobytes()
        return found

    def _at(self, pool: int, row: int, address: np.ndarray) -> Pair:
        types: Any = self.home.types
        packed = self._room(pool, 1)
        if address[0]:
            types.logs[pool].read_at(address, np.array([row - SPACE.pools[pool].first_row]), *packed)
        else:  # it has its first value
            types.read(pool, np.array([row - SPACE.pools[pool].first_row]), np.array([0]), *packed)
        return packed[0][0], packed[1][0]

    def plain_rows(self, rows: np.ndarray) -> dict[int, tuple[bytes, bytes]]:
        found = {}
        for pool, spec in enumerate(SPACE.pools):
            weights, state = self.plain[pool]
            for row in spec.select(rows).tolist():
                found[row] = weights[row - spec.first_row].tobytes(), state[row - spec.first_row].tobytes()
        return found


@pytest.fixture(params=["memory", "log", "cascade"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    made = Kept(request.param, tmp_path / "rows")
    yield made
    made.home.close()


def test_a_home_has_what_was_set_last(kept: Kept) -> None:
    kept.operate(OPERATIONS)
    kept.home.flush()
    for pool, spec in enumerate(SPACE.pools):
        for mine, plain in zip(kept._read(pool, np.arange(spec.rows)), kept.plain[pool], strict=True):
            np.testing.assert_array_equal(mine, plain)


def test_first_values_do_not_depend_on_the_home(tmp_path: Path) -> None:
    homes = [Kept(kind, tmp_path / kind) for kind in ("memory", "log", "cascade")]
    for one in homes[1:]:
        for mine, first in zip(one.plain, homes[0].plain, strict=True):
            np.testing.assert_array_equal(mine[0], first[0])
            np.testing.assert_array_equal(mine[1], first[1])
        one.home.close()


@pytest.mark.parametrize("everything", [False, True])
def test_a_snapshot_is_of_its_moment_whatever_is_set_meanwhile(kept: Kept, everything: bool) -> None:
    kept.operate(30)
    changed = np.flatnonzero(kept.index.changed_R)
    snapshot = kept.home.begin_snapshot(kept.hot, everything)
    expected = kept.plain_rows(np.arange(SPACE.rows))
    found: list[dict[int, tuple[bytes, bytes]]] = []
    saver = threading.Thread(target=lambda: found.append(kept.saved_rows(snapshot)))
    saver.start()
    while saver.is_alive():
        kept.operate(3)
    saver.join()
    assert set(changed.tolist()) <= set(found[0])
    for row, values in found[0].items():
        assert values == expected[row], f"row {row} is not as it was"
    kept.home.end_snapshot(saved=True)


def test_what_was_not_saved_is_part_of_the_next_snapshot(kept: Kept) -> None:
    kept.operate(30)
    changed = set(np.flatnonzero(kept.index.changed_R).tolist())
    snapshot = kept.home.begin_snapshot(kept.hot, False)
    kept.home.end_snapshot(saved=False)
    again = kept.home.begin_snapshot(kept.hot, False)
    assert snapshot is not again
    found = kept.saved_rows(again)
    assert changed <= set(found)
    assert found == kept.plain_rows(np.array(sorted(found)))
    kept.home.end_snapshot(saved=True)
    assert not kept.saved_rows(kept.home.begin_snapshot(kept.hot, False)), "all of it was saved"
    kept.home.end_snapshot(saved=True)


def slow(act: Callable[..., Any], random: np.random.Generator) -> Callable[..., Any]:
    def late(*given: Any, **more: Any) -> Any:
        time.sleep(random.random() * 0.002)
        return act(*given, **more)

    return late


@pytest.mark.parametrize("kind", ["memory", "log", "cascade"])
def test_a_slow_home_is_a_home(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker reads while the training thread writes: of each row it gets a value that the row had."""
    kept = Kept(kind, tmp_path / "rows", seed=8)
    for name in ("read", "write", "overwrite"):
        monkeypatch.setattr(kept.home, name, slow(getattr(kept.home, name), np.random.default_rng(1)))
    values: list[set[bytes]] = [{row.tobytes()} for row in kept.plain[0][0]]
    read: list[tuple[int, bytes]] = []
    ended = threading.Event()

    def reading() -> None:
        dice = np.random.default_rng(2)
        while not ended.is_set():
            rows = dice.permutation(SPACE.pools[0].rows)[:20]
            for row, value in zip(rows.tolist(), kept._read(0, rows)[0], strict=True):
                read.append((row, value.tobytes()))

    reader = threading.Thread(target=reading)
    reader.start()
    for _ in range(40):
        pool, rows, packed = kept._some()
        if pool == 0:
            for row, value in zip(rows.tolist(), packed[0], strict=True):
                values[row].add(value.tobytes())
        kept.home.write(pool, rows, packed, None)
        kept._set(pool, rows, packed)
    ended.set()
    reader.join()
    assert len(read) > 100
    assert all(value in values[row] for row, value in read)
    kept.check()
    kept.home.close()


@pytest.mark.parametrize("kind", ["log", "cascade"])
def test_a_home_that_fails_loses_and_invents_nothing(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is as it was before the failure, or as it was to be."""
    kept = Kept(kind, tmp_path / "rows", seed=5)
    append, dice, failures = DiskTier.append, np.random.default_rng(4), 0

    def failing(tier: DiskTier, *given: Any) -> None:
        if len(given[1]) and dice.random() < 0.3:
            raise DiskError("the disk is full")
        append(tier, *given)

    monkeypatch.setattr(DiskTier, "append", failing)
    for _ in range(80):
        pool, rows, packed = kept._some()
        try:
            kept.home.overwrite(pool, rows, packed)
        except DiskError:
            failures += 1
            now = kept._read(pool, rows)
            before = [plain[rows] for plain in kept.plain[pool]]
            for line in range(len(rows)):
                is_old = all((mine[line] == old[line]).all() for mine, old in zip(now, before, strict=True))
                is_new = all((mine[line] == new[line]).all() for mine, new in zip(now, packed, strict=True))
                assert is_old or is_new
            packed = now
        kept._set(pool, rows, packed)
        kept.check()
        try:
            kept.place()
        except DiskError:
            failures += 1
        kept.check()
    assert failures > 10
    monkeypatch.undo()
    kept.home.close()
