"""Why a row is hot, stale or cold: one sentence, from the placement that is published at that moment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from adaptive_rec.live.shared_state import PlacementArrays
from adaptive_rec.service.hello import Table, Values

BY_ESTIMATE = {"hotline", "slipstream", "random_skip", "adaptive"}
"""Policies that keep those rows on the device whose estimates are the greatest."""
OTHERWISE = {
    "device_only": "policy device_only keeps all rows on the device",
    "hybrid": "policy hybrid keeps no row on the device",
    "xdl": "policy xdl keeps no row on the device",
    "cdlrm": "policy cdlrm keeps rows on the device that the batches ahead look up",
    "oracle": "policy oracle keeps rows on the device that the batches of the next window look up most",
    "fae": "policy fae has chosen hot rows from a sample of the stream",
    "fae_released": "policy fae_released has chosen hot rows from a sample of the stream",
    "slipstream_released": "policy slipstream_released has chosen hot rows from a sample of the stream",
}
"""How other policies place rows."""


def why(
    arrays: PlacementArrays,
    table: Table,
    row: Values,
    changes: Sequence[Values],
    knobs: Values,
    threshold: float | None,
) -> str:
    """Return the sentence about a row. `changes`: its newest changes of class, the newest first. `threshold`: the one that made
    the present stale classes; None where it is not known."""
    policy = str(knobs.get("policy", ""))
    parts = [_stale(row, threshold, str(knobs.get("stale_metric", "")))] if row["class"] == "stale" else []
    if policy in BY_ESTIMATE:
        parts.append(_ranked(arrays, table, row, float(knobs.get("hysteresis", 0.0))))
    else:
        parts.append(OTHERWISE.get(policy, f"policy {policy} has chosen the hot rows"))
    if changes:
        parts.append(_became(changes))
    return f"{row['class']}: {'; '.join(parts)}"


def _stale(row: Values, threshold: float | None, metric: str) -> str:
    if (movement := row["movement"]) is None:
        return "it was judged to have stopped moving"
    by_lookups = metric == "popularity"
    moved = f"it {'had a lookup every' if by_lookups else 'moved'} {movement:.2g}{' steps' * by_lookups} when it was last judged"
    return (
        f"{moved}, below the threshold of {threshold:.2g}" if threshold is not None and movement < threshold else moved
    )


def _ranked(arrays: PlacementArrays, table: Table, row: Values, hysteresis: float) -> str:
    """Return where the row's estimate stands among those of the hot rows with which it competes: those of its pool, which are
    the rows of all tables of its width."""
    hot_H = arrays.estimate[table.pool][arrays.row_of_slot[table.pool] >= 0]
    free, hot_rows, estimate = len(arrays.row_of_slot[table.pool]) - len(hot_H), len(hot_H), np.float32(row["estimate"])
    among = f"the {hot_rows:,} hot rows of tables of dim {table.dim}"
    known = f"its estimate of {_lookups(float(estimate))}"
    greater = int(np.count_nonzero(hot_H > estimate))
    if row["slot"] is not None:
        return f"{known} ranks {_ordinal(greater + 1)} of {among}, the least of which has {_number(float(hot_H.min()))}"
    if not arrays.sketch_unit:
        return "its popularity is not published"
    if not estimate:
        return "no sampled lookup of it is remembered"
    if free:
        return (
            f"{known} may suffice when a window ends, as {free:,} slots are free, if sampled steps meet the row by then"
        )
    if not hot_rows:
        return f"the device has no room for rows of tables of dim {table.dim}"
    least = float(hot_H.min())
    if float(estimate) <= least * (1 + hysteresis):
        bar = f"{_number(least)}, the least of {among}"
        return (
            f"{known} is not above {bar}{f', by the hysteresis of {hysteresis:g}' if float(estimate) > least else ''}"
        )
    return f"{known} is above that of {hot_rows - greater:,} of {among}: it may become hot when a window ends"


def _became(changes: Sequence[Values]) -> str:
    """Return the newest changes as one clause, the oldest first."""
    return "it became " + " and ".join(f"{each['to']} at step {each['step']:,}" for each in reversed(changes))


def _lookups(estimate: float) -> str:
    return f"{_number(estimate)} {'lookup' if estimate == 1 else 'lookups'}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _ordinal(number: int) -> str:
    teens = number % 100 in (11, 12, 13)
    return f"{number:,}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def present_threshold(board: dict[str, Any]) -> float | None:
    """Return the threshold of the placement: that of a checkpoint, or of the newest snapshot, where that is not older."""
    snapshot, placed = board.get("snapshot") or {}, board.get("placement") or {}
    if "stale_threshold" in placed:
        return float(placed["stale_threshold"]) if math.isfinite(placed["stale_threshold"]) else None
    return snapshot.get("stale_threshold") if snapshot.get("step", -1) >= placed.get("step", 0) else None
