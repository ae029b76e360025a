"""Values that pass between an embedding store and its callers: micro-batches, updates, counts, tensors from the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch


@dataclass(frozen=True)
class MicroBatch:
    """The dense part's input, filled by the store: S lines, samples first, then padding. A padding line is all zeros."""

    dense_SX: Tensor
    pooled: list[Tensor]
    """Pooled vectors (S, T, D) for each pool. Autograd tracks them only while the micro-batch runs."""
    labels_S: Tensor
    scale_S: Tensor
    """Weight of a line's loss: the sample's weight (more than 0) over the batch size; 0 marks padding."""
    samples: int
    """Lines that are not padding."""

    def first(self, lines: int) -> MicroBatch:
        """Return the first lines of its memory, none of them padding."""
        pooled = [part[:lines] for part in self.pooled]
        return MicroBatch(self.dense_SX[:lines], pooled, self.labels_S[:lines], self.scale_S[:lines], lines)


@dataclass(frozen=True)
class BagReads:
    """What each bag of a batch reads: its rows, or what other processes have pooled of them."""

    offsets: NDArray[np.int64]
    one_hot: bool
    """Whether every bag reads exactly one thing."""
    source_N: NDArray[np.int64]
    """Where each thing is that is read."""
    mean_F: NDArray[np.bool_]
    """Whether each feature averages what its bags read."""

    @staticmethod
    def of(work: ClassifiedBatch) -> BagReads:
        """Return the bags of a batch, which read rows."""
        return BagReads(work.batch.offsets, work.one_hot, work.source_N, work.space.mean_F)


@dataclass(frozen=True)
class RowUpdate:
    """The update of a mini-batch: gradients of its pooled vectors and how to apply them."""

    gradients: list[Tensor]
    """For each pool (at least S, T, D): the trained samples' gradients, micro-batch after micro-batch."""
    position_B: NDArray[np.int64]
    """Line of each sample in the gradients; -1 for a skipped sample."""
    frozen_U: NDArray[np.bool_] | None
    """Distinct rows whose update is skipped."""
    lr: float
    step: int
    """Counts from 1."""
    measure: bool
    """Whether the movement of hot rows is observed (a probe step)."""
    skips: bool = False
    """Whether samples or rows may be skipped in this step, on any rank."""
    sound: Tensor | None = None
    """On a device: whether rows may be updated (a boolean there), where that is not known before."""

    @property
    def may_skip_rows(self) -> bool:
        """Whether a row of the batch may stay as it is: it is frozen, or all samples that look it up are skipped."""
        return self.frozen_U is not None or bool((self.position_B < 0).any())


@dataclass
class Traffic:
    """Updates and bytes counted by a store; the counts only grow."""

    row_updates: int = 0
    """Updates made."""
    row_updates_skipped: int = 0
    """Rows that a trained sample touched and whose update was skipped; all of them are hot."""
    hot_row_updates: int = 0
    """Updates made of hot rows: never more than `row_updates`."""
    host_to_device_bytes: int = 0
    device_to_host_bytes: int = 0
    migrated_rows: int = 0

    def add_updates(self, touched: int, updated: int, hot_updated: int) -> None:
        """Count a step's touched rows, those of them that were updated, and the hot ones among these."""
        self.row_updates += updated
        self.row_updates_skipped += touched - updated
        self.hot_row_updates += hot_updated

    def add_bytes(self, to_device: int = 0, to_host: int = 0) -> None:
        self.host_to_device_bytes += to_device
        self.device_to_host_bytes += to_host

    def add_migration(self, rows: int) -> None:
        self.migrated_rows += rows


class Fetched:
    """A tensor on its way from the device. In host memory it has arrived already."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def is_here(self) -> bool:
        return True

    def array(self) -> NDArray[Any]:
        """Wait for the tensor and return it."""
        return self._array
