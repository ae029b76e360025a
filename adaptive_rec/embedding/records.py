"""Values that an embedding store is given and returns: a step's update, its counts, tensors that come from the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class RowUpdate:
    """The one update of a mini-batch: gradients of its pooled vectors and how to apply them."""

    gradients: list[Tensor]
    """For each pool (at least S, T, D): the trained samples' gradients, micro-batch after micro-batch."""
    position_B: NDArray[np.int64]
    """Line of each sample in the gradients, -1 for a sample that was skipped."""
    frozen_U: NDArray[np.bool_] | None
    """Distinct rows whose update is skipped."""
    lr: float
    step: int
    """Counts from 1."""
    measure: bool
    """Whether the movement of hot rows is observed (a probe step)."""


@dataclass
class Traffic:
    """Updates and bytes that a store has counted so far; counts only grow."""

    row_updates: int = 0
    row_updates_skipped: int = 0
    hot_row_updates: int = 0
    """Hot rows touched, skipped ones included."""
    host_to_device_bytes: int = 0
    device_to_host_bytes: int = 0
    migrated_rows: int = 0

    def add_updates(self, touched: int, hot: int, updated: int) -> None:
        """Count the rows that a step touched, hot ones among them, and those it updated."""
        self.row_updates += updated
        self.row_updates_skipped += touched - updated
        self.hot_row_updates += hot

    def add_bytes(self, to_device: int = 0, to_host: int = 0) -> None:
        self.host_to_device_bytes += to_device
        self.device_to_host_bytes += to_host

    def add_migration(self, rows: int) -> None:
        self.migrated_rows += rows


class Fetched:
    """A tensor that comes from the device."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def is_here(self) -> bool:
        return True

    def array(self) -> NDArray[Any]:
        """It, once it is here."""
        return self._array
