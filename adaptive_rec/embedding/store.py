"""The embedding store: rows in two tiers (`tiered_rows.py`), gathered and updated step by step.

`direct.py` is the store of a CPU run; `staged.py` that of a device, where cold rows travel.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.micro_batch import MicroBatch
from adaptive_rec.embedding.records import Fetched, RowUpdate
from adaptive_rec.embedding.tiered_rows import TieredRows
from adaptive_rec.tracking.rules import RowMovement


class EmbeddingStore(TieredRows):
    """Gathers, updates and moves rows. Only the training thread calls it, except `stage`."""

    stages_ahead = False
    """Whether cold rows are gathered ahead of their step and sent to where the step runs."""

    @property
    def staging_bytes(self) -> int:
        """Device memory for what is on its way, beside the tier."""
        return 0

    @property
    def peak_bytes(self) -> int:
        """The most device memory in use at one time, the dense part's included; 0 on the CPU."""
        return 0

    # The step --------------------------------------------------------------------------------------------------------

    def stage(self, work: ClassifiedBatch) -> None:
        """Send a classified batch towards the device. May run ahead of the step, on a worker, in the order of the steps."""

    def classify(self, work: ClassifiedBatch) -> None:
        """Bring a batch's classification up to the current placement."""
        if work.placement_version != self.placement.version:
            work.classify(self.placement)

    def take(self, work: ClassifiedBatch) -> None:
        """A batch's step begins: whatever was made ready ahead is brought up to the current placement."""
        self.classify(work)

    @abstractmethod
    def gather(
        self, work: ClassifiedBatch, samples_S: NDArray[np.int64], scale_S: NDArray[np.float64], micro: MicroBatch
    ) -> None:
        """Fill a micro-batch's buffers with some samples of a batch: dense features, labels, scale, pooled vectors."""

    @abstractmethod
    def apply(self, work: ClassifiedBatch, update: RowUpdate) -> None:
        """Update every distinct row of a batch once, in the tier it lives in. The batch is done with then."""

    def release(self, work: ClassifiedBatch) -> None:
        """A batch is done with, without an update."""

    def drop_ahead(self) -> None:
        """Forget the batches that were staged and never will be trained."""

    def free_memory(self) -> None:
        """Give back what device memory can be given back; batches sent ahead are sent again."""

    def complaints(self) -> list[str]:
        """What the user is to be told that was not told before."""
        return []

    # What lies on the device -----------------------------------------------------------------------------------------

    def launch(self, work: Callable[[], object]) -> None:
        """Have the device do something, in the order of these calls. It may be done later."""
        work()

    def fetch(self, tensor: Tensor) -> NDArray[Any]:
        """A tensor of the device, as it stands after everything launched so far."""
        return self.fetch_later(tensor).array()

    def fetch_later(self, tensor: Tensor) -> Fetched:
        """The same, not waited for: what is launched from now on does not change what comes."""
        return Fetched(tensor.numpy().copy())

    def movement(self, pool: int) -> RowMovement:
        """How the row of each slot moved, by the monitor of a pool."""
        return RowMovement.of(self.measure(pool), self.touches(pool))

    def measure(self, pool: int) -> NDArray[Any]:
        """What the monitor of a pool measures of each slot."""
        measured: NDArray[Any] = self.device.monitors[pool].measure(self.device.weights[pool]).numpy()
        return measured

    def touches(self, pool: int) -> NDArray[np.int32]:
        """In how many probe steps of the window each slot's row was updated."""
        found: NDArray[np.int32] = self.device.monitors[pool].touches_H.numpy()
        return found

    def movement_record(self, pool: int) -> NDArray[Any]:
        """The record of a pool's monitor, as it stands."""
        return self.fetch(self.device.monitors[pool].record_HR)

    def count_updates(self, touched: int, hot: int, updated: int) -> None:
        """Rows touched by a step, hot ones among them, and those updated."""
        self.traffic.add_updates(touched, hot, updated)

    def close(self) -> None:
        """End what runs beside the training thread. Rows can still be read."""
        self.settle()
