"""The steps of a table under an optimizer that moves every row at every step, kept for rows that were not touched in them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.kernels import row_update
from adaptive_rec.kernels.missed_steps import (
    LinearHistory,
    StepwiseHistory,
    catch_up_linear,
    catch_up_stepwise,
    set_step,
)
from adaptive_rec.kernels.row_update import TierArrays

GROWTH = 1024
"""Steps for which memory is taken at first."""


class MissedSteps(ABC):
    """Steps of a table, and how rows make those that they missed."""

    def __init__(self, first: int) -> None:
        """`first`: number of the step that every row has had."""
        self._first = self._last = first

    def __len__(self) -> int:
        return self._last - self._first

    @abstractmethod
    def announce(self, lr: float) -> int:
        """Note the learning rate of the next step, whose rows are about to be updated. Returns its number."""

    def complete(self) -> None:
        """Count the announced step as made: the rows that it did not touch have missed it."""
        self._last += 1

    @abstractmethod
    def make(self, row_N: NDArray[np.int64], slot_R: NDArray[np.int32], next_step: int, tiers: TierArrays) -> int:
        """Have rows of a pool, by their numbers, make the steps that they missed; the slots of all its rows say where they live.
        With `next_step` (0: none) they are marked as touched by the step of that number: their update follows. Returns the number
        of rows that changed."""


class LinearSteps(MissedSteps):
    """Steps of SGD with momentum or weight decay, and of RMSprop without."""

    def __init__(self, rule: RowRule, dim: int, first: int) -> None:
        super().__init__(first)
        self._rule = rule
        self._tree_N4 = _unmoved(GROWTH)
        has_buffer = rule.state_names[-1:] == ("momentum_buffer",)
        self._faded = (len(rule.state_names) - has_buffer) * dim
        self._buffer = self._faded if has_buffer else -1

    def announce(self, lr: float) -> int:
        if len(self) == len(self._tree_N4) // 2:
            steps_S4, self._tree_N4 = self._tree_N4[len(self) :], _unmoved(2 * len(self))
            for place, step_4 in enumerate(steps_S4):
                set_step(self._tree_N4, place, step_4)
        number = self._last + 1
        set_step(self._tree_N4, len(self), self._step(lr, number))
        return number

    def _step(self, lr: float, number: int) -> NDArray[np.float64]:
        """Return the matrix of a step on (weight, buffer), for a gradient of ``l2 * weight``."""
        rule = self._rule
        momentum, l2 = rule.beta1, rule.l2
        fresh = l2 if number == 1 else (1 - rule.dampening) * l2
        if not momentum:
            return np.array([1 - lr * l2, 0.0, 0.0, 0.0])
        weight, buffer = (l2 + momentum * fresh, momentum**2) if rule.nesterov else (fresh, momentum)
        return np.array([1 - lr * weight, -lr * buffer, fresh, momentum])

    def make(self, row_N: NDArray[np.int64], slot_R: NDArray[np.int32], next_step: int, tiers: TierArrays) -> int:
        history = LinearHistory(
            self._first, self._last, self._tree_N4, self._buffer, float(self._rule.beta2), self._faded
        )
        return catch_up_linear(row_N, slot_R, history, next_step, tiers)


def _unmoved(steps: int) -> NDArray[np.float64]:
    return np.tile([1.0, 0.0, 0.0, 1.0], (2 * steps, 1))


class StepwiseSteps(MissedSteps):
    """Steps of Adam, Adagrad and RMSprop with an L2 term: each is made, as no sum of them is known."""

    def __init__(self, rule: RowRule, dim: int, first: int, dtype: np.dtype) -> None:
        super().__init__(first)
        self._rule, self._dim = rule, dim
        self._factor_SF = np.zeros((GROWTH, row_update.FACTORS), dtype=dtype)

    def announce(self, lr: float) -> int:
        if len(self) == len(self._factor_SF):
            self._factor_SF = np.concatenate([self._factor_SF, np.zeros_like(self._factor_SF)])
        number = self._last + 1
        row_update.set_factors(self._rule.code, self._rule.at(number, lr), self._dim, self._factor_SF[len(self)])
        return number

    def make(self, row_N: NDArray[np.int64], slot_R: NDArray[np.int32], next_step: int, tiers: TierArrays) -> int:
        history = StepwiseHistory(self._first, self._last, self._rule.code, self._factor_SF)
        return catch_up_stepwise(row_N, slot_R, history, next_step, tiers)
