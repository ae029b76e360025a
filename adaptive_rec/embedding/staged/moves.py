"""Copies between the device tier and host memory, outside of steps: packed on the device, a few megabytes at a time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.embedding.device import DeviceTier
from adaptive_rec.embedding.host import Arrays
from adaptive_rec.embedding.hot import Home
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.embedding.staged.packing import INT32, PackedArray, SlotLayout, send
from adaptive_rec.embedding.staged.ring import Slot, StagingRing
from adaptive_rec.embedding.staged.streams import Event, Streams
from adaptive_rec.placement import RowSpace

CHUNK_BYTES = 8 << 20

SLOTS = 3
"""Limit of chunks on their way."""

Chunk: TypeAlias = tuple[Slot, PackedArray, tuple[PackedArray, PackedArray]]
"""A slot of the ring, and the places in it of slot numbers, weights and optimizer state."""


def chunk_rows(rows: int, row_bytes: int) -> int:
    """Return how many rows of so many bytes travel at a time, of a pool with `rows` rows."""
    return min(rows, max(1, CHUNK_BYTES // row_bytes))


FETCHED_KEPT = 8
"""Tensors that may be on their way down at once."""


class FetchedLate(Fetched):
    """A tensor of a device on its way; its copy on the device is kept until it is here."""

    def __init__(self, streams: Streams, copy: Tensor, pinned: Tensor, event: Event) -> None:
        super().__init__(pinned.numpy())
        self._streams = streams
        self._event = event
        self._kept = copy, pinned

    def is_here(self) -> bool:
        return self._streams.has_happened(self._event)

    def array(self) -> NDArray[Any]:
        self._streams.host_waits(self._event)
        return super().array()


class SlotMoves:
    """Copies between slots of the device tier and arrays in host memory. Only the training thread calls it."""

    def __init__(
        self, space: RowSpace, rule: RowRule, dtype: torch.dtype, tier: Callable[[], DeviceTier], streams: Streams
    ) -> None:  # fmt: skip
        """`tier` returns the present device tier."""
        self._space, self._rule, self._dtype, self._tier = space, rule, dtype, tier
        self._streams = streams
        self._fetched: deque[FetchedLate] = deque()
        """The last ones, as memory must stay until a copy is over, whoever has forgotten it."""
        self.ring = StagingRing(streams, at_least=SLOTS)
        """Slots for these copies only: those that carried rows up can carry them down when the device's memory is full."""

    def up(self, pool: int, cold: Home, host_rows: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """Copy rows, which are read from their home, into slots, with their optimizer state."""
        device, kernels = self._tier(), self._streams.kernels
        for chunk in self._chunks(pool, len(slots)):
            slot, index, (weights, state) = self._take(pool, slots[chunk])
            cold.read(pool, host_rows[chunk], (weights.pinned(slot), state.pinned(slot)))
            self._streams.compute_waits(slot.upload(0, state.stop))
            here = index.device(slot), weights.device(slot), state.device(slot)

            def unpack(here: tuple[Tensor, ...] = here) -> None:
                kernels.copy_rows(here[1], None, device.weights[pool], here[0])
                kernels.copy_rows(here[2], None, device.state[pool], here[0])

            self._streams.launch(unpack)
            slot.release(self._streams.compute_event())

    def down(self, pool: int, slots: NDArray[np.int64], take: Callable[[slice, Arrays], None]) -> None:
        """Copy slots down. `take` is given some of them and their weights and optimizer state, valid until it returns."""
        device, kernels = self._tier(), self._streams.kernels
        coming: deque[tuple[slice, Chunk, Event]] = deque()
        for chunk in self._chunks(pool, len(slots)):
            taken = slot, index, (weights, state) = self._take(pool, slots[chunk])
            self._streams.compute_waits(slot.upload(0, index.stop))
            here = index.device(slot), weights.device(slot), state.device(slot)

            def pack(here: tuple[Tensor, ...] = here) -> None:
                kernels.copy_rows(device.weights[pool], here[0], here[1], None)
                kernels.copy_rows(device.state[pool], here[0], here[2], None)

            self._streams.launch(pack)
            coming.append((chunk, taken, slot.download(weights.start, state.stop)))
            if len(coming) == SLOTS:
                self._land(coming.popleft(), take)
        while coming:
            self._land(coming.popleft(), take)

    def _land(self, coming: tuple[slice, Chunk, Event], take: Callable[[slice, Arrays], None]) -> None:
        chunk, (slot, _, (weights, state)), event = coming
        self._streams.host_waits(event)
        take(chunk, (weights.pinned(slot), state.pinned(slot)))
        slot.release(None)

    def reserve(self) -> None:
        """Allocate all slots now, so that later copies need no more of the device's memory."""
        self.ring.reserve(self._slot_bytes)

    def read(self, shape: tuple[int, ...], dtype: torch.dtype, fill: Callable[[slice, Tensor], object]) -> NDArray[Any]:
        """Read an array that `fill` writes on the device, some lines at a time."""
        found = np.empty(shape, dtype=torch.empty(0, dtype=dtype).numpy().dtype)
        lines = self._slot_bytes // (dtype.itemsize * math.prod(shape[1:]))
        step = max(16, lines // 16 * 16)  # all parts have the same alignment
        for start in range(0, shape[0], step):
            span = slice(start, min(start + step, shape[0]))
            part = SlotLayout().add(dtype, span.stop - span.start, *shape[1:])
            slot = self.ring.take(part.stop)
            self._streams.compute_waits(slot.upload(0, 0))  # the slot's former users
            out = part.device(slot)
            self._streams.launch(partial(fill, span, out))
            self._streams.host_waits(slot.download(0, part.stop))
            found[span] = part.pinned(slot)
            slot.release(None)
        return found

    def take_flags(self, flags_H: Tensor, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Read the flags of these slots and clear them."""
        found = np.empty(len(slots), dtype=np.bool_)
        step = self._slot_bytes // (2 * slots.itemsize)  # a slot's number and its flag take less than two numbers
        for start in range(0, len(slots), step):
            some, layout = slots[start : start + step], SlotLayout()
            index, flags = layout.add(torch.int64, len(some)), layout.add(torch.bool, len(some))
            slot = self.ring.take(layout.nbytes)
            index.pinned(slot)[:] = some
            self._streams.compute_waits(slot.upload(0, index.stop))
            self._streams.launch(partial(_take_flags, flags_H, index.device(slot), flags.device(slot)))
            self._streams.host_waits(slot.download(flags.start, flags.stop))
            found[start : start + step] = flags.pinned(slot)
            slot.release(None)
        return found

    def forget(self, pool: int, slots: NDArray[np.int64]) -> None:
        """Have a pool's monitor forget these slots."""
        monitor = self._tier().monitors[pool]
        step = self._slot_bytes // slots.itemsize
        for start in range(0, len(slots), step):
            parcel = send(self.ring, [slots[start : start + step]])
            self._streams.compute_waits(parcel.here)
            self._streams.launch(partial(monitor.forget, parcel.arrays[0]))
            parcel.slot.release(self._streams.compute_event())

    def fetch_later(self, tensor: Tensor) -> FetchedLate:
        """Fetch a copy of a device tensor, as all work launched so far leaves it."""
        copy = torch.empty_like(tensor)
        self._streams.launch(lambda: copy.copy_(tensor))
        pinned = self._streams.pinned(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
        fetched = FetchedLate(self._streams, copy, pinned, self._streams.download(pinned, copy))
        self._fetched.append(fetched)
        if len(self._fetched) > FETCHED_KEPT:
            self._fetched[0].array()
            self._fetched.popleft()
        return fetched

    def settle(self) -> None:
        """Wait for what was fetched."""
        while self._fetched:
            self._fetched[0].array()
            self._fetched.popleft()

    @property
    def _slot_bytes(self) -> int:
        return max(self._parts(pool, self._chunk_rows(pool))[0] for pool in range(len(self._space.pools)))

    def _chunk_rows(self, pool: int) -> int:
        spec = self._space.pools[pool]
        return chunk_rows(spec.rows, self._rule.bytes_per_row(spec.dim, self._dtype.itemsize))

    def _chunks(self, pool: int, rows: int) -> Iterator[slice]:
        step = self._chunk_rows(pool)
        return (slice(start, min(start + step, rows)) for start in range(0, rows, step))

    def _parts(self, pool: int, rows: int) -> tuple[int, PackedArray, tuple[PackedArray, PackedArray]]:
        """Return the bytes and places of this many rows' slot numbers, weights and optimizer state."""
        layout, dtype, dim = SlotLayout(), self._dtype, self._space.pools[pool].dim
        index = layout.add(INT32, rows)
        weights = layout.add(self._rule.weight_type(dtype), rows, dim)
        state = layout.add(dtype, rows, self._rule.state_width(dim))
        return layout.nbytes, index, (weights, state)

    def _take(self, pool: int, slots: NDArray[np.int64]) -> Chunk:
        """Take a slot of the ring for the rows of these slots, and write their numbers into it.

        It has room for a whole chunk, so that it need not grow when the device's memory is full.
        """
        slot = self.ring.take(self._slot_bytes)
        _, index, rows = self._parts(pool, len(slots))
        index.pinned(slot)[:] = slots
        return slot, index, rows


def _take_flags(flags_H: Tensor, slots: Tensor, out: Tensor) -> None:
    torch.index_select(flags_H, 0, slots, out=out)
    flags_H.index_fill_(0, slots, False)
