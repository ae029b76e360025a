"""Stretches of skipping: the steps in which a run skips what a trial has priced, and what they take of its limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adaptive_rec.saved import Saved

if TYPE_CHECKING:
    from adaptive_rec.tracking.price import Price


class Stretches:
    """A stretch lasts for as many steps as the trial's, or until it has skipped as much, and half as many full steps follow it.
    One begins only while the bound of its price fits what is left of the limit, from which it takes its charge."""

    def __init__(self) -> None:
        self.spent = 0.0
        """What stretches have taken of the limit, which is that of the whole run."""
        self._began = -1
        """The step at which the last stretch began, -1 for none since the last trial."""
        self._ended = -1
        """The step at which it ended, -1 while it lasts."""
        self._skipped = 0
        """Samples that it has skipped, or updates of rows under `freeze`."""

    @property
    def is_under_way(self) -> bool:
        return self._began >= 0 and self._ended < 0

    def forget(self) -> None:
        """Forget the last stretch, but not what was spent: there is another price, or none."""
        self._began = self._ended = -1
        self._skipped = 0

    def end(self, step: int) -> None:
        """End the stretch that is under way, if there is one."""
        if self._ended < 0:
            self._ended = step

    def go_on(self, step: int, price: Price, limit: float) -> bool:
        """Whether the stretch under way goes on in a step; ends it where it does not."""
        if not self.is_under_way:
            return False
        if limit and step < self._began + price.length and self._skipped < price.skipped:
            return True
        self.end(step)
        return False

    def affords(self, price: Price, limit: float) -> bool:
        """Whether another stretch fits the limit."""
        return bool(limit) and self.spent + price.reserve <= limit

    def may_begin(self, step: int, price: Price, limit: float) -> bool:
        """Whether a stretch may begin in a step: full steps have followed the last one, and it fits the limit."""
        rested = self._began < 0 or step >= self._ended + price.length // 2
        return rested and self.affords(price, limit)

    def begin(self, step: int, price: Price) -> None:
        """Begin a stretch, which takes its charge."""
        self.spent += price.charge
        self._began, self._ended, self._skipped = step, -1, 0

    def count(self, skipped: int) -> None:
        """Count what a step of the stretch under way has skipped."""
        self._skipped += skipped

    def state(self) -> dict[str, Any]:
        return {
            "spent": self.spent, "stretch_began": self._began, "stretch_ended": self._ended, "skipped": self._skipped
        }  # fmt: skip

    def set_state(self, found: Saved) -> None:
        self.spent, self._skipped = found.number("spent"), found.integer("skipped")
        self._began, self._ended = found.integer("stretch_began"), found.integer("stretch_ended")
