"""The share of lookups that a budget will catch, and the cold rows of a batch, predicted from a profile of the data.

A profile's curve has two shares for each budget: one if all counts were known in advance, which no run reaches, and one for each
window caught by the rows with the most lookups before it. The second one is the prediction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.errors import UsageError


@dataclass(frozen=True)
class Prediction:
    """The predicted hot lookups of a budget."""

    learned_ratio: float
    """Share of the lookups caught by rows chosen from earlier counts."""
    known_ratio: float
    """Share caught if all counts are known in advance: the most of any placement that does not change."""
    cold_rows: float
    """Distinct rows of a batch that rows chosen from earlier counts do not have."""


class HotLookups:
    """The curve of a profile, scaled to the size of the run's rows."""

    def __init__(self, profile: Mapping[str, Any], row_bytes: Sequence[int]) -> None:
        theirs = profile["data"]["row_bytes"]
        self.samples: int = profile["data"]["samples"]
        self.rows: int = profile["all"]["rows"]
        self.scale = sum(row_bytes) / sum(theirs)
        """Size of a row of the run over that of the profile."""
        self.batch_size: int = profile["data"]["batch_size"]
        self.batch_rows: float = profile["data"]["batch_rows"]
        """Distinct rows of a batch of so many samples."""
        self._suggested: int = profile["suggested"]["bytes"]
        points = profile["budgets"]
        self._bytes = np.array([0, *(point["bytes"] * self.scale for point in points)])
        self._learned = np.array([0, *(point["learned_ratio"] for point in points)])
        self._known = np.array([0, *(point["hot_lookup_ratio"] for point in points)])
        self._cold = np.array([self.batch_rows, *(point["cold_rows"] for point in points)])

    @staticmethod
    def read(path: Path, row_bytes: Sequence[int]) -> HotLookups:
        """Read a ``profile.json`` or the output of `profile --json`. Raises UsageError where the file is neither."""
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
        """Return the prediction for a budget, interpolated between the points of the curve."""
        curves = (self._learned, self._known, self._cold)
        return Prediction(*(float(np.interp(budget_bytes, self._bytes, values)) for values in curves))

    @property
    def suggested_bytes(self) -> int:
        """The budget that `profile` suggests."""
        return round(self._suggested * self.scale)
