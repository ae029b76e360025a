"""A run whose cold rows lie on a disk equals the run with all rows in memory, bit by bit.

Segments are small here, so that nearly all rows are read from files, and sparse segments are compacted on the way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.embedding.path.read_ahead import ReadAheadPath
from adaptive_rec.placement import Migration
from tests.parity.test_processes import CHANGES, slower


def on_disk(folder: Path) -> list[str]:
    return ["run.host_memory=8MiB", f"run.disk={folder}", "knobs.decay=0.6"]


def assert_same_bits(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.losses, other.losses)
    for mine, theirs in zip([*one.tables, *one.dense], [*other.tables, *other.dense], strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("policy", "optimizer", "bags", "depth", "churn", "precision", "steps"),
    [
        ("hotline", "rowwise_adagrad", "one-hot", 3, True, "float32", 60),
        pytest.param("hotline", "adagrad", "sum", 0, False, "float64", 100, marks=pytest.mark.slow),
        ("hybrid", "lazy_adam", "mean", 2, False, "float32", 40),
        pytest.param("hotline", "rowwise_adagrad", "one-hot", 3, True, "float32", 500, marks=pytest.mark.slow),
        pytest.param("hotline", "adagrad", "sum", 0, False, "float64", 500, marks=pytest.mark.slow),
        pytest.param("hybrid", "lazy_adam", "mean", 2, False, "float32", 500, marks=pytest.mark.slow),
        pytest.param("hotline", "sgd", "mean", 8, True, "float32", 500, marks=pytest.mark.slow),
        pytest.param("hotline", "lazy_adam", "sum", 1, True, "float64", 500, marks=pytest.mark.slow),
        pytest.param("slipstream", "adagrad", "one-hot", 4, False, "float32", 500, marks=pytest.mark.slow),
        pytest.param("fae", "rowwise_adagrad", "one-hot", 2, False, "float32", 500, marks=pytest.mark.slow),
        pytest.param("cdlrm", "rowwise_adagrad", "one-hot", 2, False, "float32", 500, marks=pytest.mark.slow),
        pytest.param("oracle", "sgd", "sum", 2, False, "float32", 500, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_rows_on_a_disk_are_those_in_memory(
    train: Any, small_segments: None, tmp_path: Path, policy: str, optimizer: str, bags: str, depth: int, churn: bool,
    precision: str, steps: int,
) -> None:  # fmt: skip
    arguments = {"budget_bytes": 200_000, "depth": depth, "churn": churn, "precision": precision, "steps": steps}

    outcome = train(policy, optimizer, bags, **arguments, settings=on_disk(tmp_path))

    assert_same_bits(outcome, train(policy, optimizer, bags, **arguments))
    store = outcome.runtime.store
    assert store.cold.on_disk
    assert sum(log.counts.rows_read for log in store.cold.types.logs) > 1000


@pytest.mark.parametrize(
    ("optimizer", "times"),
    [pytest.param(*one, marks=pytest.mark.slow) for one in (("adagrad", 1), ("adagrad", 2), ("lazy_adam", 2))],
)
def test_rows_on_a_disk_are_those_in_memory_while_knobs_change(
    train: Any, small_segments: None, tmp_path: Path, optimizer: str, times: int
) -> None:
    arguments = {"budget_bytes": 200_000, "depth": 2, "at": slower(CHANGES, times), "steps": 100 * times}

    outcome = train("hotline", optimizer, "sum", **arguments, settings=on_disk(tmp_path))

    assert_same_bits(outcome, train("hotline", optimizer, "sum", **arguments))
    assert outcome.runtime.knobs.reclassify_every == 7


@pytest.mark.slow
def test_the_space_on_the_disk_is_bounded(train: Any, small_segments: None, tmp_path: Path) -> None:
    outcome = train("hybrid", "adagrad", "one-hot", depth=2, settings=on_disk(tmp_path))

    (log,) = outcome.runtime.store.cold.types.logs
    outcome.runtime.store.settle()
    written = np.count_nonzero(log.address_R) * (log.layout.row_bytes + log.layout.state_bytes)
    assert log.counts.rows_moved > 0
    assert sum(path.stat().st_size for path in tmp_path.glob("pool-0/*.rows")) <= 2.5 * written + 4 * 8192


def test_rows_that_become_hot_are_read_with_their_first_batch(train: Any, small_segments: None, tmp_path: Path) -> None:
    store = train("hotline", "adagrad", "one-hot", depth=2, settings=on_disk(tmp_path), steps=60).runtime.store
    (log,) = store.cold.types.logs
    written = np.flatnonzero(log.address_R)[:50]
    tables = [store.contents.export(table) for table in range(len(store.space.tables))]
    read_before = log.counts.rows_read
    nothing = written[:0]

    store.hot.replace([40])
    store.migrate(Migration(promote=written[:30], demote=nothing))
    store.migrate(Migration(promote=written[30:], demote=written[:20]))

    assert log.counts.rows_read == read_before
    assert store.hot.tier.hot_rows == 30
    for table, (weights, state) in enumerate(tables):
        for one, other in zip(store.contents.export(table), (weights, state), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_row_that_has_not_changed_in_memory_is_not_written_when_it_leaves(train: Any, tmp_path: Path) -> None:
    store = train("hotline", "adagrad", "one-hot", depth=2, settings=on_disk(tmp_path), steps=20).runtime.store
    (log,) = store.cold.types.logs
    rows = np.flatnonzero(log.address_R)[:30]
    nothing, before = rows[:0], (log.counts.rows_written, log.address_R.copy())
    store.hot.replace([40])

    store.migrate(Migration(promote=rows, demote=nothing))
    hot = store.index.slot_of_row[rows].astype(np.int64)
    assert not store.hot.absent(0, hot).any(), "the log still has them in memory"
    store.migrate(Migration(promote=nothing, demote=rows[:10]))

    assert log.counts.rows_written == before[0]
    changed = store.begin_snapshot(False).changed
    assert set(rows.tolist()) <= set(changed.tolist()), "no checkpoint has their addresses"
    list(store.shards(store.cold.snapshot))
    np.testing.assert_array_equal(log.address_R, before[1])
    store.end_snapshot(True)


def test_a_value_read_ahead_is_not_used_where_it_has_changed_since(
    train: Any, small_segments: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault that the comparison must find: what was read ahead is taken as it is."""
    plain = train("hotline", "adagrad", "one-hot", depth=3, budget_bytes=200_000, steps=60)
    read = ReadAheadPath._read

    def read_once(self: Any, pool: int, row_U: Any, some: Any, part: Any) -> None:
        read(self, pool, row_U, some[~part.read_U[some]], part)

    monkeypatch.setattr(ReadAheadPath, "_read", read_once)
    faulty = train("hotline", "adagrad", "one-hot", depth=3, budget_bytes=200_000, steps=60, settings=on_disk(tmp_path))

    with pytest.raises(AssertionError):
        assert_same_bits(faulty, plain)
