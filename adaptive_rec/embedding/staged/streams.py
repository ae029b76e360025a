"""Computation and copies of a device run side by side, in four queues: computation, copies up, urgent ones, copies down.

A queue keeps its own order; between queues there is only the order that events make. `CudaStreams` is the real thing,
`late_streams.py` has a device for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from adaptive_rec.errors import ConfigError

Event: TypeAlias = Any
"""A point in a queue that has been reached or not. Only the streams that made it know more about it."""

_WARM_UP_RUNS = 3  # what PyTorch's documentation advises: lazy initialization and autotuning are over by then


class Streams(Protocol):
    """The device and its queues. Any thread may call, but only one thread, the training thread, queues computation.

    Copies want contiguous tensors of equal size and type, the host's side from `pinned`.
    """

    device: torch.device
    kernels: ModuleType
    """`kernels.cuda`, or its twin on host memory, `kernels.host`."""

    def pinned(self, nbytes: int) -> Tensor:
        """Host memory (uint8) that the device can copy from while the host works on."""

    def allocate(self, nbytes: int) -> Tensor:
        """Device memory (uint8). It may be dropped once its copies have happened, whatever computation still uses it."""

    def peak_bytes(self) -> int:
        """The most device memory that this process held at one time; 0 where nobody counts."""

    def free_bytes(self) -> int:
        """Device memory that can still be had."""

    def trim(self) -> None:
        """Give memory that is held in reserve back to the device: what one queue freed is of no use to the others."""

    def launch(self, work: Callable[[], object]) -> None:
        """Queue computation. The work itself may call `launch` and `capture` and nothing else of this class."""

    def upload(self, to_device: Tensor, from_host: Tensor, after: Event | None, urgent: bool = False) -> Event:
        """Queue a copy up, after `after` if given. The host's side must stay untouched until the copy's event.

        Urgent copies have a queue of their own: what a step tells the device must not wait for rows of later batches.
        """

    def download(self, to_host: Tensor, from_device: Tensor) -> Event:
        """Queue a copy down, after the computation queued so far."""

    def compute_waits(self, event: Event) -> None:
        """Computation queued from now on comes after the event."""

    def compute_event(self) -> Event:
        """The event that the computation queued so far is done."""

    def host_waits(self, event: Event) -> None:
        """Return when the event has happened."""

    def has_happened(self, event: Event) -> bool:
        """Whether `host_waits` would return at once."""

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        """Record computation; returns what runs it again, to be given to `launch`.

        Recording *runs the work* some times, at least once, as computation queued now. Let it overwrite its own buffers
        only; where it adds to something, save that before and put it back afterwards. What it reads and writes must
        outlive the replay at its address; tensors made inside are gone when it returns, as recordings share their memory.
        """


class CudaStreams:
    """One CUDA stream for each direction, as PCIe carries both at once.

    Computation goes to the training thread's current stream, which must be the one that was current when this was made.
    """

    def __init__(self, device: torch.device, graphs: bool = True) -> None:
        self.kernels = _cuda_kernels()
        self._graphs = graphs
        # With its index: a worker thread's current device need not be that of the thread that makes this.
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self._compute = torch.cuda.current_stream(self.device)
        self._up = torch.cuda.Stream(self.device)
        self._urgent = torch.cuda.Stream(self.device)
        self._down = torch.cuda.Stream(self.device)
        self._recording = torch.cuda.Stream(self.device)
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._first_graph: torch.cuda.CUDAGraph | None = None  # never dropped: a pool ends with the last of its graphs

    def pinned(self, nbytes: int) -> Tensor:
        with torch.cuda.device(self.device):
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def allocate(self, nbytes: int) -> Tensor:
        # The allocator gives dropped memory away to later work of the stream it was made under. A copy up must not wait
        # for computation, so that is the copies' stream; of computation the allocator has to be told.
        with torch.cuda.stream(self._up):
            memory = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        memory.record_stream(self._compute)
        return memory

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_reserved(self.device)

    def free_bytes(self) -> int:
        reserve = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + reserve

    def trim(self) -> None:
        torch.cuda.empty_cache()

    def launch(self, work: Callable[[], object]) -> None:
        work()  # kernels are asynchronous of themselves

    def upload(self, to_device: Tensor, from_host: Tensor, after: Event | None, urgent: bool = False) -> Event:
        stream = self._urgent if urgent else self._up
        with torch.cuda.stream(stream):
            if after is not None:
                stream.wait_event(after)
            to_device.copy_(from_host, non_blocking=True)
            return self._record(stream)

    def download(self, to_host: Tensor, from_device: Tensor) -> Event:
        self._down.wait_event(self.compute_event())
        with torch.cuda.stream(self._down):
            to_host.copy_(from_device, non_blocking=True)
            return self._record(self._down)

    def compute_waits(self, event: Event) -> None:
        torch.cuda.current_stream(self.device).wait_event(event)

    def compute_event(self) -> Event:
        return self._record(torch.cuda.current_stream(self.device))

    def host_waits(self, event: Event) -> None:
        event.synchronize()

    def has_happened(self, event: Event) -> bool:
        return bool(event.query())

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        if not self._graphs:
            return work
        compute = torch.cuda.current_stream(self.device)
        # The recording stream itself is warmed up: cuBLAS keeps a workspace per stream, and the graph will name it.
        self._recording.wait_event(self._record(compute))
        try:
            with torch.cuda.stream(self._recording):
                for _ in range(_WARM_UP_RUNS):
                    work()
        finally:  # where it fails, what it queued must still not meet what comes next
            compute.wait_event(self._record(self._recording))
        graph = torch.cuda.CUDAGraph()
        self._first_graph = self._first_graph or graph
        # thread_local: other threads copy and allocate meanwhile, which the default mode forbids them.
        with (
            torch.cuda.device(self.device),
            torch.cuda.graph(graph, pool=self._pool, stream=self._recording, capture_error_mode="thread_local"),
        ):
            work()
        return graph.replay

    @staticmethod
    def _record(stream: torch.cuda.Stream) -> torch.cuda.Event:
        # blocking: a host thread that waits for it sleeps, where it would spin else.
        return stream.record_event(torch.cuda.Event(blocking=True))


def _cuda_kernels() -> ModuleType:
    try:
        from adaptive_rec.kernels import cuda
    except ImportError as error:
        raise ConfigError(
            f"run.device=cuda needs Triton, and its kernels cannot be imported; install it or take run.device=cpu: {error}"
        ) from error
    return cuda
