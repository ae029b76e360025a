"""Batches between their staging and the return of their rows to the host tier, and the rows that one passes to another.

A batch may need a cold row that an earlier batch still holds, so the host's copy is out of date. Such a row is *forwarded*: when
the step begins it is copied on the device from the earlier batch's slot, after that batch's update. So every step reads what a
plain step would read, to any depth of staging, and no step waits for the host.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.host import Arrays
from adaptive_rec.embedding.staged.device_bags import BatchOnDevice
from adaptive_rec.embedding.staged.packing import PackedArray
from adaptive_rec.embedding.staged.ring import Slot
from adaptive_rec.embedding.staged.streams import Event
from adaptive_rec.embedding.staged.take_over import RowsTaken
from adaptive_rec.embedding.staged.travelling import TravellingRows

DirectPool: TypeAlias = tuple[int, NDArray[np.int64], Tensor, tuple[Tensor, Tensor]]
"""A pool, its rows' numbers within it on the host and on the device, and their weights and optimizer state in a slot."""


@dataclass
class PoolParts:
    """One pool's arrays of a batch on the device, and the places of its rows in their slot."""

    host_rows_C: NDArray[np.int64]
    """Cold rows, by their numbers in the host tier."""
    distinct: int
    """Distinct rows."""
    source_U: Tensor
    piece_U1: Tensor
    piece_P1: Tensor
    places: tuple[PackedArray, PackedArray] | None
    """Of weights and optimizer state in the slot; None: they are used in the host tier."""
    rows: tuple[Tensor, Tensor]
    """Weights and optimizer state as kernels of the device reach them."""
    number_U: Tensor | None
    """The distinct rows' numbers in the joint row space (int64), where rows are of 16 bits: their dice depend on them."""
    direct_C: Tensor | None
    """The numbers (int64) of rows that the device reads and writes in host memory."""

    def pinned_rows(self, slot: Slot) -> Arrays:
        """Weights and optimizer state in host memory."""
        assert self.places is not None, "rows that stay in the host tier have no copies"
        weights_CD, state_CK = self.places
        return weights_CD.pinned(slot), state_CK.pinned(slot)


@dataclass
class Forward:
    """Rows of one pool that come from an earlier batch's slot."""

    pool: int
    flight: Flight
    origin: Staged
    """The earlier batch, as it was staged when this one was."""


@dataclass(eq=False)
class Staged:
    """A batch's arrays in a slot of the ring."""

    placement_version: int
    slot: Slot
    """Its rows are there."""
    bags: BatchOnDevice
    bag_N: Tensor
    pools: list[PoolParts]
    travelling: TravellingRows
    """Kept for later batches."""
    forwards: list[Forward] = field(default_factory=list)
    rows_taken: RowsTaken | None = None
    """The rows of `forwards`, line by line."""
    indices_here: Event = None
    """Everything but rows has arrived."""
    rows_here: Event = None
    """Rows have arrived; None where none travel."""
    indices_ready: bool = False
    """Whether the computation waits for everything but rows."""
    rows_ready: bool = False
    """Whether the computation waits for the rows, and rows to forward are queued."""
    counted: bool = False
    """Whether its bytes were counted as traffic."""
    rows_start: int = 0
    copied_stop: int = 0
    stop: int = 0
    """Bytes `rows_start` to `stop` of the slot hold the rows and their optimizer state, those behind `copied_stop` of pools that
    the device reads and writes in host memory."""
    sent_bytes: int = 0
    """Bytes that went up."""
    rows_read: int = 0
    """Rows that were not in host memory."""

    def sent_indices(self, event: Event) -> None:
        """Set the event at which everything but rows has arrived."""
        self.indices_here = event

    def sent_rows(self, event: Event) -> None:
        """Set the event at which rows have arrived."""
        self.rows_here = event

    def forward(self, forwards: list[Forward], taken: RowsTaken) -> None:
        """Set the rows that come from earlier batches, whose slots are held."""
        self.forwards, self.rows_taken = forwards, taken

    def count_read(self, rows: int) -> None:
        """Count rows that were not in host memory."""
        self.rows_read += rows

    def use_indices(self) -> bool:
        """Return whether the computation must wait for everything but rows now: at the first call."""
        first, self.indices_ready = not self.indices_ready, True
        return first

    def use_rows(self) -> bool:
        """Return whether the computation must wait for rows now: they travel, and this is the first call."""
        first = self.rows_here is not None and not self.rows_ready
        self.rows_ready |= first
        return first

    def count_once(self) -> int:
        """Return the bytes sent to the device, at the first call; 0 later."""
        first, self.counted = not self.counted, True
        return self.sent_bytes if first else 0

    def direct_pools(self) -> list[DirectPool]:
        """Return the pools with rows that the device reads and writes in host memory."""
        parts = list(enumerate(self.pools))
        return [(pool, of.host_rows_C, of.direct_C, of.rows) for pool, of in parts if of.direct_C is not None]

    def release_forwards(self, event: Event) -> None:
        for forward in self.forwards:
            forward.origin.slot.release(event)
        self.forwards = []


