"""What came before: of each event of a log, the last ones of the same owner, as the bags of a history column."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.prepared_arrays import offsets_of, spread

LENGTH = "history_steps"
"""The dense column of how long a row's history is."""


class Histories:
    """Events (C) in the order of a log; a history has at most `steps` of them, oldest first."""

    def __init__(self, owner_C: NDArray[np.integer], steps: int) -> None:
        count = len(owner_C)
        self._order_C = np.argsort(owner_C, kind="stable")
        sorted_C = owner_C[self._order_C]
        new_C = np.ones(count, dtype=np.bool_)
        new_C[1:] = sorted_C[1:] != sorted_C[:-1]
        first_C = np.maximum.accumulate(np.where(new_C, np.arange(count), 0))
        self._place_C = np.empty(count, dtype=np.int64)
        self._place_C[self._order_C] = np.arange(count)
        self.earlier_C = np.empty(count, dtype=np.int64)
        """How many events the owner has before each one, however long ago."""
        self.earlier_C[self._order_C] = np.arange(count) - first_C
        self.steps = steps

    def of(self, events_B: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The events before each of some, one history after the other, and the histories' lengths."""
        lengths_B = np.minimum(self.earlier_C[events_B], self.steps)
        places_N = spread(self._place_C[events_B] - lengths_B, lengths_B, offsets_of(lengths_B))
        return self._order_C[places_N], lengths_B.astype(np.int32)


def padded(values_N: NDArray[np.float32], lengths_B: NDArray[np.int32], steps: int) -> NDArray[np.float32]:
    """Values of histories as a matrix (B, steps) whose last columns they fill; 0 before them."""
    values_BT = np.zeros((len(lengths_B), steps), dtype=np.float32)
    values_BT[np.arange(steps) >= steps - lengths_B[:, None]] = values_N
    return values_BT
