"""What training has done since a run began."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import trains_all
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.placement import RowSpace
from adaptive_rec.saved import Saved
from adaptive_rec.system.group import Group


@dataclass
class Counters:
    """What training has done since the run began; they only grow."""

    steps: int = 0
    samples_seen: int = 0
    samples_trained: int = 0
    samples_popular: int = 0
    lookups: int = 0
    lookups_hot: int = 0
    malformed_rows: int = 0


class Tally:
    """Counts of the whole run, and of each table."""

    def __init__(self, space: RowSpace) -> None:
        self.counters = Counters()
        self.lookups_T = np.zeros(len(space.tables), dtype=np.int64)
        self.hot_lookups_T = np.zeros(len(space.tables), dtype=np.int64)
        self.weight_trained: float | None = None
        """Sum of the weights of the samples trained; None where samples have no weights."""

    def add(self, work: ClassifiedBatch, position_B: NDArray[np.int64], weight: float | None = None) -> None:
        """Count a step. `position_B` is -1 for samples that are not trained: skipped ones, and those of weight 0, which are no
        skipped ones. `weight`: the sum of the weights of the others."""
        if weight is not None:
            self.weight_trained = (self.weight_trained or 0.0) + weight
        tables_F, counters = work.space.table_of_feature, self.counters
        np.add.at(self.lookups_T, tables_F, work.lookups_F)
        np.add.at(self.hot_lookups_T, tables_F, work.hot_lookups_F)
        counters.steps += 1
        counters.samples_seen += work.batch.size + work.batch.skipped_samples
        counters.samples_trained += work.batch.size
        if not trains_all(position_B):
            skipped_B = position_B < 0 if work.batch.weights_B is None else (position_B < 0) & (work.batch.weights_B != 0)
            counters.samples_trained -= int(np.count_nonzero(skipped_B))
        counters.samples_popular += int(np.count_nonzero(work.popular_B))
        counters.lookups += work.batch.lookups
        counters.lookups_hot += int(work.hot_lookups_F.sum())
        counters.malformed_rows += work.batch.malformed_rows

    def add_lookups(self, tables: NDArray[np.int64], lookups_T: NDArray[np.int64], hot_T: NDArray[np.int64]) -> None:
        """Add the lookups and hot lookups of some tables."""
        self.lookups_T[tables] += lookups_T
        self.hot_lookups_T[tables] += hot_T
        self.counters.lookups += int(lookups_T.sum())
        self.counters.lookups_hot += int(hot_T.sum())

    def add_samples(self, samples: int, popular: int) -> None:
        """Count a step of a user's loop, which trains all samples."""
        self.counters.steps += 1
        self.counters.samples_seen += samples
        self.counters.samples_trained += samples
        self.counters.samples_popular += popular

    def add_skipped(self, samples: int, malformed_rows: int) -> None:
        """Count samples of the stream that were in no batch, and the malformed rows among them."""
        self.counters.samples_seen += samples
        self.counters.malformed_rows += malformed_rows

    def state(self, group: Group) -> dict[str, Any]:
        """Return the counts of all ranks of a group, each of which must call it."""
        return {
            "counters": {**group.totals(asdict(self.counters)), "steps": self.counters.steps},
            "lookups_T": group.total(self.lookups_T),
            "hot_lookups_T": group.total(self.hot_lookups_T),
            **self.weights(group),
        }

    def weights(self, group: Group) -> dict[str, float]:
        """Return the sum of the weights of the samples that all ranks of a group have trained; nothing where samples have none.
        Each rank must call it."""
        if self.weight_trained is None:
            return {}
        return {"weight_trained": float(group.total(np.array([self.weight_trained]))[0])}

    def set_state(self, found: Saved, group: Group) -> None:
        """Restore the counts. Of several ranks, rank 0 has those of all of them so far."""
        counters = found.part("counters")
        restored = {name: counters.integer(name) for name in asdict(self.counters)}
        lookups_T, hot_lookups_T = (found.array(name, np.int64, len(self.lookups_T)) for name in ("lookups_T", "hot_lookups_T"))
        self.weight_trained = found.number("weight_trained") if found.has("weight_trained") else None
        if group.rank:
            self.weight_trained = None if self.weight_trained is None else 0.0
            self.counters = Counters(steps=restored["steps"])
            return
        self.counters = Counters(**restored)
        self.lookups_T[:], self.hot_lookups_T[:] = lookups_T, hot_lookups_T
