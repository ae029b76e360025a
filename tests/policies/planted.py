"""A click log with a planted truth, for the question whether `adaptive` keeps its promise.

A log is a sequence of days. A visitor sees an item at a position; a click depends on all three. Rows and labels depend on the log
and a seed alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

POSITIONS = 20


@dataclass(frozen=True)
class Log:
    """What is planted. Logits, unless said otherwise."""

    rows: int
    items: int
    days: int = 14
    new_ratio: float = 0.0
    """Share of the items of a day that no day before had."""
    zipf: float = 1.0
    """How much more popular items are shown more often."""
    visitors: int = 3_000
    """Visitors; a session is a visitor's, who comes back, some far more often than others."""
    drift: float = 0.0
    """Standard deviation of what a day changes of an item's appeal."""
    jump_at: float = 1.0
    """Share of the rows after which all items have another appeal."""
    rate_shift: float = 0.0
    """By how much the clicks of the second half are more likely; it comes at once."""


SESSIONS = Log(740_000, 17_000, new_ratio=0.4)
"""Two fifths of the items of a day are new."""


def columns(log: Log, seed: int) -> dict[str, NDArray[np.generic]]:
    """Return the columns of a log, in order of time."""
    dice, rows = np.random.default_rng(seed), log.rows
    day = np.arange(rows) * log.days // rows
    often = 1 / np.arange(1, log.visitors + 1)
    session = dice.choice(log.visitors, rows, p=often / often.sum())
    position = dice.integers(0, POSITIONS, rows)
    item = np.empty(rows, dtype=np.int64)
    shown = np.arange(log.items)
    chance = 1 / np.arange(1, len(shown) + 1) ** log.zipf
    if log.new_ratio:
        shown, chance = shown[: log.items // log.days], chance[: log.items // log.days]
    appeal = dice.normal(0, 0.9, log.items)
    other = dice.normal(0, 0.9, log.items)
    logit, fresh = np.empty(rows), len(shown)
    for today in range(log.days):
        of_day = np.flatnonzero(day == today)
        if today and log.new_ratio:
            out = dice.choice(len(shown), int(log.new_ratio * len(shown)), replace=False)
            shown[out] = (fresh + np.arange(len(out))) % log.items
            fresh += len(out)
        item[of_day] = shown[dice.choice(len(shown), len(of_day), p=chance / chance.sum())]
        appeal += log.drift * dice.normal(size=log.items)
        late = of_day >= log.jump_at * rows
        logit[of_day] = np.where(late, other[item[of_day]], appeal[item[of_day]])
    logit += dice.normal(0, 0.6, log.visitors)[session] - 0.12 * position - 0.8
    logit += log.rate_shift * (np.arange(rows) >= rows // 2)
    clicked = dice.random(rows) < 1 / (1 + np.exp(-logit))
    return {
        "clicked": clicked, "place": (position / POSITIONS).astype(np.float32), "session": session, "item": item,
        "position": position,
    }  # fmt: skip
