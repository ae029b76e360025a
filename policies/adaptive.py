"""Adaptive: Slipstream made careful. It is our own policy, for data that drift and logs long enough to skip.

From Hotline it takes the hot set and exact micro-batches, from Slipstream (arXiv 2404.04270) staleness. Its staleness rule has a
natural unit (`signal_to_noise`: about 1 for a row whose gradients are noise around zero), so only rows that have settled are
stale, be they many or few. Its skipping (`subsample`) keeps the expected gradient as it is. New are three things. How long
popularity is remembered follows the data (`tracking.horizon`). So do the pools' shares of the budget. And a guard
(`adaptive_rec.reclassify.quality_guard`) watches the loss of samples that are never skipped. Everything is trained until they
show that the loss neither falls nor rises by more than a knob allows (`tracking.level`); then stale samples are skipped in every
other block. It cannot tell a loss that rises because of skipping from one that rises because the stream changed; in both cases
rows have to move again.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.policies.slipstream import Slipstream
from adaptive_rec.policy import (
    AccessView,
    BatchView,
    MovementView,
    QualityView,
    Staleness,
    StepPlan,
    Verdict,
    fills_budget,
    whole_or_split,
)
from adaptive_rec.policy.plans import thin
from adaptive_rec.saved import Saved
from adaptive_rec.tracking.level import LossLevel

SETTLED = 1.5
"""Signal to noise below which a row has settled. Noise alone gives about 1, for any number of touches."""

NEARLY = 0.03
"""Distance from the knob at which the chance to keep a sample becomes the knob's."""

BACK = 0.5
"""Share of the way back to the knob that the chance covers at each judgement."""

NOTICEABLE = 0.02
"""Relative gain that a new sharing of the budget must bring, as changing it moves all hot rows."""


class Adaptive(Slipstream):
    name = "adaptive"
    adapts_memory = True
    guards_quality = True

    def __init__(self) -> None:
        super().__init__()
        self._keep: float | None = 1.0
        """Chance to train a stale sample; None is the knob's. It is 1 in blocks that skip nothing."""
        self._reported = False
        """Whether it was reported how many samples the guard needs."""
        self._level = LossLevel()

    def state(self) -> dict[str, Any]:
        own = {"at_knob": self._keep is None, "keep": self._keep or 0.0, "reported": self._reported}
        return {**super().state(), **own, "level": self._level.state()}

    def set_state(self, found: Saved) -> None:
        super().set_state(found)
        if found.has("wait"):  # of 0.1.0, whose guard skipped without proof: this one begins anew
            for name in ("at_knob", "keep", "wait", "quiet", "level"):
                found.ignore(name)
            return
        at_knob, keep = found.flag("at_knob"), found.number("keep")
        self._keep = None if at_knob else keep
        self._reported = found.flag("reported")
        self._level.set_state(found.part("level"))

    def share_budget(self, views: list[AccessView], row_bytes: list[int], budget_bytes: int) -> list[int] | None:
        """Give slots to the rows with the most estimated lookups, in any pool: a lookup of a hot row saves about as many bytes
        on the link as its slot takes. Other shares than the present ones must save noticeably more."""
        if len(views) < 2:
            return None
        scores = [-np.sort(-np.concatenate([view.hot_scores, view.candidate_scores])) for view in views]
        pool = np.repeat(np.arange(len(views)), [len(part) for part in scores])
        best = np.argsort(-np.concatenate(scores), kind="stable")
        cost = np.cumsum(np.asarray(row_bytes)[pool[best]])
        if not len(cost) or cost[-1] < budget_bytes:
            return None  # too few rows are known to fill it
        wished = np.bincount(pool[best[cost <= budget_bytes]], minlength=len(views)).tolist()
        present = [view.capacity_rows for view in views]

        def saved(slots: list[int]) -> float:
            return sum(
                size * float(part[:count].sum()) for size, part, count in zip(row_bytes, scores, slots, strict=True)
            )

        fits = fills_budget(present, row_bytes, budget_bytes)
        return present if fits and saved(wished) < (1 + NOTICEABLE) * saved(present) else wished

    def chance(self, knobs: Knobs) -> float:
        """Return the chance to train a sample that mostly touches stale rows."""
        return knobs.keep_probability if self._keep is None else max(self._keep, knobs.keep_probability)

    def plan(self, view: BatchView) -> StepPlan:
        guard_B, chance = view.draw_B() < view.knobs.guard_ratio, self.chance(view.knobs)
        left = (1 - chance) / (1 - view.knobs.keep_probability)  # share of the skipping that the guard allows
        if view.knobs.action == "freeze":
            frozen_U = view.stale_U & (view.draw_U() < left)
            return StepPlan(whole_or_split(view), frozen_U=frozen_U, guard_B=guard_B)
        skippable_B = self.skippable(view) & ~guard_B
        if view.knobs.action == "drop":
            skippable_B &= view.draw_B() < left
            return StepPlan(whole_or_split(view, ~skippable_B), guard_B=guard_B)
        return replace(thin(view, skippable_B, chance), guard_B=guard_B)

    def find_stale(self, view: MovementView) -> Staleness:
        knobs = view.knobs
        if knobs.stale_metric != "signal_to_noise" or knobs.stale_threshold != "search" or not knobs.target_skip_ratio:
            return super().find_stale(view)  # a given threshold, or a rule without a unit
        return Staleness(view.movement_H < SETTLED, SETTLED)

    def judge_quality(self, view: QualityView) -> Verdict | None:
        if view.samples < 2:
            return None
        knobs, limit = view.knobs, view.knobs.guard_max_logloss_increase
        before = self.chance(knobs)
        found = self._level.take(view.samples, view.logloss, view.standard_error, limit)
        self._keep = 1.0
        if self._level.lets_skip:
            now = before + (knobs.keep_probability - before) * BACK
            self._keep = now if now - knobs.keep_probability > NEARLY else None
        after = self.chance(knobs)
        if not self._reported and math.isfinite(view.standard_error):
            self._reported = True
            return Verdict(after, self._level.outlook(limit, knobs.guard_ratio * (1 - knobs.probe_ratio)))
        if not found:
            return None
        return Verdict(
            after, f"the guard's logloss {found}: stale samples are kept with chance {after:.2f} (before {before:.2f})"
        )


POLICY = Adaptive
