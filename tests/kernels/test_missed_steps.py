"""Missed steps of rows equal steps whose gradient is 0."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from adaptive_rec.embedding.missed_steps import GROWTH, LinearSteps, StepwiseSteps
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.kernels.missed_steps import product_of_steps, set_step
from adaptive_rec.kernels.row_update import TierArrays
from adaptive_rec.kernels.update_rules import ADAGRAD, LAZY_ADAM, MOMENTUM, RMSPROP, SGD
from tests.kernels.reference.step import apply_row

DIM = 3
LINEAR = {
    "decay": RowRule(SGD, 0.0, 0.0, 0.0, catches_up=True, decay=0.1),
    "momentum": RowRule(MOMENTUM, 0.0, 0.9, 0.0, catches_up=True),
    "momentum, decay": RowRule(MOMENTUM, 0.0, 0.9, 0.0, catches_up=True, decay=0.05),
    "Nesterov, decay": RowRule(MOMENTUM, 0.0, 0.8, 0.0, catches_up=True, decay=0.05, nesterov=True),
    "dampening, decay": RowRule(MOMENTUM, 0.0, 0.8, 0.0, catches_up=True, decay=0.05, dampening=0.3),
    "RMSprop": RowRule(RMSPROP, 1e-8, 0.0, 0.99, catches_up=True),
    "RMSprop, momentum": RowRule(RMSPROP, 1e-8, 0.9, 0.99, catches_up=True),
    "RMSprop, centred, momentum": RowRule(RMSPROP, 1e-8, 0.9, 0.99, catches_up=True, centered=True),
}
STEPWISE = {  # where it is centred, eps keeps the root of a small difference from making rounding large
    "Adam, decay": RowRule(LAZY_ADAM, 1e-8, 0.9, 0.999, catches_up=True, decay=0.1),
    "Adagrad, decay": RowRule(ADAGRAD, 1e-10, 0.0, 0.0, catches_up=True, decay=0.1),
    "RMSprop, decay": RowRule(RMSPROP, 1e-8, 0.0, 0.99, catches_up=True, decay=0.1),
    "RMSprop, centred, momentum, decay": RowRule(RMSPROP, 0.05, 0.5, 0.9, catches_up=True, decay=0.1, centered=True),
}


CASES = [*itertools.product([*LINEAR, *STEPWISE], (0, 70), (np.float64, np.float32))]


@pytest.mark.parametrize(
    ("name", "first", "dtype", "rows"),
    [
        *((*CASES[4 * number + number % 4], 12) for number in range(len(CASES) // 4)),
        *(pytest.param(*case, 40, marks=pytest.mark.slow) for case in CASES),
    ],
)
def test_rows_catch_up_as_if_every_step_had_been_made(name: str, first: int, dtype: Any, rows: int) -> None:
    rule: RowRule = {**LINEAR, **STEPWISE}[name]
    steps, dice = GROWTH + 300, np.random.default_rng(1)
    lr_S = 0.01 * (1 + np.sin(np.arange(steps) / 7))  # to 0 and back
    missed = (
        LinearSteps(rule, DIM, first) if name in LINEAR else StepwiseSteps(rule, DIM, first, np.dtype(dtype))
    )
    for number, lr in enumerate(lr_S, first + 1):
        assert missed.announce(float(lr)) == number
        missed.complete()
    done_R = first + np.concatenate([[0, 1, steps, steps - 1, steps - 2], dice.integers(0, steps, rows - 5)])
    weights = dice.normal(size=(rows, DIM)).astype(dtype)
    state = np.abs(dice.normal(size=(rows, rule.state_width(DIM)))).astype(dtype)
    if rule.centered:
        state[:, DIM : 2 * DIM] = 0.1 * np.sqrt(state[:, :DIM])  # a mean whose square is below the mean of squares
    state[:, -1] = done_R
    expected, kept = weights.astype(np.float64), state.astype(np.float64)
    for r in range(rows):
        for number in range(done_R[r] + 1, first + steps + 1):
            apply_row(rule.code, rule.at(number, lr_S[number - first - 1]), expected[r], kept[r, :-1], np.zeros(DIM))
    kept[:, -1] = first + steps
    slots = np.full(rows, -1, dtype=np.int32)
    slots[::3] = np.arange(len(slots[::3]))[::-1]
    hot = slots >= 0
    tiers = TierArrays(np.zeros((hot.sum(), DIM), dtype), np.zeros((hot.sum(), state.shape[1]), dtype), weights, state)
    tiers.hot_HD[slots[hot]], tiers.hot_state_HK[slots[hot]] = weights[hot], state[hot]
    twice = np.concatenate([np.arange(rows), np.arange(rows)])
    assert missed.make(twice, slots, 0, tiers) == np.count_nonzero(done_R < first + steps)
    found = np.where(hot[:, None], tiers.hot_HD[slots], tiers.cold_RD)
    found_state = np.where(hot[:, None], tiers.hot_state_HK[slots], tiers.cold_state_RK)
    exactness = 1e-11 if dtype == np.float64 else 1e-3 if name in STEPWISE else 1e-5
    np.testing.assert_allclose(found, expected, rtol=exactness, atol=exactness / 10)
    np.testing.assert_allclose(found_state, kept, rtol=10 * exactness, atol=exactness / 10)
    assert missed.make(twice, slots, 0, tiers) == 0
    assert missed.make(np.array([3, 3]), slots, first + steps + 1, tiers) == 1


@pytest.mark.parametrize("steps", [1, 2, 7, 16])
def test_a_tree_gives_every_product(steps: int) -> None:
    dice = np.random.default_rng(2)
    tree_N4 = np.tile([1.0, 0.0, 0.0, 1.0], (32, 1))
    matrix_S = dice.normal(size=(steps, 2, 2))
    for place, matrix in enumerate(matrix_S):
        set_step(tree_N4, place, matrix.ravel())
    out_4, part_4 = np.empty((2, 4))
    for low in range(steps + 1):
        for high in range(low, steps + 1):
            product_of_steps(tree_N4, low, high, out_4, part_4)
            expected = np.eye(2)
            for matrix in matrix_S[low:high]:
                expected = matrix @ expected
            np.testing.assert_allclose(out_4.reshape(2, 2), expected, rtol=1e-12, atol=1e-13)
