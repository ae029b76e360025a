"""This module decides whether a loss is level, from repeated noisy measurements.

The loss counts as level only where that is shown: two blocks of samples, one after the other, must lie so close together that
the bounds of the rise and of the fall, of 95 % each, are within the limit (two one-sided tests: Schuirmann, "A comparison of the
two one-sided tests procedure", J. Pharmacokinet. Biopharm. 15, 1987). A difference that noise may hide is not level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from adaptive_rec.saved import Saved
from adaptive_rec.units import count

ONE_SIDED = 1.645
"""Standard errors of a one-sided bound of 95 %."""

POWER = 0.5
"""Share of the limit that the noise of a whole block's comparison takes: a level loss then passes nine times in ten."""

LEAST = 4
"""Measurements of a block at least: they also show how far the data differ from one to the next."""

ALARM = 4.5
"""Standard errors beyond the limit at which one measurement is an alarm: fewer than one in 100,000 is a false one, for a
block may hold hundreds."""

NO_NUMBER = "is no finite number"


@dataclass
class Block:
    """Sums over the measurements since a block began, in nats and samples."""

    windows: int = 0
    samples: int = 0
    total: float = 0.0
    within: float = 0.0
    """Sum of the squared distances of losses to the mean of their measurement."""
    between: float = 0.0
    """Sum of the squared steps from one measurement to the next, each in the variance of a sample's loss that it suggests."""
    last_samples: int = 0
    last_loss: float = 0.0

    def add(self, samples: int, loss: float, standard_error: float) -> None:
        if self.windows:
            self.between += (loss - self.last_loss) ** 2 / (1 / samples + 1 / self.last_samples)
        self.windows += 1
        self.samples += samples
        self.total += samples * loss
        self.within += samples * (samples - 1) * standard_error**2
        self.last_samples, self.last_loss = samples, loss

    @property
    def mean(self) -> float:
        return self.total / self.samples

    @property
    def variance(self) -> float:
        """Variance of a sample's loss. It is larger where measurements differ by more than the noise of their samples: the data
        become harder and easier."""
        return max(self.within / max(1, self.samples - self.windows), self.between / max(1, self.windows - 1))

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.variance / self.samples)


class LossLevel:
    """Compares blocks of guard samples: a reference, and the one that is being filled.

    While the loss is not shown to be level, nothing may be skipped. Once it is, blocks take turns: in one samples may be skipped,
    in the next everything is trained, so that the loss shows what skipping held back. Every block is compared with the
    reference. It stays while the loss is level, so that small changes add up; otherwise the block takes its place."""

    def __init__(self) -> None:
        self._reference, self._block = Block(), Block()
        self.lets_skip = False
        """Whether samples may be skipped until the next measurement."""

    def take(self, samples: int, loss: float, standard_error: float, limit: float) -> str:
        """Take in a measurement, in samples and nats. Returns why `lets_skip` changed, or nothing where it did not."""
        before = self.lets_skip
        found = self._far_off(loss, standard_error, limit)
        if found:
            self._reference, self._block = Block(), Block()
        if found != NO_NUMBER:
            self._block.add(samples, loss, standard_error)
        if not found and before:
            found = self._leaving(limit)
        if found:
            self.lets_skip = False
        elif self._is_full(limit):
            found = self._end_block(limit)
            self.lets_skip = not found and not before
            if not found:
                found = "was level: a block without skipping shows what that held back" if before else "is level"
        return found if self.lets_skip != before else ""

    def outlook(self, limit: float, guarded_ratio: float) -> str:
        """Say how many samples pass before one may be skipped, if `guarded_ratio` of them are the guard's."""
        if not limit:
            return "nothing is skipped: no number of samples proves a limit of 0"
        if not guarded_ratio:
            return "nothing is skipped: every step is a probe step (knobs.probe_ratio is 1), so the guard gets no more samples"
        least, block = LEAST * self._block.samples / max(1, self._block.windows), self._block
        left = 2 * max(least, samples_needed(block.variance, limit)) - block.samples
        return (
            f"nothing is skipped for at least about {count(left / guarded_ratio)} samples: the guard needs them to tell a change "
            f"of the logloss by {limit:g} from noise"
        )

    def state(self) -> dict[str, Any]:
        blocks = {"reference": vars(self._reference).copy(), "block": vars(self._block).copy()}
        return {"lets_skip": self.lets_skip, **blocks}

    def set_state(self, found: Saved) -> None:
        self.lets_skip = found.flag("lets_skip")
        self._reference, self._block = _block(found.part("reference")), _block(found.part("block"))

    def _far_off(self, loss: float, standard_error: float, limit: float) -> str:
        """Return what is wrong with a measurement by itself: it is far from the others, or no finite number."""
        if not (math.isfinite(loss) and math.isfinite(standard_error)):
            return NO_NUMBER
        for block in (self._reference, self._block):
            if block.samples:
                rise, noise = loss - block.mean, ALARM * math.hypot(standard_error, block.standard_error)
                if abs(rise) > limit + noise:
                    return _moved(rise, block.mean, noise)
        return ""

    def _leaving(self, limit: float) -> str:
        """Return how the block so far has left the reference: by so much that the bound would be broken at its end even if the
        rest of it lay at the reference. Then the blocks begin anew."""
        reference, block = self._reference, self._block
        whole = max(block.samples, samples_needed(reference.variance, limit))
        rise = block.mean - reference.mean
        noise = ONE_SIDED * math.hypot(reference.standard_error, math.sqrt(reference.variance / whole))
        if abs(rise) * block.samples / whole + noise <= limit:
            return ""
        self._reference, self._block = Block(), Block()
        return _moved(rise, reference.mean, noise)

    def _is_full(self, limit: float) -> bool:
        return self._block.windows >= LEAST and self._block.samples >= samples_needed(self._block.variance, limit)

    def _end_block(self, limit: float) -> str:
        """Compare the full block with the reference and begin another one. Returns why the loss is not level, or nothing."""
        reference, block, found = self._reference, self._block, "is not known yet"
        if reference.samples:
            rise = block.mean - reference.mean
            noise = ONE_SIDED * math.hypot(block.standard_error, reference.standard_error)
            found = _moved(rise, reference.mean, noise) if abs(rise) + noise > limit else ""
        self._block = Block()
        if found:
            self._reference = block
        return found


def samples_needed(variance: float, limit: float) -> float:
    """Return the samples of a block: those that keep the noise of two blocks' difference within `POWER` of the limit."""
    noise = POWER * limit / ONE_SIDED
    return 2 * variance / noise / noise if noise else math.inf


def _moved(rise: float, level: float, noise: float) -> str:
    way = "rose" if rise > 0 else "fell"
    return f"{way} by {abs(rise):.4f} from {level:.4f}, with a noise of {noise:.4f}"


def _block(found: Saved) -> Block:
    windows, samples, last_samples = (found.integer(name) for name in ("windows", "samples", "last_samples"))
    total, within, between, last_loss = (found.number(name) for name in ("total", "within", "between", "last_loss"))
    return Block(windows, samples, total, within, between, last_samples, last_loss)
