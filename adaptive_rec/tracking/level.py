"""Whether a loss that is measured again and again, each time with noise, is level."""

from __future__ import annotations

import math
from typing import Any

from adaptive_rec.saved import Saved

SURE = 3.0
"""Standard errors that a change must exceed: about one false alarm in 700 measurements."""

FORGET = 0.9
"""What a measurement leaves of the distance between the lowest loss of late and the present one."""


class LossLevel:
    """The loss of the last few measurements and the lowest of late, with standard errors. Nats."""

    def __init__(self) -> None:
        self._mean = self._lowest = (math.inf, 0.0)

    def take(self, loss: float, standard_error: float, limit: float) -> str:
        """Take in a measurement; returns what the loss does, empty where it is level: neither risen nor fallen by more than
        `limit` and noise together. What is no finite number is told and forgotten."""
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
        """The level goes down at once and up by and by, so that it follows a stream that has changed."""
        mean, error = self._mean
        if math.isinf(mean):
            self._mean = self._lowest = loss, standard_error
            return
        mean, error = (mean + loss) / 2, math.hypot(error, standard_error) / 2
        lowest, lowest_error = self._lowest
        lowest += (mean - lowest) * (1 - FORGET)
        self._mean = mean, error
        self._lowest = (mean, error) if mean <= lowest else (lowest, max(error, lowest_error * FORGET))
