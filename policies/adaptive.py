"""Adaptive: Slipstream made careful. It is our own policy, for data that drift and logs long enough to skip.

From Hotline it takes the hot set and exact micro-batches, from Slipstream (arXiv 2404.04270) staleness and what is skipped. By
the rule `signal_to_noise`, which has a natural unit (about 1 for a row whose gradients are noise around zero), only rows that
have settled are stale, be they many or few. New are three things. How long popularity is remembered follows the data
(`tracking.horizon`). So do the pools' shares of the budget. And nothing is skipped whose price is not known: paired trials find
what a stretch of skipping costs (`runtime.skipping_guard`), and the run skips only while that fits a limit.
"""

from __future__ import annotations

import numpy as np

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.policies.slipstream import Slipstream
from adaptive_rec.policy import AccessView, MovementView, Staleness, fills_budget
from adaptive_rec.policy.plans import share_skipped
from adaptive_rec.saved import Saved
from adaptive_rec.tracking.stale import stale_lookups_needed

SETTLED = 1.5
"""Signal to noise below which a row has settled. Noise alone gives about 1, for any number of touches."""

NOTICEABLE = 0.02
"""Relative gain that a new sharing of the budget must bring, as changing it moves all hot rows."""


class Adaptive(Slipstream):
    name = "adaptive"
    adapts_memory = True
    guards_quality = True

    def set_state(self, found: Saved) -> None:
        super().set_state(found)
        for name in ("at_knob", "keep", "wait", "quiet", "reported", "level"):  # of guards of earlier versions: it begins anew
            if found.has(name):
                found.ignore(name)

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

    def reads_stale_lookups(self, knobs: Knobs) -> bool:
        searches = knobs.stale_threshold == "search" and knobs.target_skip_ratio > 0 and knobs.stale_metric != "signal_to_noise"
        return searches and knobs.action != "freeze"

    def find_stale(self, view: MovementView) -> Staleness:
        knobs = view.knobs
        if knobs.stale_metric != "signal_to_noise" or knobs.stale_threshold != "search" or not knobs.target_skip_ratio:
            return super().find_stale(view)  # a given threshold, or a rule without a unit
        return Staleness(view.movement_H < SETTLED, SETTLED)

    def skipped_share(self, view: MovementView) -> float:
        """Return the share that a window of skipping would have left out: the run itself skips in stretches alone."""
        if view.knobs.action == "freeze":
            return share_skipped(view.knobs, view.touches_H[view.stale_H].sum() / max(1, view.touches_H.sum()))
        lookups_S = np.diff(view.sample_offsets)
        stale_S = np.add.reduceat(np.append(view.sample_stale_L, False), view.sample_offsets[:-1], dtype=np.int64)
        marked_S = (lookups_S > 0) & (stale_S >= stale_lookups_needed(lookups_S, view.knobs.alpha))
        return share_skipped(view.knobs, marked_S.sum() / max(1, len(marked_S)))


POLICY = Adaptive
