"""What the parts of a user's loop share: its tables, and which process may use them."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import ConflictError
from adaptive_rec.modules.loop.dense_steps import DenseSteps
from adaptive_rec.modules.loop.finite_sums import SumCheck
from adaptive_rec.modules.loop.lookahead import Ahead
from adaptive_rec.modules.loop.own_rows import OwnRows
from adaptive_rec.modules.loop.table_rates import TableRates
from adaptive_rec.placement import RowSpace
from adaptive_rec.state.run_state import RunState

_forks = 0
"""Forks between the first process and this one. Each call reads it: to ask the system for the process takes microseconds."""


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Lifetime:
    """The process that has the rows of a loop, and whether the loop has ended."""

    def __init__(self) -> None:
        self.closed = False
        self._process, self._forks = os.getpid(), _forks

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the one that made the runtime."""
        return self._forks != _forks

    def check(self) -> None:
        """Raise ConflictError in a process that was forked from the one that has the rows. It has a copy of them that the other
        knows nothing of, and neither the threads of the other nor their locks."""
        if self.is_forked:
            raise ConflictError(
                f"tables in two tiers must be used in the process that has them ({self._process}), not in one that was forked "
                f"from it ({os.getpid()}): rows are not in shared memory, so what it trains would be lost; fork with "
                "copy.deepcopy(model), which is an ordinary model, or adaptive_rec.unwrap the model before"
            )

    def check_open(self, what: str) -> None:
        """Raise ConflictError where the loop has ended, so that it can no longer be e.g. "served"."""
        self.check()
        if self.closed:
            raise ConflictError(f"the runtime was closed, so it cannot be {what} any more")

    def end(self) -> None:
        """End the loop."""
        self.closed = True


@dataclass(frozen=True)
class TablesInTiers:
    """The tables of a user's loop, for the parts of its runtime."""

    state: RunState
    rows: OwnRows
    rates: TableRates
    steps_T: NDArray[np.int64]
    """Number of steps in which each table was looked up."""
    dense_steps: DenseSteps
    sums: SumCheck
    ahead: Ahead
    weight_dtype: torch.dtype
    """Type of the tables, and of vectors that are looked up."""
    updates_in_backward: bool
    """Whether the end of a backward pass is a step; otherwise gradients wait in ``weight.grad`` for an optimizer's."""
    life: Lifetime = field(default_factory=Lifetime)
    turn: threading.RLock = field(default_factory=threading.RLock)
    """Held while rows are read or updated or move: other threads may evaluate while one trains."""

    @property
    def store(self) -> EmbeddingStore:
        """The rows that this process owns."""
        return self.state.store

    @property
    def space(self) -> RowSpace:
        """The row space of the model's tables; that of the store has the rows that this process owns."""
        return self.rows.space
