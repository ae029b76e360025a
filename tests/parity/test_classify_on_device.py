"""Batches that the device classifies, and rows that it reads by itself, give the bits of those that the host prepares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adaptive_rec.embedding.cold import copier
from adaptive_rec.embedding.staged import travelling
from tests.matrix import always, grid, only

SKIPS = [
    "knobs.stale_threshold=1e9", "knobs.alpha=0.1", "knobs.min_probe_touches=1", "knobs.min_touch_ratio=0.0",
    "knobs.probe_ratio=0.5",
]  # fmt: skip


def same_bits(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.losses, other.losses)
    for mine, theirs in zip(one.tables + one.dense, other.tables + other.dense, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    mine, theirs = (outcome.runtime.reports.totals() for outcome in (one, other))
    counts = "samples_trained", "samples_popular", "lookups", "lookups_hot", "row_updates", "hot_row_updates", "migrated_rows"
    for name in counts:
        assert mine[name] == theirs[name], name


CASES: list[dict[str, Any]] = [
    {"policy": "hotline", "optimizer": "rowwise_adagrad", "bags": "one-hot", "depth": 4, "churn": True},
    {"policy": "hotline", "optimizer": "lazy_adam", "bags": "mean", "depth": 2},
    {"policy": "hotline", "optimizer": "sgd", "bags": "sum", "depth": 0, "churn": True, "split": "never"},
    {"policy": "xdl", "optimizer": "adagrad", "bags": "sum", "depth": 3},
    {"policy": "cdlrm", "optimizer": "adagrad", "bags": "one-hot", "depth": 3},
    *({"policy": "slipstream", "optimizer": "sgd", "bags": "sum", "depth": 3, "budget_bytes": 2_000_000,
      "settings": [f"knobs.action={action}", *SKIPS]}
      for action in ("freeze", "drop", "subsample")),
    {"policy": "random_skip", "optimizer": "sgd", "bags": "one-hot", "depth": 2, "settings": ["knobs.action=freeze"]},
]  # fmt: skip


def on_devices(cases: list[dict[str, Any]], kept: list[int]) -> pytest.MarkDecorator:
    """Each case on the late device, some of them in `make check` only, and all on a real one."""
    found = []
    for number, case in enumerate(cases):
        name = "-".join(map(str, case.values()))
        found.append(pytest.param(case, "late", id=f"{name}-late", marks=[] if number in kept else [pytest.mark.slow]))
        found.append(pytest.param(case, "cuda", id=f"{name}-cuda", marks=pytest.mark.gpu))
    return pytest.mark.parametrize(("case", "device"), found)


@on_devices(CASES, [0, 6])
def test_where_batches_are_classified_changes_no_bit(train: Any, case: dict[str, Any], device: str) -> None:
    """Skipping policies ask for lists, which come down. A placement of other rows changes the counts that are compared."""
    settings = {"steps": 24, "device": device, "budget_bytes": 200_000, **case}
    on_device, on_host = train(**settings, classify="device"), train(**settings)
    assert on_device.runtime.store.path.classifies
    assert not on_host.runtime.store.path.classifies
    same_bits(on_device, on_host)
    if case.get("settings"):
        assert on_device.runtime.reports.totals()["row_updates"] > 0
        skipped = {"samples_seen": 0, "row_updates_skipped": 0} | on_device.runtime.reports.totals()
        assert skipped["row_updates_skipped"] > 0 or skipped["samples_trained"] < skipped["samples_seen"]


@pytest.mark.slow
def test_a_change_of_policy_to_one_that_skips_is_carried_out(train: Any) -> None:
    settings = {"steps": 40, "device": "late", "budget_bytes": 200_000, "depth": 3}
    changes = {12: [{"policy": "slipstream", "action": "freeze"}]}
    same_bits(*(train("hotline", **settings, at=changes, classify=where) for where in ("device", "host")))


HOME: list[dict[str, Any]] = [
    {"policy": "hotline", "optimizer": "rowwise_adagrad", "bags": "sum", "depth": 4, "churn": True},
    {"policy": "hotline", "optimizer": "lazy_adam", "bags": "mean", "depth": 2, "classify": "device", "split": "never"},
    {"policy": "hybrid", "optimizer": "sgd", "bags": "one-hot", "depth": 3, "precision": "float32",
     "settings": ["run.row_precision=bf16"]},
]  # fmt: skip


@on_devices(HOME, [1])
def test_rows_that_the_device_reads_in_host_memory_are_those_that_are_staged(
    train: Any, case: dict[str, Any], device: str
) -> None:
    settings = {"steps": 24, "device": device, "budget_bytes": 200_000, **case}
    same = settings.pop("settings", [])
    staged, direct, in_place = (
        train(**settings, settings=[*same, f"run.cold_rows={way}"]) for way in ("staged", "direct", "in_place")
    )
    assert [outcome.runtime.store.path.direct is not None for outcome in (staged, direct, in_place)] == [False, True, False]
    assert [outcome.runtime.store.path.in_place for outcome in (staged, direct, in_place)] == [False, False, True]
    same_bits(direct, staged)
    same_bits(in_place, staged)
    assert in_place.runtime.evaluate().quality.auc == staged.runtime.evaluate().quality.auc, "also after the run's end"


@grid(always, only("device"), classify=["host", "device"])
def test_threads_that_share_the_staging_change_no_bit(train: Any, classify: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows there are, and also for an evaluation after the run has ended its threads."""
    for name in ("LEAST_FOUND", "LEAST_INDEXED"):
        monkeypatch.setattr(travelling, name, 1)
    monkeypatch.setattr(copier, "_CHUNK_BYTES", 64)
    case = {"optimizer": "rowwise_adagrad", "bags": "sum", "depth": 4, "churn": True, "budget_bytes": 200_000, "steps": 16}
    outcomes = [
        train("hotline", device="late", classify=classify, settings=[f"run.copy_threads={threads}"], **case)
        for threads in (4, 1)
    ]
    same_bits(*outcomes)
    several, one = (outcome.runtime.evaluate() for outcome in outcomes)
    assert several.quality.auc == one.quality.auc
