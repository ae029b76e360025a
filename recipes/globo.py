"""Globo.com news clicks (Moreira et al., 2018) as training rows: each click, and articles on offer that were not clicked.

The file is sorted by time. The articles on offer are those that any user clicked within the last hour. Each click on one of
them is a row with label 1; after it come rows with label 0, of the same user and moment, whose article is drawn evenly from
the others.
A click on an article that was not on offer (one in nineteen) makes no rows, but later rows count it. No row of label 0 could have
such an article, so its count of recent clicks, 0, would reveal the label.

Everything in a row was known before the click. So `session_size`, which counts later clicks, is not used, and the time of the
click is taken as that of the impression.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.prepare.raw import MISSING_KEY, Keys, RawBlock, SparseColumn
from adaptive_rec.data.tabular.times import MICROSECONDS
from adaptive_rec.errors import DataError
from adaptive_rec.recipes.columns import LogColumn, LogFile, LogReader
from adaptive_rec.recipes.kernels.clicks import walk_clicks

COLUMNS = (
    "user_id", "session_id", "session_start", "session_size", "click_article_id", "click_timestamp", "click_environment",
    "click_deviceGroup", "click_os", "click_country", "click_region", "click_referrer_type",
)  # fmt: skip
USER, SESSION, SESSION_START, ARTICLE, TIME = (
    COLUMNS.index(name) for name in ("user_id", "session_id", "session_start", "click_article_id", "click_timestamp")
)
CONTEXT = (*range(6, 12),)
CONTEXT_NAMES = ("environment", "device_group", "os", "country", "region", "referrer")
LOG_COLUMNS = tuple(
    LogColumn(name, 2**53 if c in (SESSION, SESSION_START, TIME) else 2**32 - 2) for c, name in enumerate(COLUMNS)
)
"""Keys are values + 1, in 32 bits."""
DENSE_NAMES = (
    "session_clicks", "session_minutes", "pause_minutes", "first_click", "hour_sin", "hour_cos", "article_clicks",
    "article_minutes",
)  # fmt: skip

HORIZON_MS = 3_600_000
"""How long an article stays on offer after a click."""
NEGATIVES = 3
BLOCK_CLICKS = 8192
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Clicks:
    """All clicks (C) of a file in order of time, those of one moment in the file's order."""

    time_ms_C: NDArray[np.int64]
    """Since 1970, UTC."""
    article_C: NDArray[np.uint32]
    user_C: NDArray[np.uint32]
    session_C: NDArray[np.int64]
    session_start_ms_C: NDArray[np.int64]
    context_CX: NDArray[np.uint32]
    """Values of CONTEXT_NAMES."""

    @property
    def count(self) -> int:
        return len(self.time_ms_C)


class GloboReader(LogReader):
    """Rows of a Globo.com file. Columns: the article, the one clicked before it in the session (0: none) by the ids of the
    same table, the user, and what is known of device and place. The whole file is held in memory: 0.3 GB for 3 M clicks."""

    dense_names: tuple[str, ...] = DENSE_NAMES
    dense_transform: str = (
        "log(1 + x) of: clicks of the session so far, minutes since it began, minutes since the user's last click, clicks of "
        "the article within the last hour, minutes since its first click; first_click is 1 where the user has clicked nothing "
        "before; hour_sin, hour_cos: time of day, UTC"
    )
    columns: tuple[SparseColumn, ...] = (
        SparseColumn("article", "article"),
        SparseColumn("previous_article", "article"),
        SparseColumn("user", "user"),
        *(SparseColumn(name, name) for name in CONTEXT_NAMES),
    )

    def __init__(self, path: Path, skip_bad_rows: bool, seed: int, negatives: int = NEGATIVES) -> None:
        super().__init__(LogFile(path, LOG_COLUMNS, skip_bad_rows, has_header=True))
        self._seed, self._negatives = seed, negatives
        self._made_ratio = 0.0

    def blocks(self) -> Iterator[RawBlock]:
        """Yield the rows in order of time; a malformed one raises DataError with its line and column, or is skipped."""
        yield from (block for _, block in self.walked(self.clicks()))

    def walked(self, clicks: Clicks) -> Iterator[tuple[NDArray[np.int64], RawBlock]]:
        """Yield the rows (R) of some clicks at a time, with the number of each one's click (R,)."""
        walk = Walk(clicks, self._negatives)
        random, offered = np.random.default_rng(self._seed), False
        for start in range(0, clicks.count, BLOCK_CLICKS):
            stop = min(start + BLOCK_CLICKS, clicks.count)
            click_R, block = walk.block(start, random.random((stop - start, self._negatives)))
            if len(click_R):
                offered = True
                yield click_R, block
            self._made_ratio = stop / clicks.count
        if not offered and clicks.count:
            raise DataError(
                f"{self._log.path} must hold a click on an article that was clicked within the hour before, has none"
            )
        self._made_ratio = 1.0

    def clicks(self) -> Clicks:
        """The file's clicks, sorted."""
        parts = [_columns(rows_BC) for rows_BC in self._log.blocks()]
        joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(joined[0], kind="stable")
        return Clicks(*(column[order] for column in joined))


