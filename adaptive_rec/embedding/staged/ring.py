"""Staging memory, used again and again: slots of pinned host memory, each with device memory of the same size.

A batch takes a slot, the host fills its pinned half, it is copied up, computed on, copied down. Whoever still needs the
slot holds it. The device runs behind the host, so a slot is free on the host before its last user has computed: the next
upload into it waits for that, on the device. The host waits for one thing only: a slot's last copies, before it writes
the pinned memory again.
"""

from __future__ import annotations

import threading
from collections import deque

import torch
from torch import Tensor

from adaptive_rec.embedding.staged.streams import Event, Streams


class StagingRing:
    """Slots, the one that has been free for longest first. Any thread may call anything here.

    No lock is held while the streams are called: they may hold one of their own while they run what calls back.
    """

    def __init__(self, streams: Streams, urgent: bool = False, at_least: int = 1) -> None:
        self.streams = streams
        self.at_least = at_least
        """Slots there must be before one is used again: its last copy up may still wait for computation, and so would the
        host that wants to write it."""
        self.urgent = urgent
        """Whether what goes up must not queue behind the rows of later batches."""
        self._lock = threading.Lock()
        self._slots: list[Slot] = []
        self._free: deque[Slot] = deque()

    def take(self, nbytes: int) -> Slot:
        """A slot of at least `nbytes` with one user, the caller, who may write its pinned memory at once."""
        with self._lock:
            enough = len(self._slots) >= self.at_least
            slot = self._free.popleft() if self._free and enough else Slot(self)
            slot._users = 1
            if slot not in self._slots:
                self._slots.append(slot)
        try:
            slot._make_ready(nbytes)
        except BaseException:  # out of memory, or interrupted: a slot half grown is no use to anybody
            with self._lock:
                self._slots.remove(slot)
            raise
        return slot

    def close(self) -> None:
        """Give the memory of free slots back. Slots in use are free slots when their last user is gone, as ever."""
        with self._lock:
            free = list(self._free)
            self._free.clear()
            for slot in free:
                self._slots.remove(slot)
        for slot in free:
            slot._wait_for_copies()
            slot._drop_memory()

    @property
    def slots(self) -> int:
        return len(self._slots)

    @property
    def device_bytes(self) -> int:
        with self._lock:
            return sum(slot.device.nbytes for slot in self._slots)

    @property
    def pinned_bytes(self) -> int:
        with self._lock:
            return sum(slot.pinned.nbytes for slot in self._slots)


class Slot:
    """Pinned and device memory of one size. Made by `StagingRing.take` only.

    Computation may touch the device memory only after an upload into the slot since it was taken, an empty one if need be:
    it is the upload that waits for the slot's former users.
    """

    def __init__(self, ring: StagingRing) -> None:
        self.pinned = self.device = _NOTHING
        self.bytes_pinned = _NOTHING.numpy()
        """The pinned memory as a NumPy array."""
        self._typed: dict[torch.dtype, Tensor] = {}
        self._ring = ring
        self._streams = ring.streams
        self._users = 0
        self._released: list[Event] = []
        """Events given to `release` that no upload has waited for yet."""
        self._upload_lock = threading.Lock()
        self._last_upload: Event | None = None
        self._last_download: Event | None = None

    def device_as(self, dtype: torch.dtype) -> Tensor:
        """The device memory as an array of components of a type."""
        if dtype not in self._typed:
            self._typed[dtype] = self.device.view(dtype)
        return self._typed[dtype]

    def hold(self) -> None:
        """One user more."""
        with self._ring._lock:
            if self._users == 0:
                raise RuntimeError("a slot that nobody uses cannot be held: it may be another batch's any moment")
            self._users += 1

    def release(self, event: Event | None) -> None:
        """One user less; once `event` has happened the device memory may be written again, as far as that user goes."""
        with self._ring._lock:
            if self._users == 0:
                raise RuntimeError("a slot was released more often than it was taken and held")
            if event is not None:
                self._released.append(event)
            self._users -= 1
            if self._users == 0:
                self._ring._free.append(self)

    def upload(self, start: int, stop: int) -> Event:
        """Copy these bytes up, after all that former users have asked to wait for."""
        with self._upload_lock:
            self._wait_for_users()
            self._last_upload = self._streams.upload(
                self.device[start:stop], self.pinned[start:stop], None, self._ring.urgent
            )
            return self._last_upload

    def download(self, start: int, stop: int) -> Event:
        """Copy these bytes down, after the computation queued so far."""
        self._last_download = self._streams.download(self.pinned[start:stop], self.device[start:stop])
        return self._last_download

    def _make_ready(self, nbytes: int) -> None:
        self._wait_for_copies()
        if nbytes > self.device.nbytes:
            self._drop_memory()
            size = -(-(nbytes + nbytes // 4) // _GRAIN) * _GRAIN
            pinned = self._streams.pinned(size)
            self.device = self._streams.allocate(size)
            self.pinned = pinned
            self.bytes_pinned = pinned.numpy()

    def _wait_for_copies(self) -> None:
        # Each queue keeps its order, so its last copy stands for all.
        for event in (self._last_upload, self._last_download):
            if event is not None:
                self._streams.host_waits(event)
        self._last_upload = self._last_download = None

    def _drop_memory(self) -> None:
        """Forget the memory. It may be given away at once, to later copies up: they wait for its former users."""
        self._wait_for_users()
        self.pinned = self.device = _NOTHING
        self.bytes_pinned = _NOTHING.numpy()
        self._typed = {}

    def _wait_for_users(self) -> None:
        """Nothing that is queued as a copy up from now on comes before the events given to `release`."""
        with self._ring._lock:
            released, self._released = self._released, []
        for event in released:
            self._streams.upload(
                self.device[:0], self.pinned[:0], event, self._ring.urgent
            )  # empty: only its wait counts


_GRAIN = 256
"""Slots are multiples of so many bytes, so that they hold whole components of any type."""

_NOTHING = torch.empty(0, dtype=torch.uint8)
