"""The contracts of what takes batches through their steps, and of a path of rows: from their tiers to a step, and back."""

# ruff: noqa: B027 - what a variant need not do, it does not
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.cold.home import ColdHome
from adaptive_rec.embedding.device import TierRows
from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.placement import Migration


class Lookups(Protocol):
    """The lookups of a batch, by distinct row."""

    @property
    def distinct_U(self) -> NDArray[np.int64]: ...

    @property
    def segments_U1(self) -> NDArray[np.int64]:
        """Bounds of the segments of lookups that read each row."""
        ...

    @property
    def source_U(self) -> NDArray[np.int64]:
        """Slot of a hot row, negative for a cold one."""
        ...


class BatchPath(ABC):
    """Takes batches through their steps. Only the training thread calls it, except `classified` and `stage`, which workers call
    in the order of the steps.

    A batch is classified, may be staged, and is taken, gathered (in parts, any number of times) and then either updated by
    `apply` or released. Whatever was staged ahead, each gather reads what all steps before have left.
    """

    # Ahead of the step -----------------------------------------------------------------------------------------------

    @abstractmethod
    def classified(self, batch: Batch, threads: int = 1) -> ClassifiedBatch:
        """Return a batch that is to be trained, classified. Workers call it, too, with one thread."""

    def stage(self, work: ClassifiedBatch) -> None:
        """Bring the rows of a classified batch nearer, ahead of its step."""

    def look_ahead(self, work: ClassifiedBatch) -> None:
        """Start to read what `look_up` will need of a batch, where that takes time."""

    # The step --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def look_up(self, work: ClassifiedBatch) -> None:
        """Make a batch ready for `gather` outside of a step."""

    @abstractmethod
    def take(self, work: ClassifiedBatch) -> None:
        """Start a batch's step: what was staged ahead is brought up to the current placement."""

    def await_rows(self, work: ClassifiedBatch) -> None:
        """Wait for the rows of a batch, before `take`, that were not in memory when it was staged."""

    @abstractmethod
    def gather(
        self, work: ClassifiedBatch, samples_S: NDArray[np.int64], scale_S: NDArray[np.float64], micro: MicroBatch
    ) -> None:
        """Fill a micro-batch's buffers with some samples of a batch: dense features, labels, scale, pooled vectors."""

    @abstractmethod
    def apply(self, work: ClassifiedBatch, update: RowUpdate) -> None:
        """Update every distinct row of a batch once, in its tier. Ends the batch."""

    def release(self, work: ClassifiedBatch) -> None:
        """End a batch without an update."""

    def counted(self, work: ClassifiedBatch) -> Lookups:
        """Return the lookups of a batch that this process counts."""
        return work


class RowPath(BatchPath):
    """Gathers and updates the rows of batches, all of which this process has."""

    stages_ahead = False
    """Whether batches are staged ahead of their step."""
    updates_once = False
    """Whether a batch that was staged can be updated only once."""
    counting_threads = 1
    """Threads that may count lookups beside the steps. On a CPU the training thread needs the cores."""

    def __init__(self, index: RowIndex, rules: Sequence[RowRule], hot: HotRows, cold: ColdHome) -> None:
        self._index, self._rules, self._hot, self._cold = index, rules, hot, cold
        self.threads = 1
        """Threads of the kernels that the training thread runs."""

    def classified(self, batch: Batch, threads: int = 1) -> ClassifiedBatch:
        work = ClassifiedBatch(batch, self._index.space, threads)
        self.classify(work)
        return work

    def classify(self, work: ClassifiedBatch) -> None:
        """Classify a batch under the current placement, where it is not."""
        if work.placement_version != self._index.placement.version:
            work.classify(self._index.placement)

    look_up = take = classify

    # Beside the step, between `gather` and `apply` ---------------------------------------------------------------------

    @abstractmethod
    def gather_beside(
        self, work: ClassifiedBatch, scale_B: NDArray[np.float64], micro: MicroBatch, twin: TierRows
    ) -> None:
        """Fill a micro-batch with all samples of a batch, its hot rows read from a copy of the tier (`embedding/twin.py`)."""

    @abstractmethod
    def update_beside(self, work: ClassifiedBatch, update: RowUpdate, twin: TierRows) -> bool:
        """Update the hot rows of a batch in a copy of the tier; all else stays. The step updates these rows, too. Returns False
        where a row has become too large for its type."""

    # Between steps ---------------------------------------------------------------------------------------------------

    def drop_ahead(self) -> None:
        """Drop the batches that were staged and never will be trained."""

    def end_migration(self, migration: Migration) -> None:
        """Have batches that are classified from now on find rows that have moved."""

    def flag_changed(self) -> None:
        """Flag all rows in `changed_R` that steps have updated, where they are not flagged at once."""

    @property
    def staging_bytes(self) -> int:
        """Device memory of the staging rings."""
        return 0

    @property
    def peak_bytes(self) -> int:
        """The most device memory used at one time, the dense part's included; 0 on the CPU."""
        return 0

    def complaints(self) -> list[str]:
        """Return the warnings that were not returned before."""
        return []

    def free_memory(self) -> None:
        """Free all device memory that can be freed; batches sent ahead will be sent again."""

    def settle(self) -> None:
        """Wait until all queued work is done and every update has reached its row."""

    def close(self) -> None:
        """Stop the worker threads. Rows can still be read."""
        self.settle()
