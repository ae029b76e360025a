"""Missed steps made at once equal those made one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from adaptive_rec.embedding.adam_steps import FIRST_SERIES_STEP, AdamSteps
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.kernels.catch_up import FEW_STEPS, catch_up_rows
from adaptive_rec.kernels.row_update import TierArrays
from adaptive_rec.kernels.update_rules import LAZY_ADAM
from tests.kernels.reference.catch_up import catch_up_row

DIM = 5


def rates(steps: int, schedule: str) -> np.ndarray:
    if schedule == "falling":
        return 0.02 * 0.999 ** np.arange(steps)
    return 0.01 * (1 + np.sin(np.arange(steps) / 7))  # to 0 and back


def steps_made(lr_S: np.ndarray, first: int, **how: float) -> AdamSteps:
    rule = RowRule(
        LAZY_ADAM, how["eps"], how["beta1"], how["beta2"], catches_up=True, decay=how["weight_decay"], decoupled=True
    )
    made = AdamSteps(rule, first)
    for lr in lr_S:
        made.announce(float(lr))
        made.complete()
    return made


BETAS, LATE = (0.9, 0.0, 0.95, 0.99), FIRST_SERIES_STEP + 500


@pytest.mark.parametrize(
    ("schedule", "weight_decay", "beta1", "first", "steps", "drawn"),
    [
        ("falling", 0.0, 0.9, 0, 1250, 2), ("waves", 0.1, 0.0, LATE, 600, 4), ("waves", 0.1, 0.95, 0, 1250, 2),
        ("falling", 0.0, 0.99, LATE, 600, 4),
        *(
            pytest.param(*case, 1700, 7, marks=pytest.mark.slow)
            for case in itertools.product(("falling", "waves"), (0.0, 0.1), BETAS, (0, LATE))
        ),
    ],
)  # fmt: skip
def test_rows_catch_up_as_if_every_step_had_been_made(
    schedule: str, weight_decay: float, beta1: float, first: int, steps: int, drawn: int
) -> None:
    lr_S = rates(steps, schedule)
    how = {"beta1": beta1, "beta2": 0.999, "eps": 1e-8, "weight_decay": weight_decay}
    history = steps_made(lr_S, first, **how).history()
    dice = np.random.default_rng(1)
    done_R = first + np.concatenate(
        [[0, steps, steps - 1, steps - FEW_STEPS, steps - FEW_STEPS - 1], dice.integers(0, steps, drawn)]
    )
    rows = len(done_R)
    weights = dice.normal(size=(rows, DIM))
    size_R = 10.0 ** dice.uniform(-12, 0, size=(rows, 1))  # from gradients far below eps to large ones
    first_moments = size_R * dice.normal(size=(rows, DIM))
    second_moments = (size_R * dice.normal(size=(rows, DIM))) ** 2
    first_moments[3] = 0.0
    state = np.concatenate([first_moments, second_moments, done_R[:, None]], axis=1).astype(np.float64)
    expected, expected_state = weights.copy(), state.copy()
    for r in range(rows):
        catch_up_row(expected[r], expected_state[r], lr_S, first, (beta1, 0.999), 1e-8, weight_decay)
    slots = np.full(rows, -1, dtype=np.int32)
    slots[::3] = np.arange(len(slots[::3]))[::-1]
    hot = slots >= 0
    tiers = TierArrays(np.zeros((hot.sum(), DIM)), np.zeros((hot.sum(), 2 * DIM + 1)), weights.copy(), state.copy())
    tiers.hot_HD[slots[hot]], tiers.hot_state_HK[slots[hot]] = weights[hot], state[hot]
    given = np.concatenate([np.arange(rows), np.arange(rows)])  # each twice
    changed = catch_up_rows(given, slots, history, 0, tiers)
    assert changed == np.count_nonzero(done_R < first + steps)
    found = np.where(hot[:, None], tiers.hot_HD[slots], tiers.cold_RD)
    found_state = np.where(hot[:, None], tiers.hot_state_HK[slots], tiers.cold_state_RK)
    size = np.abs(weights) + np.abs(expected - weights)  # rounding of the start and of the way
    assert (np.abs(found - expected) / size).max() < 5e-13
    np.testing.assert_allclose(found_state, expected_state, rtol=1e-10, atol=1e-300)
    assert catch_up_rows(given, slots, history, 0, tiers) == 0


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_the_twin_steps_as_torch_does(kind: type[torch.optim.Optimizer]) -> None:
    weight = torch.nn.Parameter(torch.randn(3, DIM, dtype=torch.float64))
    optimizer = kind([weight], lr=0.05, betas=(0.8, 0.99), eps=1e-6)  # type: ignore[call-arg]
    weight.grad = torch.randn(3, DIM, dtype=torch.float64)
    optimizer.step()
    state = optimizer.state[weight]
    rows = weight.detach().numpy().copy()
    kept = np.concatenate([state["exp_avg"].numpy(), state["exp_avg_sq"].numpy(), np.ones((3, 1))], axis=1)
    weight.grad = torch.zeros(3, DIM, dtype=torch.float64)
    for _ in range(20):
        optimizer.step()
    for r in range(3):
        decay = optimizer.param_groups[0]["weight_decay"]
        catch_up_row(rows[r], kept[r], np.full(21, 0.05), 0, (0.8, 0.99), 1e-6, decay)
    np.testing.assert_allclose(rows, weight.detach().numpy(), rtol=1e-13)
    np.testing.assert_allclose(kept[:, :DIM], state["exp_avg"].numpy(), rtol=1e-12)


@pytest.mark.parametrize(("steps", "rows"), [(1300, 6), pytest.param(1800, 15, marks=pytest.mark.slow)])
def test_float32_rows_catch_up_to_rounding(steps: int, rows: int) -> None:
    dice = np.random.default_rng(2)
    lr_S = rates(steps, "falling")
    history = steps_made(lr_S, 0, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01).history()
    weights = dice.normal(size=(rows, DIM))
    state = np.concatenate(
        [1e-3 * dice.normal(size=(rows, DIM)), 1e-6 * dice.random((rows, DIM)), dice.integers(0, steps, (rows, 1))], axis=1
    )
    none = np.zeros((0, DIM), np.float32), np.zeros((0, 2 * DIM + 1), np.float32)
    tiers = TierArrays(*none, weights.astype(np.float32), state.astype(np.float32))
    catch_up_rows(np.arange(rows), np.full(rows, -1, np.int32), history, 0, tiers)
    for r in range(rows):
        catch_up_row(weights[r], state[r], lr_S, 0, (0.9, 0.999), 1e-8, 0.01)
    np.testing.assert_allclose(tiers.cold_RD, weights, rtol=3e-6, atol=1e-6)