def _columns(rows_BC: NDArray[np.int64]) -> tuple[NDArray[np.int64] | NDArray[np.uint32], ...]:
    """A block's columns in the order of `Clicks`."""
    small_BC = rows_BC.astype(np.uint32)
    return (
        rows_BC[:, TIME].copy(),
        small_BC[:, ARTICLE].copy(),
        small_BC[:, USER].copy(),
        rows_BC[:, SESSION].copy(),
        rows_BC[:, SESSION_START].copy(),
        small_BC[:, CONTEXT],
    )


class Walk:
    """A walk through all clicks, block by block, in order."""

    def __init__(self, clicks: Clicks, negatives: int) -> None:
        self._clicks = clicks
        self._targets = 1 + negatives
        self._articles, article_C = np.unique(clicks.article_C, return_inverse=True)
        users, user_C = np.unique(clicks.user_C, return_inverse=True)
        sessions, session_C = np.unique(clicks.session_C, return_inverse=True)
        self._numbered = (clicks.time_ms_C, *(c.astype(np.int32) for c in (article_C, user_C, session_C)))
        articles = len(self._articles)
        self._state = (
            np.zeros(2, dtype=np.int64),
            np.zeros(articles, dtype=np.int32),
            np.full(articles, -1, dtype=np.int32),
            np.zeros(articles, dtype=np.int32),
            np.full(articles, -1, dtype=np.int64),
            np.full(len(users), -1, dtype=np.int64),
            np.zeros(len(sessions), dtype=np.int32),
            np.full(len(sessions), -1, dtype=np.int32),
        )

    def block(self, first: int, random_BK: NDArray[np.float64]) -> tuple[NDArray[np.int64], RawBlock]:
        """Return the number of each row's click, and the rows of the clicks from `first` on: one click for each line of random
        numbers, with its articles that were not clicked."""
        clicks, shape = self._clicks, (len(random_BK), self._targets)
        article_BT, recent_BT = np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.int32)
        age_ms_BT, pause_ms_B = np.empty(shape, dtype=np.int64), np.empty(shape[0], dtype=np.int64)
        clicks_B, previous_B = np.empty(shape[0], dtype=np.int32), np.empty(shape[0], dtype=np.int32)
        found = (article_BT, recent_BT, age_ms_BT, pause_ms_B, clicks_B, previous_B)
        walk_clicks(first, *self._numbered, HORIZON_MS, random_BK, *self._state, *found)
        part = slice(first, first + shape[0])
        click_R, target_R = np.nonzero(article_BT >= 0)
        now_ms_B = clicks.time_ms_C[part]
        day_B = now_ms_B % DAY_MS * (2 * np.pi / DAY_MS)
        by_click_BX = np.stack(
            [
                np.log1p(clicks_B),
                np.log1p(_minutes(now_ms_B - clicks.session_start_ms_C[part])),
                np.log1p(_minutes(pause_ms_B)),
                pause_ms_B < 0,
                np.sin(day_B),
                np.cos(day_B),
            ],
            axis=1,
        )
        by_article_RX = np.stack([recent_BT, _minutes(age_ms_BT)], axis=2)[click_R, target_R]
        key_A = self._articles + np.uint32(1)
        previous_key_B = np.where(previous_B >= 0, key_A[previous_B], np.uint32(MISSING_KEY))
        keys: list[Keys] = [key_A[article_BT[click_R, target_R]], previous_key_B[click_R]]
        keys.append(clicks.user_C[part][click_R] + np.uint32(1))
        keys += list((clicks.context_CX[part][click_R] + np.uint32(1)).T.copy())
        dense_RX = np.concatenate([by_click_BX[click_R], np.log1p(by_article_RX)], axis=1).astype(np.float32)
        labels_R, times_R = (target_R == 0).astype(np.float32), now_ms_B[click_R] * MICROSECONDS["ms"]
        return first + click_R, RawBlock(dense_RX, labels_R, keys, [None] * len(keys), times_B=times_R)


def _minutes(ms: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.maximum(ms, 0) / 60_000
