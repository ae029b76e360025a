"""The update-delta monitor against a plain NumPy twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.tracking.delta import UpdateDeltaMonitor

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return str(request.param)


def measure_plainly(steps: list[tuple[Any, Any, Any]], weights: Any) -> Any:
    """Follow every touched row by itself."""
    measured = np.zeros((len(weights), 5))
    for slot, row in enumerate(weights):
        moves = [
            new - old
            for slots, before, after in steps
            for s, old, new in zip(slots, before, after, strict=True)
            if s == slot
        ]
        net = sum(moves) if moves else np.zeros_like(row)
        lengths = [float(np.sqrt(np.sum(move**2))) for move in moves]
        measured[slot] = [
            np.abs(net).max(),
            np.sqrt(np.sum(net**2)),
            np.sqrt(np.sum(row**2)),
            sum(lengths),
            sum(x * x for x in lengths),
        ]
    return measured


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


def test_it_equals_the_plain_twin(device: str) -> None:
    monitor = UpdateDeltaMonitor(30, 5, torch.float64, device)
    seen, weights = train(monitor, 30, 5, 3)
    measured = monitor.measure(torch.tensor(weights, device=device)).cpu().numpy()
    np.testing.assert_allclose(measured, measure_plainly(seen, weights), rtol=1e-12)
    touches = np.bincount(np.concatenate([slots for slots, _, _ in seen]), minlength=30)
    np.testing.assert_array_equal(monitor.touches_H.cpu().numpy(), touches)


def test_there_and_back_is_a_path_but_no_movement() -> None:
    monitor = UpdateDeltaMonitor(2, 4, torch.float32)
    slot, here, there = torch.tensor([1]), torch.zeros(1, 4), torch.ones(1, 4)
    monitor.observe(slot, here, there)
    monitor.observe(slot, there, here)
    assert monitor.measure(torch.ones(2, 4)).tolist() == [[0, 0, 2, 0, 0], [0, 0, 2, 4, 8]]
    assert monitor.touches_H.tolist() == [0, 2]


def test_a_new_window_knows_nothing() -> None:
    monitor = UpdateDeltaMonitor(9, 2, torch.float32)
    train(monitor, 9, 2, 2)
    monitor.begin_window()
    assert not monitor.record_HR.any()
    assert not monitor.touches_H.any()


def test_a_slot_forgets_its_former_row() -> None:
    monitor = UpdateDeltaMonitor(4, 2, torch.float32)
    monitor.observe(torch.arange(4), torch.zeros(4, 2), torch.ones(4, 2))
    monitor.forget(torch.tensor([1, 2]))
    assert monitor.measure(torch.ones(4, 2))[:, 0].tolist() == [1, 0, 0, 1]
    assert monitor.touches_H.tolist() == [1, 0, 0, 1]


def test_the_reported_memory_is_exact() -> None:
    for dtype, itemsize in ((torch.float32, 4), (torch.float64, 8)):
        monitor = UpdateDeltaMonitor(10, 16, dtype)
        assert monitor.bytes_per_slot(16, itemsize) == 18 * itemsize + 4
        held = monitor.record_HR.nbytes + monitor.touches_H.nbytes
        assert held == 10 * monitor.bytes_per_slot(16, itemsize)
