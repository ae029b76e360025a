"""Batches between their staging and the return of their rows to the host tier, and which rows pass from one to another.

A cold row may be wanted by a batch while an earlier one, that will update it or has just done so, still holds it. Host
memory is then out of date. The row is *forwarded*: copied on the device from the earlier batch's slot when the step begins, after
that batch's update in the order of the computation. So staging to any depth reads what plain steps would read, and no
step waits for the host.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.staged.packing import PackedArray
from adaptive_rec.embedding.staged.ring import Slot
from adaptive_rec.embedding.staged.streams import Event
from adaptive_rec.kernels import staging


@dataclass
class PoolParts:
    """Where one pool's arrays of a batch stand in its slot."""

    host_rows_C: NDArray[np.int64]
    """Rows of the host tier that travel."""
    piece_U1: PackedArray
    piece_P1: PackedArray
    weights_CD: PackedArray
    state_CK: PackedArray


@dataclass
class Forward:
    """Rows of one pool that come from an earlier batch's slot."""

    pool: int
    flight: Flight
    origin: Staged
    """What was staged of that flight when this one was."""
    from_C: PackedArray
    to_C: PackedArray


class TravellingRows:
    """The cold rows of a batch, to be found by their numbers in the joint row space."""

    def __init__(self, distinct_U: NDArray[np.int64], source_U: NDArray[np.int32]) -> None:
        """``~source_U[u]`` is the place of a travelling row among those of its pool."""
        count = int(np.count_nonzero(source_U < 0))
        size = 1 << max(1, (2 * count).bit_length())
        self._keys = np.full(size, -1, dtype=np.int64)
        self._places = np.empty(size, dtype=np.int32)
        staging.index_travelling(distinct_U, source_U, self._keys, self._places)

    def find(
        self, rows_C: NDArray[np.int64], number: int, origin_C: NDArray[np.int32], place_C: NDArray[np.int32]
    ) -> None:
        """Note `number` and the place of each row that is one of these and was not found before (its origin is -1)."""
        staging.find_travelling(self._keys, self._places, rows_C, number, origin_C, place_C)


@dataclass(eq=False)
class Staged:
    """A batch's arrays in a slot of the ring."""

    placement_version: int
    slot: Slot
    offsets: PackedArray
    inverse_N: PackedArray
    bag_N: PackedArray
    source_U: PackedArray
    dense_BX: PackedArray
    labels_B: PackedArray
    pools: list[PoolParts]
    travelling: TravellingRows
    """Kept for later batches."""
    forwards: list[Forward] = field(default_factory=list)
    indices_here: Event = None
    """Event: everything but rows has arrived."""
    rows_here: Event = None
    """Event: rows have arrived. None where none travel."""
    rows_ready: bool = False
    """Whether the computation waits for the rows and has been told to forward."""
    counted: bool = False
    """Whether its bytes are among those that travelled for training."""
    rows_start: int = 0
    stop: int = 0
    """Bytes `rows_start` to `stop` of the slot are the rows and their optimizer state."""

    def on_device(self, part: PackedArray) -> Tensor:
        return part.device(self.slot)

    def sent_indices(self, event: Event) -> None:
        """Everything but rows is on its way; the event says when it has arrived."""
        self.indices_here = event

    def sent_rows(self, event: Event) -> None:
        """Rows are on their way; the event says when they have arrived."""
        self.rows_here = event

    def use_rows(self) -> bool:
        """Whether the computation is to wait for the rows now: they travel, and this is the first call."""
        first = self.rows_here is not None and not self.rows_ready
        self.rows_ready |= first
        return first

    def count_once(self) -> int:
        """Bytes that were sent to the device for training, at the first call; 0 later."""
        first, self.counted = not self.counted, True
        return self.stop if first else 0

    def release_forwards(self, event: Event) -> None:
        for forward in self.forwards:
            forward.origin.slot.release(event)
        self.forwards = []


@dataclass(eq=False)
class Flight:
    """One batch on its way: staged, run, and its rows brought home."""

    work: ClassifiedBatch
    staged: Staged | None = None
    taken: bool = False
    """Whether its step has begun."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is staged (again)."""

    def begin(self) -> None:
        """Its step begins: the worker does not stage it again."""
        self.taken = True

    def hold(self, staged: Staged | None) -> Staged | None:
        """Own what was staged of it from now on; returns what it owned before."""
        before, self.staged = self.staged, staged
        return before

    def is_staged(self, placement_version: int) -> bool:
        """Whether what was staged can be used: neither rows nor earlier flights were staged otherwise since."""
        staged = self.staged
        return (
            staged is not None
            and staged.placement_version == placement_version
            and all(forward.flight.staged is forward.origin for forward in staged.forwards)
        )


class InFlight:
    """All flights, in the order of their steps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: list[Flight] = []

    def add(self, flight: Flight) -> None:
        with self._lock:
            self._flights.append(flight)

    def add_now(self, flight: Flight) -> None:
        """One whose step begins before those of all that are ahead. What was staged of these did not know of it."""
        with self._lock:
            ahead = [other for other in self._flights if not other.taken]
            self._flights = [other for other in self._flights if other.taken] + [flight, *ahead]
        for other in ahead:
            with other.lock:
                self.drop(other, None)

    def end(self, flight: Flight) -> None:
        """Its rows are in the host tier."""
        with self._lock:
            self._flights = [other for other in self._flights if other is not flight]

    def before(self, flight: Flight) -> list[Flight]:
        """Flights whose steps come before this one's, first to last."""
        with self._lock:
            return self._flights[: self._flights.index(flight)]

    def ahead(self) -> list[Flight]:
        """Flights whose steps have not begun."""
        with self._lock:
            return [flight for flight in self._flights if not flight.taken]

    def drop_ahead(self) -> None:
        """Forget the flights whose steps have not begun and never will."""
        for flight in self.ahead():
            self.end(flight)
            self.drop(flight, None)

    def end_all(self, event: Event | None) -> None:
        """Forget all flights: none will be trained any more."""
        with self._lock:
            left, self._flights = self._flights, []
        for flight in left:
            self.drop(flight, event)
            flight.work.attach(None)

    def drop(self, flight: Flight, event: Event | None) -> None:
        """Give up what was staged of a flight, if anything. `event`: what was done with it so far is over."""
        with self._lock:  # nobody takes hold of it from now on
            staged = flight.hold(None)
        if staged is not None:
            staged.release_forwards(None)
            staged.slot.release(event)

    def hold_before(self, flight: Flight) -> list[tuple[Flight, Staged]] | None:
        """The flights before this one, their slots kept from being used again. None where one is not staged under the same
        placement: the placement is changing just now."""
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


def find_origins(
    earlier: list[tuple[Flight, Staged]], rows_C: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Which of the earlier batches holds each row, the last of them, and at which place among its pool's travelling rows.

    Returns two arrays (C,): number of the batch in `earlier`, -1 for none, and the place.
    """
    origin_C = np.full(len(rows_C), -1, dtype=np.int32)
    place_C = np.zeros(len(rows_C), dtype=np.int32)
    for number in range(len(earlier) - 1, -1, -1):  # the last one first: where it has a row, the others are not asked
        earlier[number][1].travelling.find(rows_C, number, origin_C, place_C)
    return origin_C, place_C
