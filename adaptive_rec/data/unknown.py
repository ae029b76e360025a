"""How many lookups of new rows are of values that a model does not know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Unknown:
    """Lookups of a column, and those of values that are new to the model, or too rare: they read a shared row, or none."""

    lookups: int = 0
    unknown: int = 0

    def count(self, lookups: int, unknown: int) -> None:
        self.lookups += lookups
        self.unknown += unknown

    @property
    def ratio(self) -> float:
        return round(self.unknown / max(1, self.lookups), 6)
