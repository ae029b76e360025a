"""The steps of a table under dense Adam and AdamW, for rows that were not touched in them (`kernels/catch_up.py`)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.missed_steps import GROWTH, MissedSteps
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.errors import ConfigError
from adaptive_rec.kernels.catch_up import TERMS, History, catch_up_rows
from adaptive_rec.kernels.row_update import TierArrays

ROUNDING = 1e-18
"""Part of a momentum that is too little to count."""
LARGEST_BETA1 = 0.95
"""Largest first beta for which many steps are made at once."""
FIRST_SERIES_STEP = 1000
"""Steps before it change their bias correction too fast for the power series."""


class AdamSteps(MissedSteps):
    """Learning rates of a table's steps, and the power series of the moves that rows missed in them."""

    def __init__(self, rule: RowRule, first: int) -> None:
        super().__init__(first)
        self._betas, self._eps, self._weight_decay = (rule.beta1, rule.beta2), rule.eps, rule.decay
        self._horizon = max(1, math.ceil(math.log(ROUNDING) / math.log(rule.beta1))) if rule.beta1 > 0 else 1
        self._allot(GROWTH)

    def _allot(self, steps: int) -> None:
        self._rate_S = np.zeros(steps)
        self._root_S = np.ones(steps)
        self._decay_S1 = np.zeros(steps + 1)
        self._series_ST = np.zeros((steps, TERMS))
        self._centre_S = np.zeros(steps)
        self._to_S = np.zeros(steps, dtype=np.int64)
        self._is_series_S = np.zeros(steps, dtype=np.bool_)

    def _grow(self) -> None:
        parts = ("_rate_S", "_root_S", "_series_ST", "_centre_S", "_to_S", "_is_series_S", "_decay_S1")
        held, steps = {name: getattr(self, name) for name in parts}, len(self._rate_S)
        self._allot(2 * steps)
        for name, array in held.items():
            getattr(self, name)[: len(array)] = array

    def announce(self, lr: float) -> int:
        if lr * self._weight_decay >= 1:
            raise ConfigError(
                "lr * weight_decay of AdamW must be below 1 for rows to make the steps that they missed, got "
                f"{lr} * {self._weight_decay}"
            )
        place = self._last - self._first
        if place + 1 >= len(self._rate_S):
            self._grow()
        number, (beta1, beta2) = self._last + 1, self._betas
        self._rate_S[place] = lr / (1 - beta1**number)
        self._root_S[place] = math.sqrt(1 - beta2**number)
        self._decay_S1[place + 1] = self._decay_S1[place] + math.log1p(-lr * self._weight_decay)
        self._to_S[place] = self._last
        self._centre_S[place] = math.sqrt(beta2) / self._root_S[place]
        self._is_series_S[place] = beta1 <= LARGEST_BETA1 and self._last >= FIRST_SERIES_STEP
        return number

    def complete(self) -> None:
        place = self._last - self._first
        self._last += 1
        low = max(0, place + 1 - self._horizon)
        since = np.arange(place + 1 - low, 0, -1, dtype=np.float64)  # missed steps of rows whose last step came before each
        beta1, beta2 = self._betas
        move = self._rate_S[place] * beta1**since
        away = np.sqrt(beta2**since) / self._root_S[place] - self._centre_S[low : place + 1]
        keep = math.exp(self._decay_S1[place + 1] - self._decay_S1[place])
        self._series_ST[low : place + 1] *= keep
        self._series_ST[low : place + 1] += move[:, None] * away[:, None] ** np.arange(TERMS)
        self._to_S[low : place + 1] = self._last

    def make(self, row_N: NDArray[np.int64], slot_R: NDArray[np.int32], next_step: int, tiers: TierArrays) -> int:
        return catch_up_rows(row_N, slot_R, self.history(), next_step, tiers)

    def history(self) -> History:
        """Return the steps made so far, as the kernel takes them."""
        return History(
            self._first, self._last, self._rate_S, self._root_S, self._decay_S1, self._series_ST, self._centre_S, self._to_S,
            self._is_series_S, self._horizon, *self._betas, self._eps,
        )  # fmt: skip
