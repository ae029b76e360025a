"""Copies between host and device that run beside the computation.

Three queues: computation (the device's current stream), copies up, copies down. Order between them is made by events
alone. `CudaStreams` is the real thing; `LateStreams` is a device made of host memory on which every copy is as late as
the events permit, in an order drawn from a seed. It exists so that a missing wait shows up as a wrong result in a test.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class Upload(NamedTuple):
    """A tensor on its way to the device. Take it with `Streams.arrived` only."""

    tensor: Tensor
    event: Any


class Streams(Protocol):
    """The device and its copy queues."""

    device: torch.device

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Host memory that the device can copy from while the host works on."""

    def upload(self, from_host: Tensor) -> Upload:
        """Queue a copy of pinned memory to the device. The memory must stay untouched until it has arrived."""

    def download(self, to_host: Tensor, from_device: Tensor) -> Any:
        """Queue a copy to pinned memory, after the computation queued so far. Returns its event."""

    def arrived(self, upload: Upload) -> Tensor:
        """The uploaded tensor; computation queued from now on comes after its arrival."""

    def host_waits(self, event: Any) -> None:
        """Return when the event has happened."""


class CudaStreams:
    """One CUDA stream for each direction; PCIe carries both at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._up = torch.cuda.Stream(device)
        self._down = torch.cuda.Stream(device)

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def upload(self, from_host: Tensor) -> Upload:
        # Allocated and filled on the copy stream: the copy need not wait for any computation.
        with torch.cuda.stream(self._up):
            tensor = from_host.to(self.device, non_blocking=True)
        return Upload(tensor, self._up.record_event())

    def download(self, to_host: Tensor, from_device: Tensor) -> torch.cuda.Event:
        self._down.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._down):
            to_host.copy_(from_device, non_blocking=True)
        from_device.record_stream(self._down)
        return self._down.record_event()

    def arrived(self, upload: Upload) -> Tensor:
        compute = torch.cuda.current_stream(self.device)
        compute.wait_event(upload.event)
        upload.tensor.record_stream(compute)  # so that its memory is not given away while computation reads it
        return upload.tensor

    def host_waits(self, event: torch.cuda.Event) -> None:
        event.synchronize()


class LateStreams:
    """Host memory that behaves like the slowest device the events allow.

    A queued copy poisons its target with NaN and reads its source only when it runs: when somebody waits for it, or when
    the seeded dice say so.
    """

    def __init__(self, seed: int) -> None:
        self.device = torch.device("cpu")
        self._dice = random.Random(seed)
        self._lock = threading.RLock()
        self._queues: tuple[deque[_LateCopy], deque[_LateCopy]] = (deque(), deque())

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.full(shape, torch.nan, dtype=dtype)

    def upload(self, from_host: Tensor) -> Upload:
        tensor = torch.empty_like(from_host)
        return Upload(tensor, self._queue(0, tensor, from_host))

    def download(self, to_host: Tensor, from_device: Tensor) -> _LateCopy:
        return self._queue(1, to_host, from_device)

    def arrived(self, upload: Upload) -> Tensor:
        self.host_waits(upload.event)
        return upload.tensor

    def host_waits(self, event: _LateCopy) -> None:
        with self._lock:
            self._run_some()
            while not event.done:
                self._queues[event.queue].popleft().run()

    def _queue(self, queue: int, target: Tensor, source: Tensor) -> _LateCopy:
        with self._lock:
            target.fill_(torch.nan)
            copy = _LateCopy(queue, lambda: target.copy_(source))
            self._queues[queue].append(copy)
            self._run_some()
            return copy

    def _run_some(self) -> None:
        for queue in self._queues:
            while queue and self._dice.random() < 0.2:
                queue.popleft().run()


class _LateCopy:
    """A copy that is still to run, and the event that it has run."""

    def __init__(self, queue: int, copy: Callable[[], Any]) -> None:
        self.queue = queue
        self.done = False
        self._copy = copy

    def run(self) -> None:
        self._copy()
        self.done = True
