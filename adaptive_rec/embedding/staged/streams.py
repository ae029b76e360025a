"""Queues of a device that run side by side: computation, copies up, urgent copies up, copies down, and a side queue.

A queue keeps its order; between queues only events make an order. `CudaStreams` is a real device; `late_streams.py` has one for
tests.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from adaptive_rec.embedding.staged.link import Link, TorchLink
from adaptive_rec.errors import ConfigError, TrainingError, first_line
from adaptive_rec.system.group import Group

Event: TypeAlias = Any
"""A point in a queue, reached or not. Only the streams that made it know its type."""

PIECE_BYTES = 4 << 20
"""Of a copy up; at 50 GB/s a piece takes 80 us."""

_WARM_UP_RUNS = 3  # as PyTorch's documentation advises: lazy initialization and autotuning are over by then


class Streams(Protocol):
    """The device and its queues. Any thread may call, but only the training thread queues computation.

    Copies need contiguous tensors of equal size and type, the host's side from `pinned`.
    """

    device: torch.device
    kernels: ModuleType
    """`kernels.cuda`, or its twin on host memory, `kernels.host`."""

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
        """Unlock memory that was shared."""

    def launch_up(self, work: Callable[[], object]) -> Event:
        """Queue work among the copies up, after those queued so far. Any thread may call it; the work itself may call nothing of
        this class. Returns its event."""

    def download(self, to_host: Tensor, from_device: Tensor, after: Event | None = None) -> Event:
        """Queue a copy down, after the event `after`; None: after the computation queued so far, for the training thread only."""

    def launch_aside(self, work: Callable[[], object], after: Event | None = None) -> Event:
        """Queue work on the side queue, beside computation, after `after` if given. Any thread may call it; the work itself may
        call nothing of this class. Returns its event."""

    def download_aside(self, copies: list[tuple[Tensor, Tensor]]) -> Event:
        """Queue copies down on the side queue, after the work queued there so far: pairs of the host's side and the device's."""

    def record_aside(self, work: Callable[[], object]) -> Callable[[], object]:
        """Record work for `launch_aside` that was launched there before. Returns a function that does it again, for
        `launch_aside`.

        Any thread may call it. Memory that the work reads and writes must keep its address; tensors made inside are gone when it
        returns, as recordings share their memory.
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


