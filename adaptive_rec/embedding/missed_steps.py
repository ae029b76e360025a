"""The steps of a table under dense Adam, for rows that were not touched in them (`kernels/catch_up.py`)."""

from __future__ import annotations

import math

import numpy as np

from adaptive_rec.kernels.catch_up import TERMS, History

ROUNDING = 1e-18
"""Part of a momentum that is too little to count."""
LARGEST_BETA1 = 0.95
"""Largest first beta for which many steps are made at once."""
FIRST_SERIES_STEP = 1000
"""Steps before it change their bias correction too fast for the power series."""
_GROWTH = 1024


class MissedSteps:
    """Learning rates of a table's steps, and the power series of the moves that rows missed in them."""

    def __init__(self, betas: tuple[float, float], eps: float, weight_decay: float, first: int = 0) -> None:
        """`first`: number of the step that every row has had."""
        self._betas, self._eps, self._weight_decay = betas, eps, weight_decay
        self._horizon = max(1, math.ceil(math.log(ROUNDING) / math.log(betas[0]))) if betas[0] > 0 else 1
        self._first = self._last = first
        self._allot(_GROWTH)

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
        """Note the learning rate of the next step, whose rows are about to be updated. Returns its number."""
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
        """Count the announced step as made: the rows that it did not touch have missed it."""
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

    def history(self) -> History:
        """Return the steps made so far, as the kernel takes them."""
        return History(
            self._first, self._last, self._rate_S, self._root_S, self._decay_S1, self._series_ST, self._centre_S, self._to_S,
            self._is_series_S, self._horizon, *self._betas, self._eps,
        )  # fmt: skip
