"""Slots are given away as if the free ones were searched for each time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaptive_rec.batch import FeatureSpec, TableSpec
from adaptive_rec.embedding.device import DeviceTier
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.kernels import row_update
from adaptive_rec.placement import RowSpace

SPACE = RowSpace.of((TableSpec("A", 1000, 2),), (FeatureSpec("a", 0),))
CAPACITY = 60


def tier() -> DeviceTier:
    return DeviceTier(SPACE, RowRule(row_update.SGD, 0, 0, 0), torch.float32, torch.device("cpu"), [CAPACITY], True)


@pytest.mark.parametrize("seed", range(20))
def test_the_lowest_slots_are_filled_first(seed: int) -> None:
    random, device, plain = np.random.default_rng(seed), tier(), np.full(CAPACITY, -1)
    rows = iter(range(10**6))
    for number in range(100):
        leaving = random.permutation(np.flatnonzero(plain >= 0))[: random.integers(0, 15)]
        device.clear(0, leaving)
        plain[leaving] = -1
        coming = [next(rows) for _ in range(min(random.integers(0, 20), np.count_nonzero(plain < 0)))]
        slots = np.flatnonzero(plain < 0)[: len(coming)]
        assert device.free_slots(0, len(coming)).tolist() == slots.tolist()
        device.fill(0, np.array(coming, dtype=np.int64))
        plain[slots] = coming
        assert device.row_of_slot[0].tolist() == plain.tolist()
        again = tier()
        again.restore(0, plain)
        assert (device.free[0].end, device.free[0].gaps.tolist()) == (again.free[0].end, again.free[0].gaps.tolist())
        hot = plain[plain >= 0]
        assert device.hot_rows_of(0).tolist() == hot.tolist()
        assert device.hot_rows == len(hot)
        device.set_estimates(0, hot + 0.5)
        assert device.estimate[0][plain >= 0].tolist() == (hot + 0.5).tolist()
        if number % 30 == 29:  # as after a checkpoint
            device = again


def test_no_more_rows_come_than_slots_are_free() -> None:
    device = tier()
    device.fill(0, np.arange(CAPACITY))
    device.clear(0, np.array([7, 3]))
    with pytest.raises(AssertionError, match="free slots"):
        device.fill(0, np.arange(3))
    assert device.free_slots(0, 2).tolist() == [3, 7]


def test_a_row_that_enters_a_slot_has_not_moved_and_is_not_stale_whatever_was_there() -> None:
    device = tier()
    device.fill(0, np.arange(3))
    device.movement[0][:] = 0.5
    device.stale[0][:] = True
    device.clear(0, np.array([1]))
    device.fill(0, np.array([7]))
    assert device.row_of_slot[0][:3].tolist() == [0, 7, 2]
    assert device.movement[0][:3].tolist() == [0.5, np.inf, 0.5]
    assert device.stale[0][:3].tolist() == [True, False, True]
