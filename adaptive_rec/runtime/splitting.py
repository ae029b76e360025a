"""The choice whether a step runs its popular samples as a separate micro-batch, made by timing both ways.

A split batch computes its popular samples while the cold rows of the others are still on their way (Hotline, ISCA 2024). A whole
batch waits for its cold rows, but those were sent ahead, and one large micro-batch costs less than two small ones. Which way is
faster depends on the device, the model and the share of popular samples, so both are tried. The journal has the choice with the
times that decided it, and a replay takes it from there: results repeat bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from adaptive_rec.saved import Saved, parts_by_number

BLOCK_STEPS = 16
"""Steps run one way in a row. The first `UNTIMED_STEPS` are not timed, as the device still works on earlier steps."""

UNTIMED_STEPS = 6

BLOCKS = 6
"""Blocks of a trial, whole and split in turn, the first one whole."""

TRIAL_EVERY_STEPS = 5000
"""Steps between two trials: the share of popular samples drifts."""


@dataclass(frozen=True)
class TrialTimes:
    """Seconds of a step, run whole and run split, as a trial measured them."""

    whole_seconds: float
    split_seconds: float

    @property
    def split(self) -> bool:
        return self.split_seconds < self.whole_seconds


@dataclass
class _Trial:
    first_step: int
    block_began: float = 0.0
    seconds: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    """Seconds of a step in each block, whole and split."""


class Splitting:
    """The choice between whole and split batches.

    `wanted`: always, never, or auto, which holds trials where it `tries`, and else never splits.
    """

    def __init__(self, wanted: str, tries: bool, replaying: bool = False) -> None:
        self.chosen = wanted == "always"
        """Whether steps split, outside of trials."""
        self.measured = wanted == "auto" and tries
        self._replaying = replaying
        """Whether choices come from a journal: trials are held, as they shape steps, but their times decide nothing."""
        self._trial: _Trial | None = None
        self._next_trial = 0

    def at(self, step: int) -> bool:
        """Whether this step splits."""
        if self._trial is None:
            return self.chosen
        return bool((step - self._trial.first_step) // BLOCK_STEPS % 2)

    def begin_trial(self, step: int) -> None:
        """Try both ways in the next steps, if a choice is to be made and no trial was held lately."""
        if self.measured and self._trial is None and step >= self._next_trial:
            self._trial = _Trial(step)
            self._next_trial = step + TRIAL_EVERY_STEPS

    def choose(self, split: bool) -> None:
        """Split from now on or not, as the journal of a replayed run says."""
        self.chosen = split

    def forget(self) -> None:
        """Hold a trial soon, as something changed that the choice depends on."""
        self._trial, self._next_trial = None, 0

    def state(self) -> dict[str, Any]:
        trial = self._trial
        return {
            "chosen": self.chosen,
            "next_trial": self._next_trial,
            "trial": trial
            and {
                "first_step": trial.first_step,
                "block_began": trial.block_began,
                "seconds": parts_by_number({"seconds": parts_by_number(way)} for way in trial.seconds),
            },
        }

    def set_state(self, found: Saved) -> None:
        """Restore the choice where this run would measure it too; otherwise the configuration decides."""
        chosen, next_trial, trial = found.flag("chosen"), found.integer("next_trial"), found.maybe("trial")
        held = None
        if trial is not None:
            ways = [list(way.numbers("seconds").values()) for way in trial.parts("seconds", 2)]
            held = _Trial(trial.integer("first_step"), trial.number("block_began"), (ways[0], ways[1]))
        if self.measured:
            self.chosen, self._next_trial, self._trial = chosen, next_trial, held

    def after_step(self, steps: int, clock: float) -> TrialTimes | None:
        """Note that `steps` steps were done at `clock` seconds. Returns the times of a trial that ends here and decides."""
        trial = self._trial
        if trial is None:
            return None
        block, done = divmod(steps - trial.first_step, BLOCK_STEPS)
        if done == UNTIMED_STEPS:
            trial.block_began = clock
        elif done == 0 and block:
            seconds = (clock - trial.block_began) / (BLOCK_STEPS - UNTIMED_STEPS)
            trial.seconds[(block - 1) % 2].append(seconds)
        if block < BLOCKS:
            return None
        self._trial = None
        outcome = TrialTimes(*(median(seconds) for seconds in trial.seconds))
        if self._replaying:
            return None
        self.chosen = outcome.split
        return outcome
