"""A rule of the watchdog while the run trains: what it has seen, and whether it is broken."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adaptive_rec.config.watch_rule import DISK_FREE, WatchRule
from adaptive_rec.errors import CheckpointError
from adaptive_rec.saved import Saved, parts_by_number
from adaptive_rec.units import size


@dataclass(frozen=True)
class Breach:
    """A rule that is broken now, and was not before."""

    rule: WatchRule
    step: int
    value: float
    sound_step: int
    """The step of the last value for which the rule was kept; 0 where there was none."""
    why: str
    """The metric and what it is compared with, in words."""

    def state(self) -> dict[str, Any]:
        value = {"value": self.value} if math.isfinite(self.value) else {}
        return {
            "rule": self.rule.text,
            "step": self.step,
            "number": value,
            "sound_step": self.sound_step,
            "why": self.why,
        }


def saved_breach(found: Saved, rules: Mapping[str, WatchRule]) -> Breach | None:
    """Read a breach. None where its rule is not one of the `rules`, by their texts, any more."""
    rule = rules.get(found.text("rule"))
    if rule is None:
        found.everything()
        return None
    value = found.numbers("number").get("value", math.nan)
    return Breach(rule, found.integer("step"), value, found.integer("sound_step"), found.text("why"))


class WatchedRule:
    """Judges one value after the other of a rule's metric.

    A rule is broken once: when its condition has held for as long as it says. It may be broken again after a value for which the
    condition does not hold. A value that is no number says nothing, except to `is nan`. Values during a breach do not enter the
    mean.
    """

    def __init__(self, rule: WatchRule) -> None:
        self.rule = rule
        self._sound_step = 0
        self._in_a_row = 0
        """Values in a row for which the condition held."""
        self._broken = False
        """Whether the present breach was reported."""
        self._best: float | None = None
        self._recent: deque[float] = deque(maxlen=rule.mean_of)

    def see(self, step: int, value: float | None, window_steps: int) -> Breach | None:
        """Take a value, of a step, and return the breach that begins with it. None: the metric has no value. `window_steps`: the
        length of a window."""
        if value is None or (math.isnan(value) and self.rule.comparison != "is nan"):
            return None
        why = self._compared(value)
        holds = why is not None
        self._remember(value, holds)
        if why is None:
            self._sound_step, self._in_a_row, self._broken = step, 0, False
            return None
        self._in_a_row += 1
        lasted = step - self._sound_step >= self.rule.lasts * window_steps
        if self._broken or not (lasted if self.rule.unit == "windows" else self._in_a_row >= self.rule.lasts):
            return None
        self._broken = True
        return Breach(self.rule, step, value, self._sound_step, why)

    def _compared(self, value: float) -> str | None:
        """Return what the value is, in words, if the condition holds for it."""
        rule, now = self.rule, f"{self.rule.metric} is {self._shown(value)}"
        match rule.comparison:
            case "is nan":
                return None if math.isfinite(value) else now
            case "<":
                return f"{now}, below {self._shown(rule.value)}" if value < rule.value else None
            case ">":
                return f"{now}, above {self._shown(rule.value)}" if value > rule.value else None
            case "> mean":
                if len(self._recent) < rule.mean_of:
                    return None
                mean = math.fsum(self._recent) / len(self._recent)
                why = f"{now}, the mean of {rule.mean_of} before was {self._shown(mean)}"
                return why if value > rule.value * mean else None
        if self._best is None:
            return None
        far = self._best - value if rule.comparison == "falls below best" else value - self._best
        return f"{now}, the best was {self._shown(self._best)}" if far > rule.value else None

    def _remember(self, value: float, holds: bool) -> None:
        if not math.isfinite(value):
            return
        if self.rule.comparison == "> mean" and not holds:
            self._recent.append(value)
        if self.rule.comparison in ("falls below best", "rises above best"):
            better = max if self.rule.comparison == "falls below best" else min
            self._best = value if self._best is None else better(self._best, value)

    def _shown(self, value: float) -> str:
        return size(value) if self.rule.metric == DISK_FREE else f"{value:.6g}"

    def state(self) -> dict[str, Any]:
        return {
            "sound_step": self._sound_step,
            "in_a_row": self._in_a_row,
            "broken": self._broken,
            "best": {} if self._best is None else {"value": self._best},
            "recent": parts_by_number(self._recent),
        }

    def set_state(self, found: Saved) -> None:
        self._sound_step, self._in_a_row = found.integer("sound_step"), found.integer("in_a_row")
        self._broken = found.flag("broken")
        self._best = found.numbers("best").get("value")
        self._recent = deque(_in_order(found.numbers("recent")), self.rule.mean_of)


def _in_order(numbers: Mapping[str, float]) -> list[float]:
    """Return the values of a list that was saved by its numbers."""
    try:
        return [numbers[str(number)] for number in range(len(numbers))]
    except KeyError as error:
        raise CheckpointError(f"values of a watched rule must be numbered from 0, {error.args[0]} is missing") from None
