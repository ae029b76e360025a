"""What a window's end refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaptive_rec.batch import FeatureSpec, TableSpec
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.errors import TrainingError
from adaptive_rec.kernels import row_update
from adaptive_rec.live.telemetry import StageTimes
from adaptive_rec.offline.simulate.store import PlacementStore
from adaptive_rec.placement import RowSpace
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
    store = PlacementStore(SPACE, RowRule(row_update.SGD, 0, 0, 0), torch.float32, 100, False)
    reclassifier = Reclassifier(Listing(rows), store, Observer(store, 1, StageTimes()))
    with pytest.raises(TrainingError, match=rf"place of policy listing lists must lie in \[0, 10\), got {got}"):
        reclassifier.begin(0, knobs)
