"""A snapshot holds every row as it was at its start, even if rows change or move while it is read."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.batch import FeatureSpec, TableSpec
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.snapshot import _WAITING, RowSnapshot
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.kernels import row_update
from adaptive_rec.kernels.keeping import PENDING
from adaptive_rec.placement import Migration, RowSpace
from tests.stores import cpu_store

TABLES = (TableSpec("a", 700, 4), TableSpec("b", 30, 8), TableSpec("c", 401, 4))
SPACE = RowSpace.of(TABLES, tuple(FeatureSpec(table.name, index) for index, table in enumerate(TABLES)))
RULE = RowRule(row_update.ROWWISE_ADAGRAD, 1e-8, 0.9, 0.999)


def new_store() -> EmbeddingStore:
    return cpu_store(SPACE, RULE, 1, torch.float32, 6000, False)


def rows_of(store: EmbeddingStore) -> list[Any]:
    """All rows and their optimizer state, by their numbers in the joint row space."""
    found: list[Any] = [None] * SPACE.rows
    for index, table in enumerate(TABLES):
        weights, state = store.contents.export(index)
        first = int(SPACE.table_first_row[index])
        found[first : first + table.rows] = [w.tobytes() + s.tobytes() for w, s in zip(weights, state, strict=True)]
    return found


def write(store: EmbeddingStore, rows: np.ndarray, value: float) -> None:
    """Change rows where they are, as an update does."""
    for pool, spec in enumerate(SPACE.pools):
        mine = rows[(rows >= spec.first_row) & (rows < spec.end_row)]
        store.cold.keep(pool, mine - spec.first_row)
        slots = store.index.slot_of_row[mine]
        hot, cold = mine[slots >= 0], mine[slots < 0]
        store.hot.tier.weights[pool].numpy()[store.index.slot_of_row[hot]] = value
        store.cold.types.weights[pool][cold - spec.first_row] = value
        store.cold.types.state[pool][cold - spec.first_row] += 1
    store.index.changed_R[rows] = True


def migrate(store: EmbeddingStore, dice: random.Random) -> None:
    hot = np.flatnonzero(store.index.slot_of_row >= 0)
    demote = np.sort(np.array(dice.sample(hot.tolist(), len(hot) // 2), np.int64))
    promote = []
    for pool, spec in enumerate(SPACE.pools):
        free = int((store.hot.tier.row_of_slot[pool] < 0).sum())
        cold = spec.first_row + np.flatnonzero(store.index.slot_of_row[spec.first_row : spec.end_row] < 0)
        promote += dice.sample(cold.tolist(), min(free, len(cold)))
    moving = Migration(np.sort(np.array(promote, np.int64)), demote)
    store.migrate(moving)
    if (snapshot := store.cold.snapshot) is not None and not snapshot._ended:
        for pool, spec in enumerate(SPACE.pools):
            for rows in (moving.promote, moving.demote):
                mine = rows[(rows >= spec.first_row) & (rows < spec.end_row)] - spec.first_row
                assert not (snapshot._mark[pool][mine] == PENDING).any(), "the reader would not find them"


def taken(snapshot: RowSnapshot, pause: float = 0.0) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for shard in snapshot.shards():
        row_N, weights_ND, state_NK = shard.arrays
        assert (np.diff(row_N) > 0).all()
        time.sleep(pause)
        for row, weights, state in zip(row_N.tolist(), weights_ND, state_NK, strict=True):
            assert row not in found, "each row is saved once"
            found[row] = weights.tobytes() + state.tobytes()
    return found


@pytest.mark.parametrize("seed", range(6))
def test_saved_rows_are_as_they_were_while_training_continues(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of a few rows and slices of two, so that all that can meet does meet; full shards make the writer of rows wait."""
    monkeypatch.setattr("adaptive_rec.embedding.snapshot.SHARD_BYTES", 500)
    monkeypatch.setattr("adaptive_rec.embedding.snapshot._SLICE_BYTES", 50)
    dice, store = random.Random(seed), new_store()
    migrate(store, dice)
    for everything in (True, False, False):
        changed = store.index.changed_R.copy()
        before = rows_of(store)
        snapshot = store.begin_snapshot(everything)
        found: dict[int, bytes] = {}
        reader = threading.Thread(target=lambda s=snapshot, f=found: f.update(taken(s, 0.0005)))
        reader.start()
        written, moved = 0, 0
        while reader.is_alive() or written < 3:
            write(store, np.array(sorted(dice.sample(range(SPACE.rows), 40)), np.int64), float(written))
            written += 1
            if dice.random() < 0.3:
                migrate(store, dice)
                moved += 1
        reader.join()
        snapshot.forget()
        store.end_snapshot(saved=True)
        assert written > 2
        wanted = range(SPACE.rows) if everything else np.flatnonzero(changed).tolist()
        assert sorted(found) == list(wanted)
        assert all(found[row] == before[row] for row in wanted)
        assert snapshot.rows == len(found)
        assert store.index.changed_R.any()


