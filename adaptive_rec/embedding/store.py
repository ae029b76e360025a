"""The embedding store: two tiers, the placement that joins them, and the moves between them.

A row has exactly one authoritative copy: in the device tier when it has a slot, in the host tier otherwise.
`direct.py` is the store of a CPU run; `staged.py` that of a device, where cold rows travel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.device import DeviceTier, row_bytes, split_budget
from adaptive_rec.embedding.host import HostTier
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.errors import CheckpointError
from adaptive_rec.micro_batch import MicroBatch
from adaptive_rec.placement import COLD, Migration, Placement, RowSpace
from adaptive_rec.saved import Saved, numbered
from adaptive_rec.tracking.rules import RowMovement

_CHUNK_ROWS = 1 << 18

NUMPY_DTYPE = {torch.float32: np.float32, torch.float64: np.float64}


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
    """What the store has done so far; counts only grow."""

    row_updates: int = 0
    row_updates_skipped: int = 0
    hot_row_updates: int = 0
    """Hot rows touched, skipped ones included."""
    host_to_device_bytes: int = 0
    device_to_host_bytes: int = 0
    migrated_rows: int = 0


class Fetched:
    """A tensor that comes from the device."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def is_here(self) -> bool:
        return True

    def array(self) -> NDArray[Any]:
        """It, once it is here."""
        return self._array


