"""A device run whose rows are on the device, in host memory and on a disk equals the one with all cold rows in host memory, bit
by bit. Segments are small here, so that nearly all rows on the disk are read from files."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.data.raw.raw_ids import raw_ids_of
from adaptive_rec.embedding.cold.cascade import Cascade
from adaptive_rec.embedding.cold.copier import RowCopier
from adaptive_rec.embedding.cold.memory_slots import MemorySlots
from adaptive_rec.embedding.staged.device_hot import DeviceHotRows
from adaptive_rec.placement import Migration
from tests.matrix import always, grid, only
from tests.parity.test_disk import assert_same_bits

CHANGES = {
    8: [{"hot_budget_bytes": 20_000}], 20: [{"prefetch_depth": 0}], 21: [{"prefetch_depth": 5}], 32: [{"policy": "hybrid"}],
    44: [{"policy": "hotline", "hot_budget_bytes": 200_000}], 58: [{"reclassify_every": 7, "prefetch_depth": 1}],
}  # fmt: skip
"""Knobs that change on the way, by step."""


def three_homes(folder: Path) -> list[str]:
    return ["run.host_memory=200KiB", f"run.disk={folder}"]


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many rows moved between two homes, by both."""
    counts = dict.fromkeys(("disk to memory", "memory to disk", "memory to device", "device to disk"), 0)
    place, send_up, home = Cascade.place_in_memory, DeviceHotRows.up, DeviceHotRows.leave

    def placed(store: Cascade, migration: Migration) -> None:
        counts["disk to memory"] += len(migration.promote)
        counts["memory to disk"] += len(migration.demote)
        place(store, migration)

    def sent_up(hot: DeviceHotRows, pool: int, host_rows: Any, slots: Any, cold: Any) -> None:
        if cold.memory is not None:
            of_rows = cold.memory.slot_of_row[hot._index.joint_rows(pool, host_rows)]
            counts["memory to device"] += int(np.count_nonzero(of_rows >= 0))
        send_up(hot, pool, host_rows, slots, cold)

    def brought_home(hot: DeviceHotRows, pool: int, host_rows: Any, slots: Any, cold: Any) -> None:
        counts["device to disk"] += len(slots)
        home(hot, pool, host_rows, slots, cold)

    monkeypatch.setattr(Cascade, "place_in_memory", placed)
    monkeypatch.setattr(DeviceHotRows, "up", sent_up)
    monkeypatch.setattr(DeviceHotRows, "leave", brought_home)
    return counts


