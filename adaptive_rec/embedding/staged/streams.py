"""Queues of a device that run side by side: computation, copies up, urgent copies up, copies down, and a side queue.

A queue keeps its order; between queues only events make an order. `cuda_streams.py` has a real device, tests simulate one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from adaptive_rec.embedding.staged.link import Link
from adaptive_rec.system.group import Group

Event: TypeAlias = Any
"""A point in a queue, reached or not. Only the streams that made it know its type."""


class Streams(Protocol):
    """The device and its queues. Any thread may call, but only the training thread queues computation.

    Copies need contiguous tensors of equal size and type, the host's side from `pinned`.
    """

    device: torch.device
    kernels: ModuleType
    """`kernels.cuda`; in tests its twin on host memory."""

    def pinned(self, nbytes: int) -> Tensor:
        """Allocate host memory (uint8) that the device can copy from in the background."""

    def allocate(self, nbytes: int) -> Tensor:
        """Allocate device memory (uint8). It may be dropped after its copies, even if computation still uses it."""

    def peak_bytes(self) -> int:
        """Return the most device memory that this process held at one time; 0 where it is not counted."""

    def free_bytes(self) -> int:
        """Return the device memory that can still be allocated."""

    def trim(self) -> None:
        """Return reserved memory to the device, as memory freed by one queue is not reused by the others."""

    def launch(self, work: Callable[[], object]) -> None:
        """Queue computation. The work itself may call only `launch` and `capture` of this class."""

    def upload(self, to_device: Tensor, from_host: Tensor, after: Event | None, urgent: bool = False) -> Event:
        """Queue a copy up, after `after` if given. The host's side must stay unchanged until the copy's event.

        Urgent copies have their own queue, so that a step's arrays do not wait for rows of later batches.
        """

    def up_waits(self, event: Event, urgent: bool = False) -> None:
        """Copies up queued from now on, urgent ones or the others, come after the event."""

    def share(self, memory: Tensor) -> None:
        """Lock host memory, so that kernels of the device can read it. It must stay until `unshare`. Raises ConfigError where the
        driver cannot."""

    def unshare(self, memory: Tensor) -> None:
        """Unlock memory that was shared, or was to be, after the computation queued so far. Any thread may call it."""

    def launch_up(self, work: Callable[[], object]) -> Event:
        """Queue work among the copies up, after those queued so far. Any thread may call it; the work itself may call nothing of
        this class. Returns its event."""

    def download(self, to_host: Tensor, from_device: Tensor, after: Event | None = None) -> Event:
        """Queue a copy down, after the event `after`; None: after the computation queued so far, for the training thread only."""

    def launch_down(self, work: Callable[[], object], after: Event) -> Event:
        """Queue work among the copies down, after the event. Any thread may call it; the work itself may call nothing of this
        class. Returns its event."""

    def launch_aside(self, work: Callable[[], object], after: Event | None = None) -> Event:
        """Queue work on the side queue, beside computation, after `after` if given. Any thread may call it; the work itself may
        call nothing of this class. Returns its event."""

    def download_aside(self, copies: list[tuple[Tensor, Tensor]]) -> Event:
        """Queue copies down on the side queue, after the work queued there so far: pairs of the host's side and the device's."""

    def record_aside(self, work: Callable[[], object]) -> Callable[[], object]:
        """Record work for `launch_aside` that was launched there before. Returns a function that does it again, for
        `launch_aside`.

        For the training thread only. Memory that the work reads and writes must keep its address; tensors made inside are gone
        when it returns, as recordings share their memory.
        """

    def compute_waits(self, event: Event) -> None:
        """Computation queued from now on comes after the event."""

    def compute_event(self) -> Event:
        """Return the event that the computation queued so far is done."""

    def host_waits(self, event: Event) -> None:
        """Wait until the event has happened."""

    def has_happened(self, event: Event) -> bool:
        """Whether `host_waits` would return at once."""

    def link(self, group: Group) -> Link:
        """Return a way between the devices of a group's ranks. Every rank must call it."""

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        """Record computation. Returns a function that runs it again, for `launch`.

        Recording *runs the work* at least once, as computation queued now. The work may overwrite only its own buffers; the
        caller saves and restores anything it adds to. Memory that it reads and writes must keep its address; tensors made inside
        are gone when it returns, as recordings share their memory.
        """
