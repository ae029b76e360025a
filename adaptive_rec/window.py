"""What happens when a window ends: staleness is judged, the policy is asked, guard rails hold, rows move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.device import split_budget
from adaptive_rec.placement import Migration
from adaptive_rec.policy import AccessView
from adaptive_rec.reclassify import plan_migration
from adaptive_rec.telemetry import ratio

if TYPE_CHECKING:
    from adaptive_rec.runtime import Runtime


def fill_tiers(runtime: Runtime) -> None:
    """Place rows before the first step, for policies that know what they want by then."""
    migrate(runtime, max_moved_bytes=1 << 62)


def end_window(runtime: Runtime) -> None:
    """Judge staleness on the window's probe steps, then move rows, then begin a new window.

    The short first windows place rows only: they hold too few probe steps to tell which rows have settled.
    """
    full = runtime.step_number % runtime.knobs.reclassify_every == 0
    if runtime.policy.tracks_movement and full:
        view = runtime.observer.movement_view(runtime.knobs, skipped_ratio(runtime))
        staleness = runtime.policy.find_stale(view)
        runtime.observer.set_stale(staleness.stale_H)
        runtime.stale_threshold = staleness.threshold
        runtime.observer.begin_measuring()
    if runtime.policy.tracks_popularity:
        migration = migrate(runtime, runtime.knobs.max_moved_bytes)
        runtime.observer.tracker.end_window(runtime.knobs.decay, migration)
        runtime.observer.forget_samples()


def skipped_ratio(runtime: Runtime) -> float:
    """Share of the window's popular samples that were skipped, or under `freeze` of its hot row updates."""
    totals = runtime.totals()
    gain = {key: value - runtime.window_start.get(key, 0) for key, value in totals.items()}
    runtime.window_start = totals
    if runtime.knobs.action == "freeze":
        return ratio(gain["row_updates_skipped"], gain["hot_row_updates"])
    return ratio(gain["samples_seen"] - gain["samples_trained"], gain["samples_popular"])


def migrate(runtime: Runtime, max_moved_bytes: int) -> Migration:
    """Ask the policy for each pool and move what the guard rails allow. Returns what moved."""
    store = runtime.store
    all_rows_bytes = sum(pool.rows * size for pool, size in zip(store.space.pools, store.row_bytes, strict=True))
    budget = runtime.policy.budget_bytes(runtime.knobs, all_rows_bytes)
    capacities = split_budget(store.space, store.row_bytes, budget)
    candidates = runtime.observer.tracker.candidates()
    views = [
        runtime.observer.access_view(pool, runtime.step_number, runtime.knobs, candidates)
        for pool in range(len(capacities))
    ]
    if capacities != store.device.capacities:
        runtime.observer.tracker.resize(sum(capacities))
        return store.resize(budget, _ranked(views))
    moved_bytes = max_moved_bytes
    parts = []
    for pool, view in enumerate(views):
        wish = runtime.policy.place(view)
        part = plan_migration(
            wish.rows,
            wish.scores,
            view.hot_rows,
            view.hot_scores,
            view.capacity_rows,
            runtime.knobs.hysteresis,
            moved_bytes // store.row_bytes[pool],
        )
        moved_bytes -= part.moved_rows * store.row_bytes[pool]
        parts.append(part)
    migration = Migration(
        np.concatenate([part.promote for part in parts]), np.concatenate([part.demote for part in parts])
    )
    store.migrate(migration)
    return migration


def _ranked(views: list[AccessView]) -> NDArray[np.int64]:
    """All hot rows and candidates, the most popular first."""
    rows = np.concatenate([part for view in views for part in (view.hot_rows, view.candidate_rows)])
    scores = np.concatenate([part for view in views for part in (view.hot_scores, view.candidate_scores)])
    return rows[np.lexsort((rows, -scores))]
