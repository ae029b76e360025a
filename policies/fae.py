"""FAE as in the paper: frequently accessed embeddings on the device, hot and cold batches in turns set by a scheduler.

Paper: Adnan et al., "Accelerating Recommendation System Training by Leveraging Popular Choices" (VLDB 15(1), arXiv 2103.00686).
As there: the lookups of some samples of the stream are counted. A row is hot if its share of its table's lookups is above a
threshold, which is the smallest one whose rows fit the budget; small tables are hot as a whole. Batches hold only hot samples or
only cold ones. A share of the cold batches is trained, then the same share of the hot ones; the share is halved when the test
loss rose since the last round, and doubled after four rounds that lowered it. Rows move to the device for hot batches and back to
the host for cold ones. The released code has neither threshold nor scheduler: see `fae_released`. Better here: the threshold is
exact, from all counts, where the paper estimates it from 35 chunks of rows; see also `fae_released`. FAE's static part, which
says what a budget would catch, is `adaptive-rec profile`.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.policy import PolicyConfig
from adaptive_rec.policies.fae_released import FaeReleased
from adaptive_rec.policy import Outcome, Phase, StreamView
from adaptive_rec.policy.batches import Portions, repack
from adaptive_rec.policy.hot_sets import (
    NO_ROWS,
    count_samples,
    describe_hot_set,
    in_pool,
    only_hot,
    others,
    sample_rows,
)

FLOAT32_BYTES = 4

HOW = "small tables, and rows by their share of their table's lookups in"


class Fae(FaeReleased):
    name = "fae"

    def arrange(self, stream: StreamView) -> Generator[Phase, Outcome, None]:
        sampled, size, schedule, note = sample_rows(stream), stream.batch_size, Schedule(stream.options), ""
        for epoch in stream.epochs:
            hot = self.choose(stream, *sampled)
            is_hot = only_hot(stream, hot)
            hot_total = count_samples(stream, epoch, is_hot)
            cold_total = stream.samples(epoch) - hot_total
            cold = Portions(repack(stream.read(epoch), size, others(is_hot)))
            popular = Portions(repack(stream.read(epoch), size, is_hot, malformed=False))
            if epoch == stream.epochs[0]:
                note = f"{describe_hot_set(stream, hot, HOW)}; {hot_total:,} of {stream.samples(epoch):,} samples are hot"
            while not (cold.over and popular.over):
                colds, hots = (
                    None if other.over else max(1, math.ceil(schedule.ratio * total / size))
                    for total, other in ((cold_total, popular), (hot_total, cold))
                )
                outcome = Outcome()
                if not cold.over:
                    outcome = yield Phase("cold", cold.portion(colds), NO_ROWS, evaluated=popular.over, note=note)
                    note = ""
                if not popular.over:
                    outcome = yield Phase("hot", popular.portion(hots), hot, evaluated=True, note=note)
                note = schedule.check(outcome.logloss)

    def choose(self, stream: StreamView, rows: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Choose small tables, the smallest first, while they fit, then rows above a threshold. Rows with an equal share are hot
        together or not at all."""
        space, found = stream.space, []
        table = np.searchsorted(np.sort(space.table_first_row), rows, side="right") - 1
        share = counts / np.maximum(np.bincount(table, weights=counts), 1)[table] if len(rows) else counts.astype(float)
        whole = np.zeros(space.rows, dtype=np.bool_)
        for pool, spec in enumerate(space.pools):
            left = stream.slots(pool)
            for index in np.argsort([part.rows for part in space.tables], kind="stable").tolist():
                first, size = int(space.table_first_row[index]), space.tables[index].rows
                small = size * spec.dim * FLOAT32_BYTES < stream.options.small_table_bytes
                if spec.first_row <= first < spec.end_row and small and size <= left:
                    whole[first : first + size] = True
                    found.append(np.arange(first, first + size))
                    left -= size
            large = in_pool(rows, stream, pool) & ~whole[rows]
            order = np.argsort(-share[large], kind="stable")
            ranked = share[large][order]
            fits = np.searchsorted(-ranked, -ranked[left], side="left") if left < len(ranked) else len(ranked)
            found.append(rows[large][order][:fits])
        return np.concatenate(found)


@dataclass
class Schedule:
    """Sets the share of the hot and of the cold batches that is trained in a round."""

    options: PolicyConfig

    def __post_init__(self) -> None:
        self.ratio = self.options.schedule_ratio
        self._last: float | None = None
        self._lower = 0

    def check(self, logloss: float | None) -> str:
        """Set the share by the test loss after a round. Returns a note for the journal where it changed."""
        last, self._last, before = self._last, logloss, self.ratio
        if logloss is None or last is None:
            return ""
        self._lower = self._lower + 1 if logloss < last else 0
        if logloss > last:
            self.ratio = max(min(self.options.schedule_floor_ratio, self.ratio), self.ratio / 2)
        elif self._lower == self.options.schedule_patience:
            self.ratio, self._lower = min(self.options.schedule_ratio, self.ratio * 2), 0
        if self.ratio == before:
            return ""
        found = "rose" if logloss > last else f"fell {self.options.schedule_patience} times in a row"
        return f"the test loss {found} (now {logloss:.4f}): {self.ratio:.1%} of the hot and cold batches in turn"


POLICY = Fae
