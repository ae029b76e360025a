"""Progressive validation: the loss of samples drawn at random and never skipped, taken before they are trained.

Skipped samples leave the stream, so the loss of the trained samples does not show what skipping costs. The guard's samples show
it. (Blum, Kalai and Langford, "Beating the hold-out", COLT 1999, on why a sample may be trained after it was scored.)
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.policy import QualityView
from adaptive_rec.saved import Saved
from adaptive_rec.system.group import ALONE, Group

BEHIND_LIMIT = 8
"""Micro-batches whose losses may still be on their way from the device."""
WEIGHTED_SUMS = 5


class QualityGuard:
    """Adds up the losses of the guard's samples in a window. Losses arrive from the device some steps later."""

    def __init__(self) -> None:
        self._coming: deque[tuple[Fetched, NDArray[np.int64], NDArray[np.float32] | None]] = deque()
        self._begin()

    def _begin(self) -> None:
        self._samples, self._sum, self._squares = 0, 0.0, 0.0
        self._weighted: NDArray[np.float64] | None = None
        """Sums over samples that have weights: weight, weight x loss, and weight squared times 1, loss, and loss squared."""

    def add(self, losses_S: Fetched, lines: NDArray[np.int64], weights: NDArray[np.float32] | None = None) -> None:
        """Add the losses of a micro-batch; `lines` are the numbers of the guard's samples in it, `weights` theirs."""
        self._coming.append((losses_S, lines, weights))
        while self._coming and (len(self._coming) > BEHIND_LIMIT or self._coming[0][0].is_here()):
            self._take()

    def end_window(self, knobs: Knobs, group: Group = ALONE) -> QualityView:
        """Return the mean loss of the window's samples on all ranks, and its error, and start a new window."""
        while self._coming:
            self._take()
        count, total, squares = group.total(np.array([self._samples, self._sum, self._squares])).tolist()
        samples = int(count)
        if group.any_true(self._weighted is not None):
            weighted = group.total(np.zeros(WEIGHTED_SUMS) if self._weighted is None else self._weighted)
            self._begin()
            return _weighted_view(knobs, samples, weighted)
        self._begin()
        if samples < 2:
            return QualityView(knobs, samples, math.nan, math.inf)
        mean = total / samples
        variance = (squares / samples - mean * mean) * samples / (samples - 1)
        return QualityView(knobs, samples, mean, math.sqrt(0.0 if variance < 0 else variance / samples))

    def state(self) -> dict[str, Any]:
        """Return the sums, after waiting for losses that are on their way."""
        while self._coming:
            self._take()
        weighted = {} if self._weighted is None else {"weighted": self._weighted}
        return {"samples": self._samples, "sum": self._sum, "squares": self._squares, **weighted}

    def set_state(self, found: Saved) -> None:
        self._weighted = found.array("weighted", np.float64, WEIGHTED_SUMS) if found.has("weighted") else None
        self._samples = found.integer("samples")
        self._sum, self._squares = found.number("sum"), found.number("squares")

    def _take(self) -> None:
        losses_S, lines, weights = self._coming.popleft()
        losses = losses_S.array()[lines].astype(np.float64)
        self._samples += len(losses)
        if weights is not None:
            weight = weights.astype(np.float64)
            square = weight * weight
            sums = weight.sum(), weight @ losses, square.sum(), square @ losses, square @ (losses * losses)
            self._weighted = np.array(sums) + (0.0 if self._weighted is None else self._weighted)
            return
        self._sum += float(losses.sum())
        self._squares += float(losses @ losses)


def _weighted_view(knobs: Knobs, samples: int, sums: NDArray[np.float64]) -> QualityView:
    """Return the weighted mean of losses and its standard error, that of a ratio of two sums (Cochran, "Sampling Techniques",
    1977, chapter 6)."""
    weight, weighted, squares, squares_losses, squares_losses2 = sums.tolist()
    if samples < 2 or not weight > 0:
        return QualityView(knobs, samples, math.nan, math.inf)
    mean = weighted / weight
    apart = squares_losses2 - 2 * mean * squares_losses + mean * mean * squares
    return QualityView(knobs, samples, mean, math.sqrt(max(0.0, apart) * samples / (samples - 1)) / weight)
