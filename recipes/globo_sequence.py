"""Globo.com news clicks as rows with a history: the rows of `globo.py`, each with the last articles that the user clicked.

Rows, labels and negatives are the same as `--format globo` makes of the same file and seed, so that a model that reads histories
and one that does not can be compared row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.prepare.raw import HistoryColumn, RawBlock, SequenceColumns, SparseColumn
from adaptive_rec.recipes.globo import CONTEXT_NAMES, DENSE_NAMES, Clicks, GloboReader
from adaptive_rec.recipes.histories import LENGTH, Histories, padded

MS_PER_MINUTE = 60_000


class GloboSequenceReader(GloboReader):
    """Columns: the article, the user's clicks before it in any session (a bag, oldest first, by the ids of the same
    table), the user, device and place. The whole file is held in memory."""

    columns = (
        SparseColumn("article", "article"),
        SparseColumn("article_history", "article", bag=True),
        SparseColumn("user", "user"),
        *(SparseColumn(name, name) for name in CONTEXT_NAMES),
    )

    def __init__(self, path: Path, skip_bad_rows: bool, seed: int, history_steps: int) -> None:
        super().__init__(path, skip_bad_rows, seed)
        ages = tuple(f"age_{step}" for step in range(history_steps, 0, -1))
        self.dense_names = (*DENSE_NAMES, LENGTH, *ages)
        self.dense_transform = (
            f"{GloboReader.dense_transform}; {LENGTH}: clicks in the history; age_N: log(1 + minutes) since the last click but "
            f"N - 1"
        )
        self.sequence = SequenceColumns(
            steps=history_steps,
            histories=(HistoryColumn(column="article_history", candidate="article"),),
            dense=(ages,),
            length=LENGTH,
        )
        self._steps = history_steps

    def blocks(self) -> Iterator[RawBlock]:
        """Yield the rows in order of time; a malformed one raises DataError with its line and column, or is skipped."""
        clicks = self.clicks()
        histories = Histories(clicks.user_C, self._steps)
        for click_R, block in self.walked(clicks):
            yield self._with_history(block, click_R, clicks, histories)

    def _with_history(
        self, block: RawBlock, click_R: NDArray[np.int64], clicks: Clicks, histories: Histories
    ) -> RawBlock:
        earlier_N, lengths_R = histories.of(click_R)
        ms_N = np.repeat(clicks.time_ms_C[click_R], lengths_R) - clicks.time_ms_C[earlier_N]
        ages_RT = padded(np.log1p(ms_N / MS_PER_MINUTE).astype(np.float32), lengths_R, self._steps)
        dense_RX = np.concatenate([block.dense_BX, lengths_R[:, None].astype(np.float32), ages_RT], axis=1)
        article_R, _, *others = block.values_F
        keys = [article_R, clicks.article_C[earlier_N] + np.uint32(1), *others]
        lengths = [None, lengths_R, *([None] * len(others))]
        return RawBlock(dense_RX, block.labels_B, keys, lengths, times_B=block.times_B)
