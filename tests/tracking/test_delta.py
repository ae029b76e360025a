"""The update-delta monitor against a plain NumPy twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.tracking.delta import Metric, UpdateDeltaMonitor

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return str(request.param)


def move_plainly(steps: list[tuple[Any, Any, Any]], weights: Any, metric: Metric) -> Any:
    """Follow every touched row by itself."""
    displacement: dict[int, Any] = {}
    for slots, before, after in steps:
        for slot, old, new in zip(slots.tolist(), before, after, strict=True):
            displacement[slot] = displacement.get(slot, np.zeros_like(old)) + (new - old)
    moved = np.full(len(weights), np.inf)
    for slot, total in displacement.items():
        if metric == "max_abs":
            moved[slot] = np.abs(total).max()
        else:
            moved[slot] = np.sqrt(np.sum(total**2)) / np.sqrt(np.sum(weights[slot] ** 2))
    return moved


def train(monitor: UpdateDeltaMonitor, capacity: int, dim: int, steps: int) -> tuple[list[tuple[Any, Any, Any]], Any]:
    """Random updates of random slots, seen by the monitor and written down."""
    random = np.random.default_rng(3)
    weights = random.normal(size=(capacity, dim))
    seen = []
    for _ in range(steps):
        slots = random.choice(capacity, size=capacity // 3, replace=False)
        before = weights[slots].copy()
        weights[slots] += random.normal(scale=0.1, size=before.shape)
        after = weights[slots].copy()
        monitor.observe(*(torch.tensor(part, device=monitor.touches_H.device) for part in (slots, before, after)))
        seen.append((slots, before, after))
    return seen, weights


@pytest.mark.parametrize("metric", ["max_abs", "relative_l2"])
def test_it_equals_the_plain_twin(metric: Metric, device: str) -> None:
    monitor = UpdateDeltaMonitor(30, 5, torch.float64, device)
    seen, weights = train(monitor, 30, 5, 3)
    moved = monitor.movement(metric, torch.tensor(weights, device=device)).cpu().numpy()
    np.testing.assert_allclose(moved, move_plainly(seen, weights, metric), rtol=1e-12)
    touches = np.bincount(np.concatenate([slots for slots, _, _ in seen]), minlength=30)
    np.testing.assert_array_equal(monitor.touches_H.cpu().numpy(), touches)
    np.testing.assert_array_equal(np.isinf(moved), touches == 0)


def test_there_and_back_is_no_movement() -> None:
    monitor = UpdateDeltaMonitor(2, 3, torch.float32)
    slot, here, there = torch.tensor([1]), torch.zeros(1, 3), torch.ones(1, 3)
    monitor.observe(slot, here, there)
    monitor.observe(slot, there, here)
    assert monitor.movement("max_abs", torch.zeros(2, 3)).tolist() == [torch.inf, 0.0]
    assert monitor.touches_H.tolist() == [0, 2]


def test_a_row_of_zeros_has_a_relative_movement() -> None:
    monitor = UpdateDeltaMonitor(2, 2, torch.float32)
    monitor.observe(torch.tensor([0, 1]), torch.zeros(2, 2), torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    moved = monitor.movement("relative_l2", torch.zeros(2, 2))
    assert moved[0] == 0
    assert moved[1] > 1e30


def test_a_new_window_knows_nothing() -> None:
    monitor = UpdateDeltaMonitor(9, 2, torch.float32)
    train(monitor, 9, 2, 2)
    monitor.begin_window()
    assert torch.isinf(monitor.movement("max_abs", torch.ones(9, 2))).all()
    assert not monitor.touches_H.any()


def test_a_slot_forgets_its_former_row() -> None:
    monitor = UpdateDeltaMonitor(4, 2, torch.float32)
    monitor.observe(torch.arange(4), torch.zeros(4, 2), torch.ones(4, 2))
    monitor.forget(torch.tensor([1, 2]))
    assert monitor.movement("max_abs", torch.ones(4, 2)).tolist() == [1.0, torch.inf, torch.inf, 1.0]


def test_memory_is_told_exactly() -> None:
    for dtype, itemsize in ((torch.float32, 4), (torch.float64, 8), (torch.bfloat16, 2)):
        monitor = UpdateDeltaMonitor(10, 16, dtype)
        assert monitor.bytes_per_slot(16, itemsize) == 16 * itemsize + 4
        held = monitor.movement_HD.nbytes + monitor.touches_H.nbytes
        assert held == 10 * monitor.bytes_per_slot(16, itemsize)
