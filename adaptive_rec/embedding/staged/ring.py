"""Reused staging memory: slots of pinned host memory, each with device memory, as a rule of the same size.

A batch takes a slot; the host fills its pinned half; the slot is copied up, computed on and copied down. All users of a slot
hold it. The device runs behind the host, so a slot is free on the host before its last user has computed: the next upload into
it waits for that, on the device. The host waits only for a slot's last copies, before it writes the pinned memory again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from adaptive_rec.embedding.staged.streams import Event, Streams


class StagingRing:
    """Slots, reused in the order in which they became free. Any thread may call it.

    No lock is held while the streams are called, as these may hold their own lock and call back.
    """

    def __init__(self, streams: Streams, urgent: bool = False, at_least: int = 1, in_order: bool = False) -> None:
        self.streams = streams
        self.in_order = in_order
        """Whether all events that are given to `release` are of computation, and in its order: then the last one is enough."""
        self.at_least = at_least
        """Number of slots before one is reused: its last copy up may still wait for computation, and the host would too."""
        self.urgent = urgent
        """Whether uploads are urgent, see `Streams.upload`."""
        self._lock = threading.Lock()
        self._slots: list[Slot] = []
        self._free: deque[Slot] = deque()

    def take(self, nbytes: int, pinned_bytes: int | None = None) -> Slot:
        """Take a slot with at least `nbytes` of device memory, and as much pinned memory or `pinned_bytes`. Its one user, the
        caller, may write its pinned memory at once."""
        with self._lock:
            enough = len(self._slots) >= self.at_least
            slot = self._free.popleft() if self._free and enough else Slot(self)
            slot._users = 1
            if slot not in self._slots:
                self._slots.append(slot)
        try:
            slot._make_ready(nbytes, nbytes if pinned_bytes is None else pinned_bytes)
        except BaseException:  # out of memory, or interrupted
            with self._lock:
                self._slots.remove(slot)
            raise
        return slot

    def reserve(self, nbytes: int) -> None:
        """Make the least number of slots now, each with so many bytes, so that later ones of that size need no more memory."""
        for slot in [self.take(nbytes) for _ in range(self.at_least - self.slots)]:
            slot.release(None)

    def close(self) -> None:
        """Free the memory of free slots. Slots in use stay."""
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
    """Pinned and device memory, made by `StagingRing.take`.

    Computation may use the device memory only after an upload into the slot, which may be empty: the upload waits for the slot's
    former users.
    """

    def __init__(self, ring: StagingRing) -> None:
        self.pinned = self.device = _NOTHING
        self.bytes_pinned = _NOTHING.numpy()
        """The pinned memory as a NumPy array."""
        self._typed: dict[tuple[torch.dtype, int, int], Tensor] = {}
        self._typed_pinned: dict[torch.dtype, Tensor] = {}
        self._kept: dict[Hashable, Any] = {}
        self.contents: Any = None
        """What its device memory holds, as its last user says."""
        self._ring = ring
        self._streams = ring.streams
        self._users = 0
        self._released: list[Event] = []
        """Events given to `release` that no upload has waited for yet."""
        self._upload_lock = threading.Lock()
        self._last_upload: Event | None = None
        self._last_download: Event | None = None
        self._last_aside: Event | None = None

    def device_as(self, dtype: torch.dtype) -> Tensor:
        """Return the device memory as a flat array of this type.

        It is kept, as to make it gives up the interpreter's lock, and to take a slice of it does not.
        """
        return self._typed_as(dtype, 0, 0)

    def device_lines(self, dtype: torch.dtype, width: int, start: int, lines: int) -> Tensor:
        """Return some lines of `width` components of the device memory, from component `start` on."""
        whole, first = divmod(start, width)
        return self._typed_as(dtype, width, first)[whole : whole + lines]

    def _typed_as(self, dtype: torch.dtype, width: int, first: int) -> Tensor:
        found = self._typed.get((dtype, width, first))
        if found is None:
            flat = self.device.view(dtype)[first:]
            found = flat[: len(flat) // width * width].view(-1, width) if width else flat
            self._typed[dtype, width, first] = found
        return found

    def pinned_as(self, dtype: torch.dtype) -> Tensor:
        """Return the pinned memory as a flat array of this type."""
        found = self._typed_pinned.get(dtype)
        if found is None:
            found = self._typed_pinned[dtype] = self.pinned.view(dtype)
        return found

    def kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what `make` makes of this slot's memory, or what it made for a former caller with the same key, if the memory is
        still the same. Two are kept, as an epoch's last batch may be smaller than the others."""
        if key not in self._kept:
            made = make()
            if len(self._kept) == 2:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = made
        self._kept[key] = self._kept.pop(key)  # the last one that was used stays longest
        return self._kept[key]

    def holds(self, contents: Any) -> None:
        """Note what the device memory holds from now on."""
        self.contents = contents

    def hold(self) -> None:
        """Add a user."""
        with self._ring._lock:
            if self._users == 0:
                raise RuntimeError("a free slot cannot be held: another batch may take it at any moment")
            self._users += 1

    def release(self, event: Event | None) -> None:
        """Remove a user. After `event` this user no longer needs the device memory."""
        with self._ring._lock:
            if self._users == 0:
                raise RuntimeError("a slot was released more often than it was taken and held")
            if event is not None:
                self._released = [event] if self._ring.in_order else [*self._released, event]
            self._users -= 1
            if self._users == 0:
                self._ring._free.append(self)

    def upload(self, start: int, stop: int) -> Event:
        """Copy these bytes up, after the events that former users gave to `release`."""
        with self._upload_lock:
            self._wait_for_users()
            copied = self.device[start:stop], self.pinned[start:stop]
            self._last_upload = self._streams.upload(*copied, None, self._ring.urgent)
            return self._last_upload

    def fill(self, work: Callable[[], object]) -> Event:
        """Have the device fill its memory by this work, after the copies up queued so far and the events of former users."""
        with self._upload_lock:
            self._wait_for_users()
            self._last_upload = self._streams.launch_up(work)
            return self._last_upload

    def download(self, start: int, stop: int, after: Event | None = None) -> Event:
        """Copy these bytes down, after the event `after`; None: after the computation queued so far."""
        self._last_download = self._streams.download(self.pinned[start:stop], self.device[start:stop], after)
        return self._last_download

    def came_down(self) -> None:
        """Tell that the last copy down was waited for, and came after work that waited for all copies up: the host need not wait
        for them."""
        self._last_upload = self._last_download = self._last_aside = None

    def download_aside(self, start: int, stop: int) -> Event:
        """Copy these bytes down, after the work queued on the side queue so far."""
        self._last_aside = self._streams.download_aside([(self.pinned[start:stop], self.device[start:stop])])
        return self._last_aside

    def bring_aside(self, tensors: list[Tensor]) -> Event:
        """Copy flat tensors of the device down into the pinned memory, one behind the other, those of wide types first, after the
        work queued on the side queue so far."""
        copies, start = list[tuple[Tensor, Tensor]](), 0
        for each in tensors:
            first, rest = divmod(start, each.itemsize)
            if rest:
                raise ValueError(f"tensors of wide types must come first, got {[each.dtype for each in tensors]}")
            copies.append((self.pinned_as(each.dtype)[first : first + each.shape[0]], each))
            start += each.nbytes
        self._last_aside = self._streams.download_aside(copies)
        return self._last_aside

    def _make_ready(self, nbytes: int, pinned_bytes: int) -> None:
        self._wait_for_copies()
        if nbytes > self.device.nbytes or pinned_bytes > self.pinned.nbytes:
            size, pinned_size = max(nbytes, self.device.nbytes), max(pinned_bytes, self.pinned.nbytes)
            self._drop_memory()
            pinned = self._streams.pinned(_with_reserve(pinned_size))
            self.device = self._streams.allocate(_with_reserve(size))
            self.pinned = pinned
            self.bytes_pinned = pinned.numpy()

    def _wait_for_copies(self) -> None:
        # Each queue keeps its order, so waiting for its last copy is enough.
        for event in (self._last_upload, self._last_download, self._last_aside):
            if event is not None:
                self._streams.host_waits(event)
        self._last_upload = self._last_download = self._last_aside = None

    def _drop_memory(self) -> None:
        """Drop the memory. Later copies up may reuse it at once, as they wait for its former users."""
        self._wait_for_users()
        self.pinned = self.device = _NOTHING
        self.bytes_pinned = _NOTHING.numpy()
        self._typed, self._typed_pinned, self._kept, self.contents = {}, {}, {}, None

    def _wait_for_users(self) -> None:
        """Have all later copies up wait for the events given to `release`."""
        with self._ring._lock:
            released, self._released = self._released, []
        for event in released:
            self._streams.up_waits(event, self._ring.urgent)


def _with_reserve(nbytes: int) -> int:
    """Return a quarter more, as the next batch may be larger."""
    return -(-(nbytes + nbytes // 4) // _GRAIN) * _GRAIN


_GRAIN = 256
"""Slot sizes are multiples of this many bytes, to hold whole components of any type."""

_NOTHING = torch.empty(0, dtype=torch.uint8)