@pytest.mark.parametrize(
    ("policy", "optimizer", "bags", "depth", "churn", "precision", "steps"),
    [
        ("hotline", "rowwise_adagrad", "one-hot", 4, True, "float32", 40),
        pytest.param("hotline", "adagrad", "sum", 0, False, "float64", 60, marks=pytest.mark.slow),
        pytest.param("slipstream", "lazy_adam", "mean", 1, False, "float32", 60, marks=pytest.mark.slow),
        ("hotline", "rowwise_adagrad", "mean", 3, True, "rows of bf16", 40),
        pytest.param("hotline", "sgd", "mean", 4, True, "float64", 500, marks=pytest.mark.slow),
        pytest.param("hotline", "lazy_adam", "sum", 1, True, "float32", 500, marks=pytest.mark.slow),
        pytest.param("adaptive", "rowwise_adagrad", "one-hot", 4, False, "float32", 500, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_rows_in_three_homes_are_those_in_two(
    train: Any, small_segments: None, moved: dict[str, int], tmp_path: Path, policy: str, optimizer: str, bags: str, depth: int,
    churn: bool, precision: str, steps: int,
) -> None:  # fmt: skip
    rows = ["run.row_precision=bf16"] if precision == "rows of bf16" else []
    arguments = {
        "device": "late", "budget_bytes": 60_000, "depth": depth, "churn": churn, "steps": steps,
        "precision": "float32" if rows else precision,
    }  # fmt: skip

    outcome = train(policy, optimizer, bags, **arguments, settings=[*three_homes(tmp_path), *rows])

    assert min(moved.values()) > 0, moved
    assert_same_bits(outcome, train(policy, optimizer, bags, **arguments, settings=rows))
    store = outcome.runtime.store
    assert isinstance(store.cold, Cascade)
    assert sum(log.counts.rows_read for log in store.cold.types.logs) > 1000
    assert store.cold.memory.rows == sum(store.cold.memory.capacities), "it is full"


@grid(always, only("cdlrm"), policy=["hybrid", "fae", "cdlrm"])
def test_policies_that_track_no_popularity_keep_cold_rows_on_the_disk(
    train: Any, small_segments: None, tmp_path: Path, policy: str
) -> None:
    arguments = {"device": "late", "budget_bytes": 60_000, "depth": 2, "precision": "float32", "steps": 40}

    outcome = train(policy, "adagrad", "one-hot", **arguments, settings=three_homes(tmp_path))

    assert_same_bits(outcome, train(policy, "adagrad", "one-hot", **arguments))
    assert outcome.runtime.store.cold.memory.rows == 0


@pytest.mark.slow
def test_rows_in_three_homes_are_those_in_two_while_knobs_change(
    train: Any, small_segments: None, tmp_path: Path
) -> None:
    arguments = {"device": "late", "budget_bytes": 100_000, "depth": 2, "at": CHANGES, "steps": 80}

    outcome = train("hotline", "adagrad", "sum", **arguments, settings=three_homes(tmp_path))

    assert_same_bits(outcome, train("hotline", "adagrad", "sum", **arguments))
    assert outcome.runtime.knobs.reclassify_every == 7


@pytest.mark.parametrize("locked", [True, False])
def test_rows_that_are_read_while_others_get_their_slots(
    train: Any, small_segments: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: bool
) -> None:
    """Without hot rows no placement changes, so nothing is staged again. The lock alone keeps slots while they are read."""
    arguments = {"device": "late", "budget_bytes": 0, "depth": 4, "churn": False, "precision": "float32", "steps": 30}
    plain = train("hotline", "adagrad", "one-hot", **arguments)
    gather, fill, filled = RowCopier.gather, MemorySlots.fill, 0

    def late(*given: Any) -> None:
        """Copies rows when other batches have written to slots, if that is possible."""
        before, end = filled, time.monotonic() + 0.05
        while filled < before + 3 and time.monotonic() < end:
            time.sleep(0.001)
        gather(*given)

    def noted(*given: Any, **named: Any) -> None:
        nonlocal filled
        fill(*given, **named)
        filled += 1

    monkeypatch.setattr(RowCopier, "gather", late)
    monkeypatch.setattr(MemorySlots, "fill", noted)
    if not locked:
        lock = MemorySlots.__init__

        def unlocked(memory: MemorySlots, *given: Any) -> None:
            lock(memory, *given)
            monkeypatch.setattr(memory, "moving", nullcontext())

        monkeypatch.setattr(MemorySlots, "__init__", unlocked)
    settings = [*three_homes(tmp_path), "knobs.hysteresis=0", "knobs.decay=0.1", "knobs.reclassify_every=1"]

    outcome = train("hotline", "adagrad", "one-hot", **arguments, settings=settings)

    if locked:
        assert_same_bits(outcome, plain)
    else:
        with pytest.raises(AssertionError):
            assert_same_bits(outcome, plain)


@pytest.mark.slow
def test_rows_of_raw_ids_come_and_go_in_three_homes_as_in_two(train: Any, small_segments: None, tmp_path: Path) -> None:
    settings = [
        "data.ids=raw", "data.shared_rows=2", "data.max_table_rows=150", "knobs.evict_ratio=0.3", "knobs.reclassify_every=20",
    ]  # fmt: skip
    arguments = {"device": "late", "budget_bytes": 20_000, "depth": 4, "precision": "float32", "steps": 200}

    outcome = train("hotline", "adagrad", "one-hot", **arguments, settings=[*settings, *three_homes(tmp_path)])

    other = train("hotline", "adagrad", "one-hot", **arguments, settings=settings)
    assert_same_bits(outcome, other)
    evicted = [raw_ids_of(each.runtime.source).counts()["evicted"] for each in (outcome, other)]  # type: ignore[union-attr]
    assert evicted[0] == evicted[1] > 0