def test_what_was_not_saved_is_taken_into_the_next_one() -> None:
    store = new_store()
    write(store, np.array([3, 500, 1000]), 1.0)
    store.begin_snapshot(everything=False)
    write(store, np.array([4, 500]), 2.0)
    store.end_snapshot(saved=False)
    snapshot = store.begin_snapshot(everything=False)
    next(snapshot.shards())  # and given up after a part of it
    write(store, np.array([5]), 2.0)
    store.end_snapshot(saved=False)
    snapshot = store.begin_snapshot(everything=False)
    assert sorted(taken(snapshot)) == [3, 4, 5, 500, 1000]
    snapshot.forget()
    store.end_snapshot(saved=True)
    assert taken(store.begin_snapshot(everything=False)) == {}
    store.end_snapshot(saved=True)


def wait_until_full(snapshot: RowSnapshot) -> None:
    """Wait until as many shards are full as a snapshot takes, so that who changes rows waits for its reader."""
    while len(snapshot._full) <= _WAITING:
        time.sleep(0.001)


def test_who_changes_rows_is_let_go_where_a_snapshot_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full, so the snapshot is read no further; callers of `keep` must not wait for it."""
    monkeypatch.setattr("adaptive_rec.embedding.snapshot.SHARD_BYTES", 100)
    store = new_store()
    snapshot = store.begin_snapshot(everything=True)
    writer = threading.Thread(target=lambda: write(store, np.arange(SPACE.rows), 1.0), daemon=True)
    writer.start()
    wait_until_full(snapshot)
    snapshot.end()
    writer.join(300)
    assert not writer.is_alive()
    assert len(snapshot._full) == _WAITING + 1, "it did wait, and kept no more rows afterwards"
    store.end_snapshot(saved=False)


def test_memory_is_bounded_by_a_few_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that change faster than they are written make the training thread wait."""
    monkeypatch.setattr("adaptive_rec.embedding.snapshot.SHARD_BYTES", 20 * 20)
    store = new_store()
    snapshot = store.begin_snapshot(everything=True)
    writer = threading.Thread(target=lambda: write(store, np.arange(SPACE.rows), 1.0))
    writer.start()
    wait_until_full(snapshot)
    time.sleep(0.02)
    assert writer.is_alive()
    assert len(snapshot._full) <= 3
    found = taken(snapshot)
    writer.join()
    store.end_snapshot(saved=True)
    assert sorted(found) == list(range(SPACE.rows))


def test_a_row_is_copied_by_one_thread_or_the_other() -> None:
    """Wide rows of one table, changed as fast as can be while they are read: no row is torn, none is read twice."""
    space = RowSpace.of((TableSpec("wide", 60_000, 64),), (FeatureSpec("wide", 0),))
    store = cpu_store(space, RowRule(row_update.SGD, 0, 0, 0), 1, torch.float32, 0, False)
    random_ = np.random.default_rng(1)
    rows = store.cold.types.weights[0]
    for round_ in range(4):
        rows[:] = np.arange(space.rows)[:, None] % 1000 + round_
        before = rows.copy()
        snapshot = store.begin_snapshot(everything=True)
        found: dict[int, bytes] = {}
        reader = threading.Thread(target=lambda s=snapshot, f=found: f.update(taken(s)))
        reader.start()
        while not snapshot._ended:
            some = np.unique(random_.integers(0, space.rows, 3000))
            store.cold.keep(0, some)
            rows[some] = -1.0
        reader.join()
        snapshot.forget()
        store.end_snapshot(saved=True)
        assert all(found[row] == before[row].tobytes() for row in range(space.rows))
