"""What skipping costs, by paired trials, and what is left of a limit.

In a trial a twin skips for `length` steps and then trains everything for half as many, beside the run, which trains everything. A
difference is the mean loss of a step's samples in the twin, less that in the run, before either has trained on them. Common
samples take their own noise out of it (common random numbers: Law, "Simulation Modeling and Analysis", chapter 11).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.saved import Saved

BLOCK = 8
"""Steps of a block: differences of neighbouring steps are alike, so their noise is judged by blocks."""


@dataclass(frozen=True)
class Price:
    """The cost of a stretch of skipping in log loss, by one trial."""

    length: int
    """Steps of the stretch."""
    during: float
    """Cost while it lasts: mean over its second half."""
    after: float
    """What is left of it: mean over the last half of the full steps that follow."""
    error_during: float
    error_after: float
    """Standard errors."""
    quantile: float
    """Of Student's t, one-sided, 95 %."""
    skipped: int
    """Samples that the stretch skipped, or updates of rows under `freeze`."""
    seen: int
    """Samples, or updates of rows, that there were."""
    chance: float = math.nan
    """`during` of a twin that skipped as many at random; NaN where there was none."""
    chance_after: float = math.nan

    @property
    def most(self) -> float:
        """The one-sided 95 % bound of the cost, of the larger of both."""
        return max(self.during + self.quantile * self.error_during, self.after + self.quantile * self.error_after)

    def state(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(found: Saved) -> Price:
        """Read what `state` returned."""
        whole = {name: found.integer(name) for name in ("length", "skipped", "seen")}
        rest = {name: found.number(name) for name in Price.__dataclass_fields__ if name not in whole}
        return Price(**whole, **rest)  # type: ignore[arg-type]

    @property
    def cost(self) -> float:
        """The larger of both costs."""
        return max(self.during, self.after)

    @property
    def least(self) -> float:
        """The one-sided 95 % lower bound of the cost, of the larger of both."""
        return max(self.during - self.quantile * self.error_during, self.after - self.quantile * self.error_after)

    @property
    def charge(self) -> float:
        """What a stretch takes of the limit: at least one standard error, as a cost below 0 is noise that the next stretches do
        not have."""
        return max(0.0, self.after) + self.error_after

    @property
    def reserve(self) -> float:
        """What must be left of the limit for a stretch to begin."""
        return max(self.most, self.charge)


def price_of(
    difference_K: NDArray[np.float64], length: int, pooled: Pooled, skipped: int, seen: int, chance_K: NDArray[np.float64] | None
) -> Price:
    """Return the price by the differences of a trial's steps (1.5 `length`), and add their noise to that of earlier trials."""
    during_B, after_B = _blocks(difference_K, length)
    pooled.add(during_B)
    pooled.add(after_B)
    error = math.sqrt(pooled.variance)
    chance = (math.nan, math.nan) if chance_K is None else tuple(float(part.mean()) for part in _blocks(chance_K, length))
    return Price(
        length, float(during_B.mean()), float(after_B.mean()), error / math.sqrt(len(during_B)), error / math.sqrt(len(after_B)),
        t_bound(pooled.freedom), skipped, seen, *chance,
    )  # fmt: skip


def verdict_text(price: Price, limit: float, spent: float) -> str:
    """Return what a trial has found, as a sentence. `spent`: what stretches have taken of the limit."""
    if not price.skipped:
        return f"a trial of {price.length} steps: the plan skipped nothing, so there is no price"
    chance = "" if math.isnan(price.chance) else f"; as much at random costs {_nats(price.chance)}"
    follows = "stretches are skipped" if spent + price.reserve <= limit else "everything is trained"
    return (
        f"a trial of {price.length} steps: skipping {price.skipped / price.seen:.1%} costs {_nats(price.during)} of "
        f"logloss meanwhile, {_nats(price.after)} after {price.length // 2} full steps, at most {_nats(price.most)} (95 %)"
        f"{chance}; {_nats(limit - spent)} of the limit is left, so {follows}"
    )


def _nats(value: float) -> str:
    return f"{1e3 * value:.2f}e-3"


def _blocks(difference_K: NDArray[np.float64], length: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the block means of the second half of the skipping, and of the last half of the full steps. Blocks of short trials
    are shorter, so that there are some."""
    block = max(1, min(BLOCK, length // 10))
    during, after = difference_K[length // 2 : length], difference_K[length + length // 4 : length + length // 2]
    first, second = (part[len(part) % block :].reshape(-1, block).mean(axis=1) for part in (during, after))
    return first, second


@dataclass
class Pooled:
    """The variance of block means within trials, of all trials together."""

    squares: float = 0.0
    freedom: int = 0

    def add(self, mean_B: NDArray[np.float64]) -> None:
        self.squares += float(np.square(mean_B - mean_B.mean()).sum())
        self.freedom += len(mean_B) - 1

    def state(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def variance(self) -> float:
        return self.squares / self.freedom if self.freedom else math.inf


def t_bound(freedom: int) -> float:
    """Return the 95 % quantile of Student's t (Cornish and Fisher's expansion, Abramowitz and Stegun 26.7.5; to 0.5 % from 3
    degrees of freedom on)."""
    z, v = 1.6448536, max(1, freedom)
    terms = (
        (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )  # fmt: skip
    return z + sum(term / v ** (power + 1) for power, term in enumerate(terms))
