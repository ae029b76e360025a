"""MovieTweetings (Dooms et al., CrowdRec 2013): ratings of films as posted, user::film::rating::seconds, in order of time.

The label is whether the rating is at least 8 of 10, which about half of them are. Everything else in a row was known before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.logs.histories import Histories
from adaptive_rec.data.logs.integer_lines import Cell, IntegerLines
from adaptive_rec.data.prepare.raw import RawBlock, SparseColumn

KEY_LIMIT = 2**32 - 2
CELLS = (Cell("user", KEY_LIMIT), Cell("movie", KEY_LIMIT), Cell("rating", 10), Cell("timestamp"))
LIKED_FROM = 8
BLOCK_ROWS = 1 << 16
DAY_SECONDS = 86_400


class MovieTweetingsReader:
    """Columns: user and film. The whole file is held in memory, with some 100 bytes a rating."""

    dense_names: tuple[str, ...] = (
        "user_ratings", "movie_ratings", "hour_sin", "hour_cos", "weekday_sin", "weekday_cos",
    )  # fmt: skip
    dense_transform = (
        "log(1 + x) of the user's and of the film's ratings so far; sine and cosine of the time of day (of 24 hours) and of the "
        "week (of 7 days), UTC"
    )
    columns = (SparseColumn("user", "user"), SparseColumn("movie", "movie"))
    sequence = None

    def __init__(self, path: Path, skip_bad_rows: bool, seed: int) -> None:
        self._lines = IntegerLines(path, CELLS, skip_bad_rows, separator="::")

    @property
    def bad_rows(self) -> int:
        return self._lines.bad_rows

    @property
    def read_ratio(self) -> float:
        return self._lines.read_ratio

    def blocks(self) -> Iterator[RawBlock]:
        """Yield the rows in order of time; a malformed one raises DataError with its line and column, or is skipped."""
        rows_CX = self._lines.rows()
        user_C, movie_C, rating_C, seconds_C = rows_CX[np.argsort(rows_CX[:, 3], kind="stable")].T
        so_far = [np.log1p(Histories(owner_C, 1).earlier_C) for owner_C in (user_C, movie_C)]
        dense_CX = np.stack([*so_far, *clock(seconds_C)], axis=1).astype(np.float32)
        labels_C = (rating_C >= LIKED_FROM).astype(np.float32)
        for start in range(0, len(labels_C), BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            keys = [(column[part] + 1).astype(np.uint32) for column in (user_C, movie_C)]
            yield RawBlock(dense_CX[part], labels_C[part], [*keys], [None, None])


def clock(seconds_C: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    """Sine and cosine of time of day and of time of week, which begins with Monday."""
    monday_C = seconds_C + 3 * DAY_SECONDS  # the first day of 1970 was a Thursday
    turns = [seconds_C % DAY_SECONDS / DAY_SECONDS, monday_C % (7 * DAY_SECONDS) / (7 * DAY_SECONDS)]
    return [f(2 * np.pi * turn_C) for turn_C in turns for f in (np.sin, np.cos)]