class EmbeddingStore(ABC):
    """Gathers, updates and moves rows. Only the training thread calls it, except `stage`."""

    stages_ahead = False
    """Whether cold rows are gathered ahead of their step and sent to where the step runs."""

    def __init__(
        self,
        space: RowSpace,
        rule: RowRule,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        budget_bytes: int,
        monitored: bool,
    ) -> None:
        self.space = space
        self.rule = rule
        self.dtype = dtype
        self.torch_device = device
        self.monitored = monitored
        self.seed = seed
        self.host = HostTier(space, rule, seed, NUMPY_DTYPE[dtype])
        self._slot_of_row = np.full(space.rows, COLD, dtype=np.int32)
        self.placement = Placement(0, self._slot_of_row)
        self.traffic = Traffic()
        self.hot_rows_T = np.zeros(len(space.tables), dtype=np.int64)
        """Hot rows of each table."""
        self.device = self._device_tier(split_budget(space, self.row_bytes, budget_bytes))
        self.threads = 1
        """Threads that the training thread's kernels run on."""

    @property
    def row_bytes(self) -> list[int]:
        """Device bytes of one hot row of each pool."""
        return self.row_bytes_when(self.monitored)

    def row_bytes_when(self, monitored: bool) -> list[int]:
        """What they would be with, or without, a record of the rows' movement."""
        return row_bytes(self.space, self.rule, self.dtype.itemsize, monitored)

    @property
    def device_bytes(self) -> int:
        """Device memory the tier takes, free slots included."""
        return sum(size * slots for size, slots in zip(self.row_bytes, self.device.capacities, strict=True))

    @property
    def staging_bytes(self) -> int:
        """Device memory for what is on its way, beside the tier."""
        return 0

    @property
    def peak_bytes(self) -> int:
        """The most device memory in use at one time, the dense part's included; 0 on the CPU."""
        return 0

    def _device_tier(self, capacities: list[int]) -> DeviceTier:
        return DeviceTier(self.space, self.rule, self.dtype, self.torch_device, capacities, self.monitored)

    # The step --------------------------------------------------------------------------------------------------------

    def stage(self, work: ClassifiedBatch) -> None:  # noqa: B027 - a store without staging has nothing to send ahead
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

    def release(self, work: ClassifiedBatch) -> None:  # noqa: B027 - only staged batches hold anything
        """A batch is done with, without an update."""

    def drop_ahead(self) -> None:  # noqa: B027 - likewise
        """Forget the batches that were staged and never will be trained."""

    def free_memory(self) -> None:  # noqa: B027 - likewise
        """Give back what device memory can be given back; batches sent ahead are sent again."""

    def trim(self) -> None:  # noqa: B027 - likewise
        """Give memory that nothing uses back to the device, for whatever needs it next."""

    def complaints(self) -> list[str]:
        """What the user is to be told that was not told before."""
        return []

    def settle(self) -> None:  # noqa: B027 - only a device is still at work when a call has returned
        """Return when everything asked for has been done, and every update has reached its row."""

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

    def movement_record(self, pool: int) -> NDArray[Any]:
        """The record of a pool's monitor, as it stands."""
        return self.fetch(self.device.monitors[pool].record_HR)

    def count_updates(self, touched: int, hot: int, updated: int) -> None:
        """Rows touched by a step, hot ones among them, and those updated."""
        self.traffic.row_updates += updated
        self.traffic.row_updates_skipped += touched - updated
        self.traffic.hot_row_updates += hot

    def close(self) -> None:
        """End what runs beside the training thread. Rows can still be read."""
        self.settle()

    # Between steps ---------------------------------------------------------------------------------------------------

    def migrate(self, migration: Migration) -> None:
        """Move rows between the tiers with their optimizer state. Changes no value."""
        if not migration.moved_rows:
            return
        self.settle()
        for pool, spec in enumerate(self.space.pools):
            self._demote(pool, _within(migration.demote, spec.first_row, spec.end_row))
            self._promote(pool, _within(migration.promote, spec.first_row, spec.end_row))
        self.traffic.migrated_rows += migration.moved_rows
        self.hot_rows_T += self.space.count_by_table(migration.promote) - self.space.count_by_table(migration.demote)
        # Last: a batch classified by a worker meanwhile carries the old version, so it is classified again.
        self.placement = Placement(self.placement.version + 1, self._slot_of_row)

    def resize(self, capacities: list[int], ranked_rows: NDArray[np.int64], monitored: bool | None = None) -> Migration:
        """Give each pool another number of slots: all rows go home, then as many of `ranked_rows` as fit return, best first.

        `monitored` says whether it keeps the movement of its rows from now on; None: as before. Returns what changed tier
        on the whole.
        """
        nothing = np.empty(0, dtype=np.int64)
        hot_before = np.sort(np.concatenate([rows[rows >= 0] for rows in self.device.row_of_slot]))
        self.migrate(Migration(promote=nothing, demote=hot_before))
        before = self.monitored, self.device.capacities
        self.monitored = self.monitored if monitored is None else monitored
        failed: Exception | None = None
        try:
            self._replace_tier(capacities)
        except Exception as error:  # there is not so much
            failed = error.with_traceback(None)  # whose frames hold what could be had
        if failed is not None:  # all as it was, then tell
            self.monitored, former = before
            self._replace_tier(former)
            self.migrate(Migration(promote=hot_before, demote=nothing))
            raise failed
        fitting = [
            _within(ranked_rows, pool.first_row, pool.end_row)[:capacity]
            for pool, capacity in zip(self.space.pools, self.device.capacities, strict=True)
        ]
        hot_now = np.concatenate(fitting)
        self.migrate(Migration(promote=hot_now, demote=nothing))
        return Migration(np.setdiff1d(hot_now, hot_before), np.setdiff1d(hot_before, hot_now))

    def _replace_tier(self, capacities: list[int]) -> None:
        """Another, empty tier; the old one's memory goes before the new is taken."""
        self.device = self._device_tier([0] * len(self.space.pools))
        self.trim()
        self.device = self._device_tier(capacities)

    def _demote(self, pool: int, rows: NDArray[np.int64]) -> None:
        if not len(rows):
            return
        slots = self._slot_of_row[rows].astype(np.int64)
        self._bring_home(pool, slots, rows - self.space.pools[pool].first_row)
        self._slot_of_row[rows] = COLD
        self.device.row_of_slot[pool][slots] = -1
        self.device.stale[pool][slots] = False
        self._count_moved(pool, len(rows), to_device=False)

    def _promote(self, pool: int, rows: NDArray[np.int64]) -> None:
        if not len(rows):
            return
        slots = np.flatnonzero(self.device.row_of_slot[pool] < 0)[: len(rows)]
        assert len(slots) == len(rows), "a migration may not promote more rows than there are free slots"
        self._send_up(pool, rows - self.space.pools[pool].first_row, slots)
        self._slot_of_row[rows] = slots
        self.device.row_of_slot[pool][slots] = rows
        self.device.stale[pool][slots] = False
        self.device.movement[pool][slots] = np.inf
        self._count_moved(pool, len(rows), to_device=True)

    def touches(self, pool: int) -> NDArray[np.int32]:
        """In how many probe steps of the window each slot's row was updated."""
        found: NDArray[np.int32] = self.device.monitors[pool].touches_H.numpy()
        return found

    @abstractmethod
    def _bring_home(self, pool: int, slots: NDArray[np.int64], host_rows: NDArray[np.int64]) -> None:
        """Copy rows and their optimizer state from slots to the host tier; what the monitor knows of the slots is forgotten."""

    @abstractmethod
    def _send_up(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """Copy rows and their optimizer state from the host tier to slots."""

    @abstractmethod
    def _read_slots(self, pool: int, slots: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Rows and optimizer state of some slots."""

    def _count_moved(self, pool: int, rows: int, to_device: bool) -> None:
        spec = self.space.pools[pool]
        size = rows * self.rule.bytes_per_row(spec.dim, self.dtype.itemsize)
        if to_device:
            self.traffic.host_to_device_bytes += size
        else:
            self.traffic.device_to_host_bytes += size

    # Whole tables ----------------------------------------------------------------------------------------------------

    def table(self, table: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """A table's rows and optimizer state as they stand: views of the host tier, whose copies of hot rows are brought up to
        date for it (they stay hot)."""
        self.settle()
        pool, low, high = self.space.table_range(table)
        weights, state = self.host.weights[pool][low:high], self.host.state[pool][low:high]
        first = self.space.pools[pool].first_row
        slot = self._slot_of_row[first + low : first + high]
        hot = np.flatnonzero(slot != COLD)
        for start in range(0, len(hot), _CHUNK_ROWS):
            rows = hot[start : start + _CHUNK_ROWS]
            weights[rows], state[rows] = self._read_slots(pool, slot[rows].astype(np.int64))
        return weights, state

    def export_table(self, table: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Copies of a table's rows and optimizer state, whatever tier each row is in."""
        weights, state = self.table(table)
        return weights.copy(), state.copy()

    def import_table(self, table: int, weights: NDArray[Any], state: NDArray[Any]) -> None:
        """Set a table's rows and optimizer state. Only before training, when every row is cold. What is given may be read from a
        file slice by slice."""
        assert self.placement.version == 0, "tables are imported before the first migration"
        pool, low, high = self.space.table_range(table)
        for start in range(low, high, _CHUNK_ROWS):
            chunk = slice(start, min(start + _CHUNK_ROWS, high))
            self.host.weights[pool][chunk] = weights[chunk.start - low : chunk.stop - low]
            self.host.state[pool][chunk] = state[chunk.start - low : chunk.stop - low]

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Where every row is and what is known of the hot ones. Rows and optimizer state are `table`'s."""
        device = self.device
        return {
            "version": self.placement.version,
            "traffic": asdict(self.traffic),
            "pools": numbered(
                {
                    "row_of_slot": device.row_of_slot[pool],
                    "stale": device.stale[pool],
                    "estimate": device.estimate[pool],
                    "movement": device.movement[pool],
                    "monitor": self._monitor_state(pool) if self.monitored else None,
                }
                for pool in range(len(self.space.pools))
            ),
        }

    def _monitor_state(self, pool: int) -> dict[str, Any]:
        return {"record_HR": self.movement_record(pool), "touches_H": self.touches(pool)}

    def set_state(self, found: Saved) -> None:
        """Rows into the slots they had. Only where every row is cold and tables are imported; see `set_slots`."""
        assert not self.device.hot_rows, "a placement is restored before any other"
        version, pools = found.integer("version"), found.parts("pools", len(self.space.pools))
        for pool, part in enumerate(pools):
            self._fill_slots(pool, part)
            monitor = part.maybe("monitor")
            if (monitor is not None) != self.monitored:
                raise CheckpointError(f"monitor of pool {pool} must be there where movement is kept, and only there")
            if monitor is not None:
                self._set_monitor(pool, monitor)
        self.hot_rows_T = self.space.count_by_table(np.flatnonzero(self._slot_of_row != COLD))
        self.set_traffic(found.part("traffic"))
        self.placement = Placement(version, self._slot_of_row)

    def set_slots(self, capacities: list[int]) -> None:
        """Give each pool so many slots, while every row is cold."""
        assert not self.device.hot_rows, "rows would be lost with their slots"
        if capacities != self.device.capacities:
            self._replace_tier(capacities)

    def set_traffic(self, found: Saved) -> None:
        self.traffic = Traffic(**{name: found.integer(name) for name in asdict(self.traffic)})

    def _fill_slots(self, pool: int, found: Saved) -> None:
        device, spec = self.device, self.space.pools[pool]
        slots = len(device.row_of_slot[pool])
        row_of_slot = found.array("row_of_slot", np.int64, slots)
        hot = np.flatnonzero(row_of_slot != -1)
        rows = row_of_slot[hot]
        inside = not len(rows) or (spec.first_row <= rows.min() and rows.max() < spec.end_row)
        if not inside or len(np.unique(rows)) != len(rows):
            raise CheckpointError(
                f"rows of slots of pool {pool} must be distinct rows of it, or -1 where there is none"
            )
        device.row_of_slot[pool][:] = row_of_slot
        device.stale[pool][:] = found.array("stale", np.bool_, slots)
        device.estimate[pool][:] = found.array("estimate", np.float32, slots)
        device.movement[pool][:] = found.array("movement", np.float32, slots)
        self._send_up(pool, rows - spec.first_row, hot)
        self._slot_of_row[rows] = hot

    def _set_monitor(self, pool: int, found: Saved) -> None:
        monitor = self.device.monitors[pool]
        record_HR = torch.from_numpy(
            found.array("record_HR", NUMPY_DTYPE[monitor.record_HR.dtype], *monitor.record_HR.shape)
        )
        touches_H = torch.from_numpy(found.array("touches_H", np.int32, len(monitor.touches_H)))
        self.launch(lambda: monitor.record_HR.copy_(record_HR))
        self.launch(lambda: monitor.touches_H.copy_(touches_H))


def _within(rows: NDArray[np.int64], low: int, high: int) -> NDArray[np.int64]:
    return rows[(rows >= low) & (rows < high)]
