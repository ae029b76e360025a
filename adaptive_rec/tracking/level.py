"""This module decides whether a loss is level, from repeated noisy measurements."""

from __future__ import annotations

import math
from typing import Any

from adaptive_rec.saved import Saved

SURE = 3.0
"""Standard errors that a change must exceed: about one false alarm in 700 measurements."""

FORGET = 0.9
"""What a measurement leaves of the distance between the lowest recent loss and the present one."""


class LossLevel:
    """Mean loss of the last few measurements and the lowest recent one, with standard errors, in nats."""

    def __init__(self) -> None:
        self._mean = self._lowest = (math.inf, 0.0)

    def take(self, loss: float, standard_error: float, limit: float) -> str:
        """Take in a measurement; return what the loss does, or nothing where it is level: it neither rose nor fell by more than
        `limit` and noise together. A loss that is not finite is reported and not used."""
        if not math.isfinite(loss):
            return "is no finite number"
        found = self._compare(loss, standard_error, limit)
        self._follow(loss, standard_error)
        return found

    def state(self) -> dict[str, Any]:
        (mean, mean_error), (lowest, lowest_error) = self._mean, self._lowest
        return {"mean": mean, "mean_error": mean_error, "lowest": lowest, "lowest_error": lowest_error}

    def set_state(self, found: Saved) -> None:
        self._mean = found.number("mean"), found.number("mean_error")
        self._lowest = found.number("lowest"), found.number("lowest_error")

    def _compare(self, loss: float, standard_error: float, limit: float) -> str:
        (mean, mean_error), (lowest, lowest_error) = self._mean, self._lowest
        if math.isinf(mean):
            return "is not known yet"
        noise = SURE * math.hypot(standard_error, lowest_error)
        if loss - lowest > limit + noise:
            return f"rose by {loss - lowest:.4f} above {lowest:.4f}, noise is under {noise:.4f}"
        noise = SURE * math.hypot(standard_error, mean_error)
        if mean - loss > limit + noise:
            return f"still falls, by {mean - loss:.4f} below {mean:.4f}, noise is under {noise:.4f}"
        return ""

    def _follow(self, loss: float, standard_error: float) -> None:
        """Lower the level at once and raise it slowly, so that it follows a changing stream."""
        mean, error = self._mean
        if math.isinf(mean):
            self._mean = self._lowest = loss, standard_error
            return
        mean, error = (mean + loss) / 2, math.hypot(error, standard_error) / 2
        lowest, lowest_error = self._lowest
        lowest += (mean - lowest) * (1 - FORGET)
        self._mean = mean, error
        self._lowest = (mean, error) if mean <= lowest else (lowest, max(error, lowest_error * FORGET))
