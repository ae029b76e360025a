"""Taobao's UserBehavior log (Alibaba Tianchi, data set 649) as rows with a history, for TBSM.

As in the reference's preparation (facebookresearch/tbsm, after MIMN): the events of all four kinds of a user are one sequence in
order of time. A point is an event and the events before it; at most ten points are drawn for a user. For each point there is also
a row of label 0, whose item is drawn evenly from all pairs of item and category in the file with which the user has no event.

Differences: rows come in order of their event's time, so that rows held out by position are later ones, where the reference
splits by user; a row of label 0 has the history of its point, not of another one; points are drawn without replacement from all
events but a user's first, where the reference gives none to users of fewer than ten events and repeats points of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.prepare.raw import HistoryColumn, RawBlock, SequenceColumns, SparseColumn
from adaptive_rec.data.tabular.times import MICROSECONDS
from adaptive_rec.errors import DataError
from adaptive_rec.recipes.columns import LogColumn, LogFile, LogReader, word
from adaptive_rec.recipes.histories import LENGTH, Histories

KEY_LIMIT = 2**31 - 2
"""Keys are values + 1; an item and its category are packed into 63 bits."""
LOG_COLUMNS = (
    LogColumn("user", KEY_LIMIT),
    LogColumn("item", KEY_LIMIT),
    LogColumn("category", KEY_LIMIT),
    word("behaviour", "pv", "buy", "cart", "fav"),
    LogColumn("timestamp"),
)
POINTS_PER_USER = 10
BLOCK_POINTS = 8192
MOST_DRAWS = 64
"""The number of tries to find an item that is new to a user; a user with events of nearly all items may get none."""


@dataclass(frozen=True)
class ClickEvents:
    """All events (C) of a file in order of time, those of one second in the file's order."""

    user_C: NDArray[np.int64]
    pair_C: NDArray[np.int64]
    """Number of the event's item and category among the distinct ones."""
    item_P: NDArray[np.int64]
    category_P: NDArray[np.int64]
    seconds_C: NDArray[np.int64]

    @staticmethod
    def of(rows_CX: NDArray[np.int64]) -> ClickEvents:
        """Return the events of the rows of a file."""
        rows_CX = rows_CX[np.argsort(rows_CX[:, 4], kind="stable")]
        users, user_C = np.unique(rows_CX[:, 0], return_inverse=True)
        packed_P, pair_C = np.unique(rows_CX[:, 1] << 32 | rows_CX[:, 2], return_inverse=True)
        return ClickEvents(users[user_C], pair_C, packed_P >> 32, packed_P % (1 << 32), rows_CX[:, 4])


class TaobaoReader(LogReader):
    """Columns: item and category, the same of the user's events before (bags, oldest first), the user. The only dense column is
    the history's length: the place of a step, the reference's dense feature, is the model's own. The whole file is held in
    memory, with some 150 bytes an event."""

    dense_names: tuple[str, ...] = (LENGTH,)
    dense_transform = f"{LENGTH}: events in the history"
    columns = (
        SparseColumn("item", "item"),
        SparseColumn("item_history", "item", bag=True),
        SparseColumn("category", "category"),
        SparseColumn("category_history", "category", bag=True),
        SparseColumn("user", "user"),
    )

    def __init__(self, path: Path, skip_bad_rows: bool, seed: int, history_steps: int) -> None:
        super().__init__(LogFile(path, LOG_COLUMNS, skip_bad_rows))
        self._seed = seed
        self._made_ratio = 0.0
        histories = (
            HistoryColumn(column="item_history", candidate="item"),
            HistoryColumn(column="category_history", candidate="category"),
        )
        self._steps = history_steps
        self.sequence = SequenceColumns(steps=history_steps, histories=histories, dense=(), length=LENGTH)

    def blocks(self) -> Iterator[RawBlock]:
        """Yield the rows in order of time; a malformed one raises DataError with its line and column, or is skipped."""
        events = ClickEvents.of(self._log.rows())
        histories = Histories(events.user_C, self._steps)
        random = np.random.default_rng(self._seed)
        points = draw_points(histories, events.user_C, random)
        if not len(points):
            raise DataError(f"{self._log.path} must have a user with two events, got none")
        negatives = Negatives(events)
        for start in range(0, len(points), BLOCK_POINTS):
            part = points[start : start + BLOCK_POINTS]
            yield block_of(events, histories, part, negatives.draw(part, random))
            self._made_ratio = min(1.0, (start + BLOCK_POINTS) / len(points))


def draw_points(histories: Histories, user_C: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    """Return the events that become points, in order: at most POINTS_PER_USER of a user, drawn from all but the first."""
    eligible = np.flatnonzero(histories.earlier_C > 0)
    shuffled = random.permutation(eligible)
    place_S = Histories(user_C[shuffled], 1).earlier_C
    return np.sort(shuffled[place_S < POINTS_PER_USER])


class Negatives:
    """The draw of items with which a user has no event."""

    def __init__(self, events: ClickEvents) -> None:
        self._events, self._pairs = events, len(events.item_P)
        _, self._user_C = np.unique(events.user_C, return_inverse=True)
        self._known = np.unique(self._user_C * self._pairs + events.pair_C)

    def draw(self, points: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
        """Return a pair for each point, -1 where none was found."""
        drawn = np.full(len(points), -1, dtype=np.int64)
        left = np.arange(len(points))
        for _ in range(MOST_DRAWS):
            tried = random.integers(self._pairs, size=len(left))
            keys = self._user_C[points[left]] * self._pairs + tried
            place = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
            new = self._known[place] != keys
            drawn[left[new]] = tried[new]
            left = left[~new]
        return drawn


def block_of(
    events: ClickEvents, histories: Histories, points: NDArray[np.int64], negative_pairs: NDArray[np.int64]
) -> RawBlock:
    """Return the rows of some points, each followed by its row of label 0 where there is one."""
    pairs_B2 = np.stack([events.pair_C[points], negative_pairs], axis=1)
    point_R, label_0_R = np.nonzero(pairs_B2 >= 0)
    pair_R, event_R = pairs_B2[point_R, label_0_R], points[point_R]
    earlier_N, lengths_R = histories.of(event_R)
    shown = (events.item_P[pair_R], events.item_P[events.pair_C[earlier_N]])
    categories = (events.category_P[pair_R], events.category_P[events.pair_C[earlier_N]])
    keys = [(values + 1).astype(np.uint32) for values in (*shown, *categories, events.user_C[event_R])]
    lengths = [None, lengths_R, None, lengths_R, None]
    times_R = events.seconds_C[event_R] * MICROSECONDS["s"]
    labels_R = (label_0_R == 0).astype(np.float32)
    return RawBlock(lengths_R[:, None].astype(np.float32), labels_R, [*keys], lengths, times_B=times_R)
