"""What a policy sees at the end of a window: plain NumPy views of which rows are popular, and which hot rows moved."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.kernels.ranking import are_hot
from adaptive_rec.policy import AccessView, MovementView
from adaptive_rec.reclassify.popular_samples import PopularSamples
from adaptive_rec.tracking.popularity import PopularityTracker
from adaptive_rec.tracking.rules import RULES, expected_touches, popularity


@dataclass(frozen=True)
class WindowRecord:
    """The observations of a window, as a policy sees them at its end."""

    access: list[AccessView]
    """Popularity of the rows of each pool; empty where the policy does not track it."""
    movement: MovementView | None
    """Movement of the hot rows of all ranks; None where staleness is not judged now."""
    own_H: slice
    """This rank's slots in that."""


def access_view(
    store: EmbeddingStore, pool: int, step: int, knobs: Knobs, candidates: NDArray[np.int64], tracker: PopularityTracker
) -> AccessView:
    """Return the popularity of a pool's hot rows, and set what is shown of it, and that of its rows among sorted candidates."""
    spec, device = store.space.pools[pool], store.hot.tier
    first, end = np.searchsorted(candidates, (spec.first_row, spec.end_row))
    rows = candidates[first:end]
    hot = are_hot(store.index.placement.slot_of_row, rows, store.threads)
    rows = rows[~hot] if hot.any() else rows.copy()
    hot_rows = device.hot_rows_of(pool)
    hot_scores = tracker.estimate(hot_rows, store.threads)
    device.set_estimates(pool, hot_scores)
    return AccessView(
        step=step,
        knobs=knobs,
        all_rows=range(spec.first_row, spec.end_row),
        capacity_rows=device.capacities[pool],
        candidate_rows=_fixed(rows),
        candidate_scores=tracker.estimate(rows, store.threads),
        hot_rows=_fixed(hot_rows),
        hot_scores=hot_scores,
    )


@dataclass(frozen=True)
class Judged:
    """What a rule of staleness goes by, for the slots of all pools in one line (H)."""

    number_H: NDArray[np.float64]
    """By the rule; the smaller, the staler."""
    touches_H: NDArray[np.int64]
    """Steps that touched each slot's row, of `steps`."""
    steps: float


def judge_hot_rows(store: EmbeddingStore, metric: str, probes: int, tracker: PopularityTracker) -> Judged:
    """Judge all hot rows by a rule: how popular they are, or how far they moved in `probes` steps."""
    if metric != "popularity":
        rule, rows = RULES[metric], [store.hot.movement(pool) for pool in range(len(store.hot.tier.monitors))]
        return Judged(np.concatenate([rule(pool) for pool in rows]), np.concatenate([pool.touches_H for pool in rows]), probes)
    row_H, steps = np.concatenate(store.hot.tier.row_of_slot), tracker.steps_counted
    hot_H, lookups_H = row_H >= 0, np.zeros(len(row_H))
    lookups_H[hot_H] = tracker.estimate(row_H[hot_H], store.threads)
    return Judged(popularity(lookups_H, steps), expected_touches(lookups_H, steps), steps)


def movement_view(
    store: EmbeddingStore, knobs: Knobs, samples: PopularSamples, judged: Judged, skipped_ratio: float, lists_stale: bool
) -> MovementView:
    """Set what is shown of the movement of all slots, and return that of all ranks. `lists_stale`: with the stale lookups of the
    samples."""
    device, everyone, touches_H = store.hot.tier, store.group.everyone, judged.touches_H
    known_H = touches_H >= max(knobs.min_probe_touches, math.ceil(knobs.min_touch_ratio * judged.steps - 1e-9))
    movement_H = np.where(known_H, judged.number_H, np.inf)
    first = 0
    for shown in device.movement:
        shown[:] = movement_H[first : first + len(shown)]
        first += len(shown)
    movement_H = everyone(movement_H)
    sampled, lengths = samples.arrays()
    slot_L, stale_H = store.peers.slots_of(sampled), everyone(np.concatenate(device.stale))
    sample_movement_L = np.append(movement_H, np.inf)[slot_L]  # the last one: a row that is cold now
    return MovementView(
        knobs=knobs,
        stale_H=stale_H,
        movement_H=movement_H,
        touches_H=everyone(np.where(known_H, touches_H, 0)),
        sample_movement_L=everyone(sample_movement_L),
        sample_offsets=np.concatenate([[0], np.cumsum(everyone(lengths))]).astype(np.int64),
        skipped_ratio=skipped_ratio,
        **({"sample_stale_L": everyone(np.append(stale_H, False)[slot_L])} if lists_stale else {}),
    )


def _fixed(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a view of some rows that cannot be changed."""
    view = rows.view()
    view.flags.writeable = False
    return view
