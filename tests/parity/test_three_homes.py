"""A device run whose rows are on the device, in host memory and on a disk equals the one with all cold rows in host memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.embedding.disk.staged_disk_store import StagedDiskStore
from tests.parity.test_disk import assert_same_bits, on_disk, small_segments

__all__ = ["small_segments"]


@pytest.mark.parametrize(
    ("policy", "optimizer", "bags", "depth", "churn", "precision", "steps"),
    [
        ("hotline", "rowwise_adagrad", "one-hot", 4, True, "float32", 200),
        ("hotline", "adagrad", "sum", 0, False, "float64", 60),
        ("hybrid", "lazy_adam", "mean", 1, False, "float32", 60),
    ],
)  # fmt: skip
def test_rows_in_three_homes_are_those_in_two(
    train: Any, small_segments: None, tmp_path: Path, policy: str, optimizer: str, bags: str, depth: int, churn: bool,
    precision: str, steps: int,
) -> None:  # fmt: skip
    arguments = {
        "device": "late", "budget_bytes": 100_000, "depth": depth, "churn": churn, "precision": precision, "steps": steps,
    }  # fmt: skip

    outcome = train(policy, optimizer, bags, **arguments, settings=[*on_disk(tmp_path), "run.host_memory=300KiB"])

    assert_same_bits(outcome, train(policy, optimizer, bags, **arguments))
    store = outcome.runtime.store
    assert isinstance(store, StagedDiskStore)
    print(store.memory.rows, store.memory.capacities, store.own_disk_figures(), store.device.hot_rows)