class CudaStreams:
    """A CUDA device, with one stream for each direction of PCIe.

    Computation goes to the training thread's current stream, which must not change after this object is made.
    """

    def __init__(self, device: torch.device, graphs: bool = True) -> None:
        self.kernels = _cuda_kernels()
        self._graphs = graphs
        # With its index, as a worker thread may have another current device.
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self._compute = torch.cuda.current_stream(self.device)
        self._up = torch.cuda.Stream(self.device)
        self._urgent = torch.cuda.Stream(self.device, priority=-1)
        self._down = torch.cuda.Stream(self.device)
        self._aside = torch.cuda.Stream(self.device, priority=-1)  # short work that workers wait for
        self._recording = _Recording(self.device)
        self._recording_aside = _Recording(self.device)

    def pinned(self, nbytes: int) -> Tensor:
        with torch.cuda.device(self.device):
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def allocate(self, nbytes: int) -> Tensor:
        # The allocator reuses dropped memory for later work of the stream it was made under. A copy up must not wait for
        # computation, so that is the copies' stream; use by computation is recorded.
        with torch.cuda.stream(self._up):
            memory = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        memory.record_stream(self._compute)
        memory.record_stream(self._aside)
        return memory

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_reserved(self.device)

    def free_bytes(self) -> int:
        reserve = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + reserve

    def trim(self) -> None:
        torch.cuda.empty_cache()

    def launch(self, work: Callable[[], object]) -> None:
        if torch.cuda.current_device() == self.device.index:  # Triton launches on the calling thread's current device
            work()  # kernels are asynchronous
            return
        with torch.cuda.device(self.device):
            work()

    def upload(self, to_device: Tensor, from_host: Tensor, after: Event | None, urgent: bool = False) -> Event:
        stream = self._urgent if urgent else self._up
        with torch.cuda.stream(stream):
            if after is not None:
                stream.wait_event(after)
            for to_part, from_part in _pieces(to_device, from_host):
                to_part.copy_(from_part, non_blocking=True)
            return self._record(stream)

    def download(self, to_host: Tensor, from_device: Tensor, after: Event | None = None) -> Event:
        after = self.compute_event() if after is None else after
        with torch.cuda.stream(self._down):
            self._down.wait_event(after)
            to_host.copy_(from_device, non_blocking=True)
            return self._record(self._down)

    def share(self, memory: Tensor) -> None:
        if not memory.nbytes:
            return
        driver: Any = torch.cuda.cudart()
        with torch.cuda.device(self.device):
            found = driver.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
        if found != driver.cudaError.success:
            size = f"{memory.nbytes / 2**30:.1f} GiB"
            rule = f"run.cold_rows must be staged where tables cannot be locked in memory ({size})"
            raise ConfigError(f"{rule}, the driver says: {found}")

    def unshare(self, memory: Tensor) -> None:
        if memory.nbytes:
            driver: Any = torch.cuda.cudart()
            driver.cudaHostUnregister(memory.data_ptr())

    def launch_up(self, work: Callable[[], object]) -> Event:
        with torch.cuda.stream(self._up):  # sets the device of the calling thread, too
            work()
            return self._record(self._up)

    def up_waits(self, event: Event, urgent: bool = False) -> None:
        (self._urgent if urgent else self._up).wait_event(event)

    def launch_aside(self, work: Callable[[], object], after: Event | None = None) -> Event:
        with torch.cuda.stream(self._aside):  # sets the device of the calling thread, too
            if after is not None:
                self._aside.wait_event(after)
            work()
            return self._record(self._aside)

    def download_aside(self, copies: list[tuple[Tensor, Tensor]]) -> Event:
        with torch.cuda.stream(self._aside):
            for to_host, from_device in copies:
                to_host.copy_(from_device, non_blocking=True)
            return self._record(self._aside)

    def record_aside(self, work: Callable[[], object]) -> Callable[[], object]:
        return self._recording_aside.record(work) if self._graphs else work

    def compute_waits(self, event: Event) -> None:
        torch.cuda.current_stream(self.device).wait_event(event)

    def compute_event(self) -> Event:
        return self._record(torch.cuda.current_stream(self.device))

    def host_waits(self, event: Event) -> None:
        event.synchronize()

    def has_happened(self, event: Event) -> bool:
        return bool(event.query())

    def link(self, group: Group) -> Link:
        from adaptive_rec.system.torch_group import TensorChannel  # one process needs no torch.distributed

        return TorchLink(TensorChannel("nccl"), group.meter, self.launch)

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        if not self._graphs:
            return work
        compute = torch.cuda.current_stream(self.device)
        # Warm up on the recording stream itself: cuBLAS keeps a workspace per stream, and the graph refers to it.
        recording = self._recording.stream
        recording.wait_event(self._record(compute))
        try:
            with torch.cuda.stream(recording):
                for _ in range(_WARM_UP_RUNS):
                    work()
        finally:  # after a failure, too, its queued work must end before the next begins
            compute.wait_event(self._record(recording))
        return self._recording.record(work)

    @staticmethod
    def _record(stream: torch.cuda.Stream) -> torch.cuda.Event:
        # blocking: a waiting host thread sleeps instead of spinning.
        return stream.record_event(torch.cuda.Event(blocking=True))


class _Recording:
    """Records graphs of work that share their memory: they must be replayed one after the other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._first_graph: torch.cuda.CUDAGraph | None = None  # kept, as a pool ends with the last of its graphs

    def record(self, work: Callable[[], object]) -> Callable[[], object]:
        """Record work, which does not run. Kernels and libraries must be loaded, as after it ran once."""
        graph = torch.cuda.CUDAGraph()
        # thread_local, as the default mode forbids other threads to copy and allocate meanwhile.
        try:
            with (
                _one_recording(),
                torch.cuda.device(self.device),
                torch.cuda.graph(graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"),
            ):
                work()
        except Exception as error:  # of whatever type: the allocator may be left recording, so nothing may be tried again
            raise TrainingError(
                f"run.cuda_graphs must be false where the device's work cannot be recorded: {first_line(error)}"
            ) from error
        self._first_graph = self._first_graph or graph
        return graph.replay


_RECORDING = threading.Lock()


@contextmanager
def _one_recording() -> Iterator[None]:
    """Have no other recording and no collection of garbage, which may hold graphs of a former run: to destroy one on this thread
    spoils a recording."""
    with _RECORDING:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


def _pieces(to_device: Tensor, from_host: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut a large copy, so that an urgent one that shares its copy engine waits for one piece only."""
    if to_device.nbytes <= PIECE_BYTES:
        yield to_device, from_host
        return
    flat, count = (tensor.view(-1) for tensor in (to_device, from_host)), PIECE_BYTES // to_device.element_size()
    yield from zip(*(tensor.split(count) for tensor in flat), strict=True)


def _cuda_kernels() -> ModuleType:
    try:
        from adaptive_rec.kernels import cuda
    except ImportError as error:
        raise ConfigError(
            f"run.device=cuda needs Triton, and its kernels cannot be imported; install it or take run.device=cpu: {error}"
        ) from error
    return cuda
