"""The embedding store: rows in two tiers (`tiered_rows.py`), gathered and updated step by step.

`direct.py` is the store of a CPU run, `staged/` that of a device run.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import Batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.disk.memory_slots import MemorySlots
from adaptive_rec.embedding.records import Fetched, MicroBatch, RowUpdate
from adaptive_rec.embedding.settable_rows import SettableRows
from adaptive_rec.live.state_writer import Tier
from adaptive_rec.placement import Migration, RowSpace
from adaptive_rec.system.group import ALONE, Group
from adaptive_rec.tracking.rules import RowMovement


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


class EmbeddingStore(SettableRows):
    """Gathers, updates and moves rows. Only the training thread calls it, except `stage`."""

    stages_ahead = False
    """Whether batches are staged ahead of their step."""
    updates_once = False
    """Whether a batch that was staged can be updated only once."""
    counting_threads = 1
    """Threads that may count lookups beside the steps. On a CPU the training thread needs the cores."""
    on_disk = False
    """Whether cold rows lie on a disk."""
    memory: MemorySlots | None = None
    """The cold rows that are in host memory, where others lie on a disk and hot ones on a device; else None."""
    group: Group = ALONE
    """The processes that train together."""

    @property
    def staging_bytes(self) -> int:
        """Device memory of the staging rings."""
        return 0

    @property
    def peak_bytes(self) -> int:
        """The most device memory used at one time, the dense part's included; 0 on the CPU."""
        return 0

    @property
    def batch_space(self) -> RowSpace:
        """The row space of batches: that of the rows kept here, unless other processes keep some of them."""
        return self.space

    # The step --------------------------------------------------------------------------------------------------------

    def stage(self, work: ClassifiedBatch) -> None:
        """Send a classified batch to the device ahead of its step. May run on a worker, in the order of the steps."""

    def classified(self, batch: Batch, threads: int = 1) -> ClassifiedBatch:
        """Return a batch that is to be trained, classified. Workers call it, too, with one thread."""
        work = ClassifiedBatch(batch, self.batch_space, threads)
        self.classify(work)
        return work

    def classify(self, work: ClassifiedBatch) -> None:
        """Classify a batch under the current placement, where it is not."""
        if work.placement_version != self.placement.version:
            work.classify(self.placement)

    def look_ahead(self, work: ClassifiedBatch) -> None:
        """Start to read what `look_up` will need of a batch, where that takes time."""

    def look_up(self, work: ClassifiedBatch) -> None:
        """Make a batch ready for `gather` outside of a step."""
        self.classify(work)

    def take(self, work: ClassifiedBatch) -> None:
        """Start a batch's step: what was staged ahead is brought up to the current placement."""
        self.classify(work)

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

    def stale_of(self, work: ClassifiedBatch) -> NDArray[np.bool_]:
        """Return which distinct rows of a batch are hot and stale."""
        stale_U = np.zeros(len(work.source_U), dtype=np.bool_)
        for pool, stale_H in enumerate(self.device.stale):
            span = work.pool_range(pool)
            if len(stale_H):
                stale_U[span] = stale_H[np.maximum(work.source_U[span], 0)] & (work.source_U[span] >= 0)
        return stale_U

    @property
    def own_slots(self) -> slice:
        """The slots of this process in the line of all ranks' slots."""
        return slice(0, sum(self.device.capacities))

    def slots_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slot of each of some rows of `batch_space`, -1 for a cold one. The slots of all pools, and of all ranks,
        stand in one line."""
        firsts = np.concatenate([[0], np.cumsum(self.device.capacities)])
        pool = np.searchsorted([spec.end_row for spec in self.space.pools], rows, side="right")
        slots = self.placement.slot_of_row[rows]
        return np.where(slots >= 0, firsts[pool] + slots, -1)

    def owned(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return which of some rows of `batch_space` this process has, and the numbers of those in `space`."""
        return np.ones(len(rows), np.bool_), rows

    def counted(self, work: ClassifiedBatch) -> Lookups:
        """Return the lookups of a batch that this process counts."""
        return work

    def shown_placement(self) -> tuple[NDArray[np.int32], list[Tier]]:
        """Return the placement for clients: the slot of each row of `batch_space`, and each pool's slots. Of several processes
        rank 0 alone gets those of all ranks, but each must call it."""
        device = self.device
        tiers = map(Tier, device.row_of_slot, device.stale, device.estimate, device.movement)
        return self.placement.slot_of_row, list(tiers)

    @property
    def shows_addresses(self) -> bool:
        """Whether clients are told which cold rows lie on a disk: not of several processes, as each knows only those it owns."""
        return self.on_disk and self.group.is_alone

    def own_disk_figures(self) -> dict[str, int]:
        """Return what this process has read and written on a disk, and the sizes of its files. Nothing where none lie there."""
        return {}

    def disk_counts(self) -> dict[str, int]:
        """Return how many rows were read and written on a disk since the run began, by all ranks: each must call it.
        Nothing where none lie there."""
        return {}

    def set_disk_counts(self, counts: Mapping[str, int]) -> None:
        """Set what earlier processes of the run, of all ranks, have read and written on a disk."""

    def disk_sizes(self) -> dict[str, int]:
        """Return the bytes of all files of rows on a disk, and their number, of all ranks: each must call it. Nothing where there
        are none."""
        return {}

    def share_addresses(self, address_R: NDArray[np.uint32]) -> None:
        """Keep the addresses of rows on a disk (R, of all pools) in this memory from now on, which other processes read."""

    def place_in_memory(self, migration: Migration) -> None:
        """Move cold rows from the disk to host memory (`promote`) and back, where there is `memory`. No value changes, nor does
        the placement."""

    def drop_ahead(self) -> None:
        """Drop the batches that were staged and never will be trained."""

    def free_memory(self) -> None:
        """Free all device memory that can be freed; batches sent ahead will be sent again."""

    def complaints(self) -> list[str]:
        """Return the warnings that were not returned before."""
        return []

    # The device tier -------------------------------------------------------------------------------------------------

    def launch(self, work: Callable[[], object]) -> None:
        """Queue work on the device, in the order of these calls."""
        work()

    def fetch(self, tensor: Tensor) -> NDArray[Any]:
        """Return a tensor of the device, after all work launched so far."""
        return self.fetch_later(tensor).array()

    def fetch_later(self, tensor: Tensor) -> Fetched:
        """Fetch in the background; work launched later does not change the result."""
        return Fetched(tensor.numpy().copy())

    def has_arrived(self, fetched: Fetched) -> bool:
        """Return whether a tensor that is fetched later is here. Of several processes all get the same answer."""
        return fetched.is_here()

    def movement(self, pool: int) -> RowMovement:
        """Return how the row of each slot of a pool moved."""
        return RowMovement.of(self.measure(pool), self.touches(pool))

    def measure(self, pool: int) -> NDArray[Any]:
        """Return the measures of each slot by a pool's monitor."""
        measured: NDArray[Any] = self.device.monitors[pool].measure(self.device.weights[pool]).numpy()
        return measured

    def touches(self, pool: int) -> NDArray[np.int32]:
        """Return the number of probe steps of the window that updated each slot's row."""
        found: NDArray[np.int32] = self.device.monitors[pool].touches_H.numpy()
        return found

    def movement_record(self, pool: int) -> NDArray[Any]:
        """Return the present record of a pool's monitor."""
        return self.fetch(self.device.monitors[pool].record_HR)

    def close(self) -> None:
        """Stop the worker threads. Rows can still be read."""
        self.settle()
