"""MovieTweetings (Dooms et al., CrowdRec 2013): posted ratings of films as rows, in order of time.

The label is 1 for a rating of at least 8 of 10 (about half of them).
Everything else in a row was known before the rating.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.prepare.raw import RawBlock, SparseColumn
from adaptive_rec.data.tabular.times import MICROSECONDS
from adaptive_rec.recipes.columns import LogColumn, LogFile, LogReader
from adaptive_rec.recipes.histories import Histories

KEY_LIMIT = 2**32 - 2
LOG_COLUMNS = (
    LogColumn("user", KEY_LIMIT),
    LogColumn("movie", KEY_LIMIT),
    LogColumn("rating", 10),
    LogColumn("timestamp"),
)
LIKED_FROM = 8
BLOCK_ROWS = 1 << 16
DAY_SECONDS = 86_400


class MovieTweetingsReader(LogReader):
    """Rows of a file of ratings. Columns: user and film. The whole file is held in memory, about 100 bytes a rating."""

    dense_names: tuple[str, ...] = (
        "user_ratings", "movie_ratings", "hour_sin", "hour_cos", "weekday_sin", "weekday_cos",
    )  # fmt: skip
    dense_transform = (
        "log(1 + x) of the user's and of the film's ratings so far; sine and cosine of the time of day (of 24 hours) and of the "
        "week (of 7 days), UTC"
    )
    columns = (SparseColumn("user", "user"), SparseColumn("movie", "movie"))

    def __init__(self, path: Path, skip_bad_rows: bool, seed: int) -> None:
        super().__init__(LogFile(path, LOG_COLUMNS, skip_bad_rows, separator="::"))

    def blocks(self) -> Iterator[RawBlock]:
        """Yield the rows in order of time; a malformed one raises DataError with its line and column, or is skipped."""
        rows_CX = self._log.rows()
        user_C, movie_C, rating_C, seconds_C = rows_CX[np.argsort(rows_CX[:, 3], kind="stable")].T
        so_far = [np.log1p(Histories(owner_C, 1).earlier_C) for owner_C in (user_C, movie_C)]
        dense_CX = np.stack([*so_far, *clock(seconds_C)], axis=1).astype(np.float32)
        labels_C = (rating_C >= LIKED_FROM).astype(np.float32)
        for start in range(0, len(labels_C), BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            keys = [(column[part] + 1).astype(np.uint32) for column in (user_C, movie_C)]
            times_B = seconds_C[part] * MICROSECONDS["s"]
            yield RawBlock(dense_CX[part], labels_C[part], [*keys], [None, None], times_B=times_B)


def clock(seconds_C: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    """Return sine and cosine of the time of day and of the time of the week, which begins with Monday."""
    monday_C = seconds_C + 3 * DAY_SECONDS  # the first day of 1970 was a Thursday
    turns = [seconds_C % DAY_SECONDS / DAY_SECONDS, monday_C % (7 * DAY_SECONDS) / (7 * DAY_SECONDS)]
    return [f(2 * np.pi * turn_C) for turn_C in turns for f in (np.sin, np.cos)]
