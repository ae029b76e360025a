"""What training has done, counted step by step."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.live.telemetry import Counters
from adaptive_rec.placement import RowSpace
from adaptive_rec.saved import Saved


class Tally:
    """Counts of the whole run and of each table."""

    def __init__(self, space: RowSpace) -> None:
        self.counters = Counters()
        self.lookups_T = np.zeros(len(space.tables), dtype=np.int64)
        self.hot_lookups_T = np.zeros(len(space.tables), dtype=np.int64)

    def add(self, work: ClassifiedBatch, position_B: NDArray[np.int64]) -> None:
        """A step was made. `position_B` is -1 for samples that were skipped."""
        tables_F, counters = work.space.table_of_feature, self.counters
        np.add.at(self.lookups_T, tables_F, work.lookups_F)
        np.add.at(self.hot_lookups_T, tables_F, work.hot_lookups_F)
        counters.steps += 1
        counters.samples_seen += work.batch.size + work.batch.skipped_samples
        counters.samples_trained += int(np.count_nonzero(position_B >= 0))
        counters.samples_popular += int(np.count_nonzero(work.popular_B))
        counters.lookups += work.batch.lookups
        counters.lookups_hot += int(work.hot_lookups_F.sum())
        counters.malformed_rows += work.batch.malformed_rows

    def left_out(self, samples: int, malformed_rows: int) -> None:
        """Samples of the stream that came in no batch, and malformed rows found with them."""
        self.counters.samples_seen += samples
        self.counters.malformed_rows += malformed_rows

    def state(self) -> dict[str, Any]:
        return {
            "counters": asdict(self.counters),
            "lookups_T": self.lookups_T,
            "hot_lookups_T": self.hot_lookups_T,
        }

    def set_state(self, found: Saved) -> None:
        counters = found.part("counters")
        self.counters = Counters(**{name: counters.integer(name) for name in asdict(self.counters)})
        self.lookups_T[:] = found.array("lookups_T", np.int64, len(self.lookups_T))
        self.hot_lookups_T[:] = found.array("hot_lookups_T", np.int64, len(self.hot_lookups_T))
