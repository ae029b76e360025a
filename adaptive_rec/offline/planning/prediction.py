"""What share of the lookups a budget will catch, by a profile of the data; and which budget is worth having by that.

A profile's curve has two answers for each budget: the share caught were all counts known in advance, which no run reaches, and
that of each window caught by the rows with the most lookups before it. The second is what is predicted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.errors import UsageError

NEARLY_RATIO = 0.01
"""Share of the lookups that a budget may miss beside the largest one, and still be said to catch nearly all of them."""


@dataclass(frozen=True)
class Prediction:
    """Of a budget."""

    learned_ratio: float
    """Share of the lookups caught by what was counted before them."""
    known_ratio: float
    """The same where all counts are known in advance: the most that any placement catches which does not change."""


class HotLookups:
    """The curve of a profile, for rows of the run's size."""

    def __init__(self, profile: Mapping[str, Any], row_bytes: Sequence[int]) -> None:
        theirs = profile["data"]["row_bytes"]
        self.samples: int = profile["data"]["samples"]
        self.rows: int = profile["all"]["rows"]
        self.scale = sum(row_bytes) / sum(theirs)
        """How large a row of the run is to one of the profile."""
        self._knee: int = profile["suggested"]["bytes"]
        points = profile["budgets"]
        self._bytes = np.array([0, *(point["bytes"] * self.scale for point in points)])
        self._learned = np.array([0, *(point["learned_ratio"] for point in points)])
        self._known = np.array([0, *(point["hot_lookup_ratio"] for point in points)])

    @staticmethod
    def read(path: Path, row_bytes: Sequence[int]) -> HotLookups:
        """Of a ``profile.json``, or of what `profile --json` printed. Raises UsageError where it is none."""
        try:
            return HotLookups(json.loads(path.read_text(encoding="utf-8")), row_bytes)
        except OSError as error:
            raise UsageError(f"--profile FILE must be readable, {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, IndexError, ZeroDivisionError) as error:
            made = "profile.json of `adaptive-rec profile --out DIR`, of this version"
            raise UsageError(
                f"--profile FILE must be a {made}, {path} is none ({type(error).__name__}: {error})"
            ) from None

    def at(self, budget_bytes: int) -> Prediction:
        """Between two points of the curve by their distance."""
        learned, known = (
            float(np.interp(budget_bytes, self._bytes, ratios)) for ratios in (self._learned, self._known)
        )
        return Prediction(learned, known)

    @property
    def knee_bytes(self) -> int:
        """Beyond it a byte brings less than an average one: what `profile` suggests."""
        return round(self._knee * self.scale)

    def nearly_all(self, most_bytes: int) -> int:
        """The smallest budget of the curve that catches nearly what the largest allowed one does."""
        wanted = self.at(most_bytes).learned_ratio - NEARLY_RATIO
        enough = self._bytes[self._learned >= wanted]
        return min(round(float(enough[0])), most_bytes) if len(enough) else most_bytes
