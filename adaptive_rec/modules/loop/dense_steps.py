"""Optimizers that move every row at every step, in a user's loop.

Rows make the steps that they missed when they are read, updated, moved out or saved.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.embedding.adam_steps import AdamSteps
from adaptive_rec.embedding.missed_steps import LinearSteps, MissedSteps, StepwiseSteps
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.path.cpu import CpuPath
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import TrainingError
from adaptive_rec.modules.loop.table_rates import TableRates

MOST_FLOAT32_STEPS = 1 << 24
"""Limit of the steps that a row's state, in float32, can number."""
LONGEST_HISTORY = 1 << 16
"""Steps of a table after which all its rows catch up, so that the memory of its steps is bounded."""


class DenseSteps:
    """The steps that every row of a table makes, touched or not. Under other rules its methods do nothing."""

    def __init__(self, store: EmbeddingStore, rates: TableRates, steps_T: NDArray[np.int64], dtype: torch.dtype) -> None:
        """`steps_T`: number of steps of each table so far."""
        self._store, self._rates, self._steps_T, self._dtype = store, rates, steps_T, dtype
        self._missed: dict[int, MissedSteps] = {}

    def catch_up(self, table: int, row_N: NDArray[np.int64] | None = None, next_step: int = 0) -> None:
        """Have rows of a table, by default all, make the steps that they missed. `row_N`: numbers within the pool."""
        if table not in self._missed:
            return
        pool, low, high = self._store.space.table_range(table)
        assert isinstance(self._store.path, CpuPath)
        rows = np.arange(low, high) if row_N is None else row_N
        self._store.path.catch_up(pool, rows, self._missed[table], next_step)

    def settle(self, table: int) -> None:
        """Have all rows of a table make the steps that they missed, and forget these steps. Rows that are saved now and loaded
        later catch up on later steps to the same bits: products over many steps are rounded by where they begin."""
        self.catch_up(table)
        self.begin_anew(table)

    def settle_all(self) -> None:
        """Settle all tables."""
        for table in list(self._missed):
            self.settle(table)

    def announce(self, table: int, lr: float, rows: Iterable[NDArray[np.int64]]) -> None:
        """Begin the next step of a table, at this learning rate: `rows`, by their numbers within the pool, will be updated."""
        if table in self._missed and len(self._missed[table]) >= LONGEST_HISTORY:
            self.settle(table)
        if table not in self._missed:
            self._missed[table] = self._begin(self._rates.rule_of(table), table)
        number = self._missed[table].announce(lr)
        if self._dtype == torch.float32 and number > MOST_FLOAT32_STEPS:
            name = self._rates.of(table).name
            raise TrainingError(f"{name} may make {MOST_FLOAT32_STEPS:,} steps with tables of float32, not more")
        for row_N in rows:
            self.catch_up(table, row_N, number)

    def _begin(self, rule: RowRule, table: int) -> MissedSteps:
        first, dim = int(self._steps_T[table]), self._store.space.tables[table].dim
        how = rule.spec.missed_l2_steps if rule.l2 else rule.spec.missed_steps
        if how == "series":
            return AdamSteps(rule, first)
        if how == "linear":
            return LinearSteps(rule, dim, first)
        return StepwiseSteps(rule, dim, first, self._store.cold.types.dtype)

    def complete(self, table: int) -> None:
        """End a step: the rows of the table that it did not touch have missed it."""
        self._missed[table].complete()

    def begin_anew(self, table: int) -> None:
        """Forget the steps of a table, all rows of which have been set to their state at its present step."""
        self._missed.pop(table, None)