@dataclass(eq=False)
class Flight:
    """A batch on its way, from its staging until its rows are home."""

    work: ClassifiedBatch
    staged: Staged | None = None
    taken: bool = False
    """Whether its step has started."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is staged, for the first time or again."""

    def begin(self) -> None:
        """Start its step, so that the worker does not stage it again."""
        self.taken = True

    def hold(self, staged: Staged | None) -> Staged | None:
        """Replace its staged batch. Returns the former one."""
        before, self.staged = self.staged, staged
        return before

    def is_staged(self, placement_version: int) -> bool:
        """Return whether its staged batch can be used: no rows moved since, and no flight before it was staged again."""
        staged = self.staged
        if staged is None or staged.placement_version != placement_version:
            return False
        for forward in staged.forwards:  # no generator: this is asked of every flight for each batch
            if forward.flight.staged is not forward.origin:
                return False
        return True


class InFlight:
    """All flights, in the order of their steps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: list[Flight] = []

    def add(self, flight: Flight) -> None:
        with self._lock:
            self._flights.append(flight)

    def add_now(self, flight: Flight) -> None:
        """Add a flight whose step comes before those that are ahead; these are to be staged again."""
        with self._lock:
            ahead = [other for other in self._flights if not other.taken]
            self._flights = [other for other in self._flights if other.taken] + [flight, *ahead]
        for other in ahead:
            with other.lock:
                self.drop(other, None)

    def end(self, flight: Flight) -> None:
        """Remove a flight whose rows are in the host tier."""
        with self._lock:
            self._flights = [other for other in self._flights if other is not flight]

    def before(self, flight: Flight) -> list[Flight]:
        """Return the flights before this one, in order."""
        with self._lock:
            return self._flights[: self._flights.index(flight)]

    def ahead(self) -> list[Flight]:
        """Return the flights whose steps have not started."""
        with self._lock:
            return [flight for flight in self._flights if not flight.taken]

    def drop_ahead(self) -> list[ClassifiedBatch]:
        """Remove the flights whose steps have not started and never will. Returns their batches."""
        ahead = self.ahead()
        for flight in ahead:
            self.end(flight)
            self.drop(flight, None)
        return [flight.work for flight in ahead]

    def end_all(self, event: Event | None) -> list[ClassifiedBatch]:
        """Remove all flights; none of them will be trained. Returns their batches."""
        with self._lock:
            left, self._flights = self._flights, []
        for flight in left:
            self.drop(flight, event)
            flight.work.attach(None)
        return [flight.work for flight in left]

    def drop(self, flight: Flight, event: Event | None) -> None:
        """Drop the staged batch of a flight, if it has one. After `event` its memory is no longer used."""
        with self._lock:  # no other flight can hold it from now on
            staged = flight.hold(None)
        if staged is not None:
            staged.release_forwards(event)
            staged.slot.release(event)

    def hold_before(self, flight: Flight) -> list[tuple[Flight, Staged]] | None:
        """Return the flights before this one and hold their slots. None where one is not staged under the same placement,
        as the placement is just changing."""
        with self._lock:
            held = []
            for other in self._flights[: self._flights.index(flight)]:
                staged = other.staged
                if staged is None or not other.is_staged(flight.work.placement_version):
                    return None
                held.append((other, staged))
            for _, staged in held:
                staged.slot.hold()
        return held
