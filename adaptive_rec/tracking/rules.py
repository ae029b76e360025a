"""These rules tell which hot rows have settled. Each gives every row a number, the smaller the staler.

A row is stale where its number lies under a threshold (`tracking.stale` finds one). `popularity` goes by the lookups that the
sketch counts. All others see what the update-delta monitor recorded on a window's probe steps, and need no pass over all rows.
Rows touched too seldom are left out before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RowMovement:
    """Movement of each slot's row over the probe steps that touched it. Lengths in the unit of the weights."""

    max_abs_H: Array
    """Largest component of the net displacement."""
    net_H: Array
    """Length of the net displacement."""
    row_H: Array
    """Length of the row now."""
    square_H: Array
    """Sum of the squares of the lengths of all displacements."""
    touches_H: NDArray[np.int64]
    """Probe steps that touched the row."""

    @staticmethod
    def of(measured_H4: NDArray[Any], touches_H: NDArray[Any]) -> RowMovement:
        """Make it of a monitor's numbers."""
        max_abs_H, net_H, row_H, square_H = measured_H4.astype(np.float64).T
        return RowMovement(max_abs_H, net_H, row_H, square_H, touches_H.astype(np.int64))


def max_abs(rows: RowMovement) -> Array:
    """Largest component of the net displacement: the published rule (Slipstream, arXiv 2404.04270)."""
    return rows.max_abs_H


def relative_l2(rows: RowMovement) -> Array:
    """Length of the net displacement as a share of the row's length."""
    return rows.net_H / (rows.row_H + np.finfo(np.float64).tiny)


def per_touch(rows: RowMovement) -> Array:
    """Largest component of the net displacement, divided by touches, so that a seldom touched row does not look settled."""
    return rows.max_abs_H / np.maximum(rows.touches_H, 1)


def step_length(rows: RowMovement) -> Array:
    """Length of a displacement (root mean square): how far one more update takes the row."""
    return np.sqrt(rows.square_H / np.maximum(rows.touches_H, 1))


def net_over_path(rows: RowMovement) -> Array:
    """Net displacement over the length of the path, of steps of one length: 1 for a steady move, about 1 / sqrt(touches) for a
    random one."""
    return _ratio(rows.net_H, np.sqrt(rows.square_H * rows.touches_H))


def signal_to_noise(rows: RowMovement) -> Array:
    """Squared net displacement over the sum of squares: about 1 for noise around zero, `touches` where all point one way."""
    return _ratio(rows.net_H**2, rows.square_H)


def _ratio(part_H: Array, whole_H: Array) -> Array:
    """Return part over whole, 0 where a touched row did not move at all."""
    return np.divide(part_H, whole_H, out=np.zeros_like(part_H), where=whole_H != 0)


RULES: dict[str, Callable[[RowMovement], Array]] = {
    rule.__name__: rule
    for rule in (max_abs, relative_l2, per_touch, step_length, net_over_path, signal_to_noise)
}
"""By the names that `knobs.stale_metric` takes, besides `popularity`, which needs no record."""


def popularity(lookups_H: Array, steps: float) -> Array:
    """Return the steps between two lookups of each row, of which `lookups_H` were counted in so many steps: the most popular rows
    had the most updates. Infinite for a row without lookups."""
    return np.divide(steps, lookups_H, out=np.full(len(lookups_H), np.inf), where=lookups_H > 0)


def expected_touches(lookups_H: Array, steps: float) -> NDArray[np.int64]:
    """Return how many of the steps touched each row, if its lookups fell on them by chance (as of a Poisson process)."""
    return np.rint(-steps * np.expm1(-lookups_H / steps)).astype(np.int64) if steps else np.zeros(len(lookups_H), np.int64)
