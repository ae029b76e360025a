"""Batches that the device classifies give the bits of those that the host classifies, under every policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def same_bits(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.losses, other.losses)
    for mine, theirs in zip(one.tables + one.dense, other.tables + other.dense, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    mine, theirs = (outcome.runtime.reports.totals() for outcome in (one, other))
    counts = "samples_trained", "samples_popular", "lookups", "lookups_hot", "row_updates", "hot_row_updates", "migrated_rows"
    for name in counts:
        assert mine[name] == theirs[name], name


CASES = [
    {"policy": "hotline", "optimizer": "rowwise_adagrad", "bags": "one-hot", "budget_bytes": 200_000, "depth": 4, "churn": True},
    {"policy": "hotline", "optimizer": "lazy_adam", "bags": "mean", "budget_bytes": 200_000, "depth": 2, "churn": False},
    {"policy": "hotline", "optimizer": "sgd", "bags": "sum", "budget_bytes": 200_000, "depth": 0, "churn": True},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_where_batches_are_classified_changes_no_bit(train: Any, case: dict[str, Any]) -> None:
    settings = {**case, "steps": 60, "device": "late"}
    same_bits(train(**settings, classify="device"), train(**settings))
