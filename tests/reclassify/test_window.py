"""What a window's end refuses, and how long it remembers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.batch import FeatureSpec, TableSpec
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.errors import TrainingError
from adaptive_rec.kernels import row_update
from adaptive_rec.live.telemetry import StageTimes
from adaptive_rec.offline.forecast.placement_store import placement_store
from adaptive_rec.placement import RowSpace
from adaptive_rec.policies.hotline import Hotline
from adaptive_rec.policy import AccessView, Policy, Wish
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.reclassify.window import Reclassifier

SPACE = RowSpace.of(
    (TableSpec("A", 10, 2), TableSpec("B", 5, 4)), (FeatureSpec("a", 0), FeatureSpec("b", 1))
)  # rows 0 to 9 and 10 to 14


class Listing(Policy):
    name = "listing"
    tracks_popularity = True

    def __init__(self, rows: list[int]) -> None:
        self.rows = np.array(rows)

    def place(self, view: AccessView) -> Wish:
        return Wish(self.rows, np.ones(len(self.rows)))


@pytest.mark.parametrize(
    ("rows", "got"), [([3, -1], "-1 to 3"), ([10, 12], "10 to 12"), ([2, 10**12], f"2 to {10**12}")]
)
def test_a_policy_may_list_rows_of_its_pool_only(rows: list[int], got: str) -> None:
    knobs = Knobs(hot_budget_bytes=100)
    store = placement_store(SPACE, RowRule(row_update.SGD, 0, 0, 0), torch.float32, 100, False)
    reclassifier = Reclassifier(Listing(rows), store, Observer(store, 1, StageTimes()))
    with pytest.raises(TrainingError, match=rf"place of policy listing lists must lie in \[0, 10\), got {got}"):
        reclassifier.begin(0, knobs)


@pytest.mark.parametrize(
    ("steps", "sample_ratio", "told", "decay"),
    [
        (1, 1.0, "auto", 0.9),  # 2 cold rows a window: 5 slots last 2.5 windows, counts 4 times as long
        (2, 0.5, "auto", 0.8),  # every other step is counted
        (9, 1.0, "auto", 0.6),
        (0, 1.0, "auto", 0.99),
        (1, 1.0, 0.25, 0.25),
    ],
)
def test_counts_last_for_as_long_as_hot_rows_do(steps: int, sample_ratio: float, told: Any, decay: float) -> None:
    space = RowSpace.of((TableSpec("A", 100, 2),), (FeatureSpec("a", 0),))
    store = placement_store(space, RowRule(row_update.SGD, 0, 0, 0), torch.float32, 5 * 8, False)
    assert store.hot.tier.capacities == [5]
    observer = Observer(store, 1, StageTimes())
    reclassifier = Reclassifier(Hotline(), store, observer)
    for step in range(0, steps, round(1 / sample_ratio)):
        observer.tracker.observe(np.arange(2) + 10 * step, np.arange(3), np.full(2, -1, np.int32))
    knobs = Knobs(decay=told, sample_ratio=sample_ratio, max_moved_bytes=0)
    assert reclassifier.window_decay(8, knobs) == pytest.approx(decay)
    reclassifier.end_window(8, knobs, {})
    assert observer.tracker.cold_met == 0
