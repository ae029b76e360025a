"""The update-delta monitor against a plain NumPy twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.kernels.record import TAIL_BYTES, add_to_record, measure, record_bytes, record_of_sums
from adaptive_rec.tracking.delta import UpdateDeltaMonitor
from tests.kernels.reference import cuda as reference

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return str(request.param)


def measure_plainly(steps: list[tuple[Any, Any, Any]], weights: Any) -> Any:
    """Follow every touched row by itself."""
    measured = np.zeros((len(weights), 4))
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
    monitor = UpdateDeltaMonitor(30, 5, device)
    seen, weights = train(monitor, 30, 5, 3)
    measured = monitor.measure(torch.tensor(weights, device=device)).cpu().numpy()
    twin = measure_plainly(seen, weights)
    np.testing.assert_allclose(measured[:, 2:], twin[:, 2:], rtol=1e-6)
    scale = monitor.record_HR.view(torch.float32)[:, -2].cpu().numpy()
    # Each of three touches at the most rounds a component by less than a step of the scale.
    assert (np.abs(measured[:, 0] - twin[:, 0]) <= 3 * scale).all()
    assert (np.abs(measured[:, 1] - twin[:, 1]) <= 3 * scale * np.sqrt(5)).all()
    assert (scale[twin[:, 3] > 0] <= 4 * twin[twin[:, 3] > 0, 3] ** 0.5 / 127).all()
    touches = np.bincount(np.concatenate([slots for slots, _, _ in seen]), minlength=30)
    np.testing.assert_array_equal(monitor.touches_H.cpu().numpy(), touches)


def test_there_and_back_is_a_path_but_no_movement() -> None:
    monitor = UpdateDeltaMonitor(2, 4)
    slot, here, there = torch.tensor([1]), torch.zeros(1, 4), torch.ones(1, 4)
    monitor.observe(slot, here, there)
    monitor.observe(slot, there, here)
    assert monitor.measure(torch.ones(2, 4)).tolist() == [[0, 0, 2, 0], [0, 0, 2, 8]]
    assert monitor.touches_H.tolist() == [0, 2]


def test_a_new_window_knows_nothing() -> None:
    monitor = UpdateDeltaMonitor(9, 2)
    train(monitor, 9, 2, 2)
    monitor.begin_window()
    assert not monitor.record_HR.any()
    assert not monitor.touches_H.any()


def test_a_slot_forgets_its_former_row() -> None:
    monitor = UpdateDeltaMonitor(4, 2)
    monitor.observe(torch.arange(4), torch.zeros(4, 2), torch.ones(4, 2))
    monitor.forget(torch.tensor([1, 2]))
    assert monitor.measure(torch.ones(4, 2))[:, 0].tolist() == [1, 0, 0, 1]
    assert monitor.touches_H.tolist() == [1, 0, 0, 1]


def test_the_reported_memory_is_exact() -> None:
    for dim, expected in ((16, 28), (64, 76), (5, 20)):
        monitor = UpdateDeltaMonitor(10, dim)
        assert monitor.bytes_per_slot(dim) == expected
        assert monitor.record_HR.nbytes + monitor.touches_H.nbytes == 10 * expected


def test_many_small_displacements_are_kept_on_average() -> None:
    """Each is a twentieth of a step of the scale, which one large displacement has set."""
    rows, steps = 4000, 60
    monitor = UpdateDeltaMonitor(rows, 1)
    slots, small = torch.arange(rows), 1 / 20
    monitor.observe(slots, torch.zeros(rows, 1), torch.full((rows, 1), 64.0))
    for _ in range(steps):
        monitor.observe(slots, torch.zeros(rows, 1), torch.full((rows, 1), small))
    assert set(monitor.record_HR.view(torch.float32)[:, -2].tolist()) == {1.0}
    moved = monitor.measure(torch.ones(rows, 1))[:, 0] - 64.0
    assert moved.min() < 1.0
    assert abs(float(moved.mean()) - steps * small) < 0.15, "five standard errors"


def test_components_are_the_bits_of_a_plain_twin() -> None:
    random = np.random.default_rng(1)
    for dim in (1, 3, 16):
        record = torch.zeros((12, record_bytes(dim)), dtype=torch.int8)
        twin, touches = record.numpy().copy(), torch.zeros(12, dtype=torch.int32)
        for _ in range(30):
            slots = torch.from_numpy(random.choice(12, 6, replace=False))
            moved = (random.normal(size=(6, dim)) * 10.0 ** random.integers(-6, 1, (6, 1))).astype(np.float32)
            add_to_record(record, slots, touches[slots], torch.from_numpy(moved))
            for slot, moved_D in zip(slots.tolist(), moved, strict=True):
                reference.add_to_record(twin[slot], slot, int(touches[slot]), moved_D)
            touches[slots] += 1
        np.testing.assert_array_equal(record[:, : dim].numpy(), twin[:, :dim])
        tails = record.numpy()[:, -TAIL_BYTES:].copy().view(np.float32), twin[:, -TAIL_BYTES:].copy().view(np.float32)
        np.testing.assert_allclose(*tails, rtol=1e-6)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_row_that_moves_by_no_number_shows_it(odd: float) -> None:
    monitor = UpdateDeltaMonitor(2, 2)
    monitor.observe(torch.arange(2), torch.zeros(2, 2), torch.tensor([[1.0, odd], [1.0, -3.0]]))
    measured = monitor.measure(torch.ones(2, 2))
    assert not measured[0, [0, 1, 3]].isfinite().any()
    assert float(measured[1, 0]) == pytest.approx(3.0, abs=2.0**-5)


def test_sums_of_an_earlier_version_become_records() -> None:
    random = np.random.default_rng(2)
    sums = torch.from_numpy(random.normal(size=(9, 5)) * 10.0 ** random.integers(-5, 2, (9, 1)))
    sums[4] = 0
    found = measure(record_of_sums(sums, torch.arange(9.0)), torch.ones(9, 5))
    np.testing.assert_allclose(found[:, 0], sums.abs().amax(1), rtol=1 / 63)
    np.testing.assert_allclose(found[:, 1], sums.norm(dim=1), rtol=1 / 63)
    assert found[:, 3].tolist() == list(range(9))
