"""The base of all policies: what a policy that places rows sees, and what it answers.

A policy wishes and the runtime acts: the guard rails of `adaptive_rec.reclassify` hold for every policy. Policies are plain
NumPy: they do no I/O, touch no device and read no clock. Two kinds of policy have a base with more methods: `SkippingPolicy`
(skipping.py) leaves work out, `ArrangingPolicy` (arranging.py) arranges the stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.saved import Saved


@dataclass(frozen=True)
class AccessView:
    """The popularity of a pool's rows at the end of a window. Rows are numbered in the joint row space. Their arrays cannot be
    changed; `hot_rows` is valid until the policy's answers are carried out, so a policy that remembers it keeps a copy."""

    step: int
    knobs: Knobs
    all_rows: range
    capacity_rows: int
    """Slots of the device tier."""
    candidate_rows: NDArray[np.int64]
    """Cold rows that were looked up lately."""
    candidate_scores: NDArray[np.float64]
    """Estimated lookups of each candidate, decayed."""
    hot_rows: NDArray[np.int64]
    hot_scores: NDArray[np.float64]


@dataclass(frozen=True)
class Wish:
    """Rows a policy would like hot, with scores that rank them. Rows now hot stay unless better ones need their slots."""

    rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    scores: NDArray[np.float64] = field(default_factory=lambda: np.empty(0, dtype=np.float64))


HOLD = Wish()
"""Leaves the placement as it is."""


class Policy:
    """Base of all policies: leaves every row where it is and makes plain steps."""

    name: ClassVar[str]
    exact: ClassVar[bool] = True
    """Whether results equal plain steps on the same batches."""
    tracks_popularity: ClassVar[bool] = False
    """Whether `place` is called at the end of each window, by the lookups that are counted."""
    adapts_memory: ClassVar[bool] = False
    """Whether windows and their decay follow the data. `reclassify_every` is then the unit of their length."""
    request_per_table: ClassVar[bool] = False
    """Whether every table is gathered and updated by a request of its own. Such a policy is chosen before a run, as rows are laid
    out for it."""
    prefetches: ClassVar[bool] = True
    """Whether `prefetch_depth` batches are made ready before their step."""

    tracks_movement: ClassVar[bool] = False
    """Whether it is judged which hot rows have settled, or a phase measures their movement. True for policies that skip."""
    arranges_stream: ClassVar[bool] = False
    """Whether it decides on phases of the stream. True for an `ArrangingPolicy`."""
    reorders_stream: ClassVar[bool] = False
    """Whether its phases change the source's order. Set by an `ArrangingPolicy`."""

    def records_movement(self, knobs: Knobs) -> bool:
        """Return whether each hot row has a record of its movement: under every rule of staleness but `popularity`, and for
        phases that measure movement."""
        return self.tracks_movement and (self.arranges_stream or knobs.stale_metric != "popularity")

    def counts_lookups(self, knobs: Knobs) -> bool:
        """Return whether lookups are counted: for this policy, for a rule of staleness that goes by them, or for raw ids, the
        least popular of which lose their rows."""
        judges = self.tracks_movement and not self.records_movement(knobs)
        return self.tracks_popularity or judges or knobs.evict_ratio > 0

    def budget_bytes(self, knobs: Knobs, all_rows_bytes: int) -> int:
        """Return the device memory for hot rows."""
        return min(knobs.hot_budget_bytes, all_rows_bytes)

    def window_batches(self, knobs: Knobs) -> int:
        """Return how many batches it reads before the first of them is trained, where it arranges the stream and keeps its order.
        With raw ids it may read no more than these ahead of the batches under way."""
        return 0

    def place(self, view: AccessView) -> Wish:
        """Return the rows of a pool that should be hot. Called before the first step and at the end of each window."""
        return HOLD

    def share_budget(self, views: list[AccessView], row_bytes: list[int], budget_bytes: int) -> list[int] | None:
        """Return the slots of each pool within the budget, or None to share it by the pools' part of the lookups.

        Called before `place`.
        """
        return None

    def state(self) -> dict[str, Any]:
        """Return what the policy remembers between two calls, for a checkpoint: numbers, texts, arrays and mappings of them."""
        return {}

    def set_state(self, found: Saved) -> None:
        """Restore what `state` returned; each value is read by its name."""


def fills_budget(slots: list[int], row_bytes: list[int], budget_bytes: int) -> bool:
    """Whether the pools' slots stay within a budget and leave no room for a row more of each."""
    used = sum(count * size for count, size in zip(slots, row_bytes, strict=True))
    return 0 <= budget_bytes - used < sum(row_bytes)
