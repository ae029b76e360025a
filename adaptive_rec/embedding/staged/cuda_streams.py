"""A CUDA device: the queues of `streams.py` are streams, and events are its events."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from adaptive_rec.embedding.staged.link import Link, TorchLink
from adaptive_rec.embedding.staged.streams import Event
from adaptive_rec.errors import ConfigError, TrainingError, first_line
from adaptive_rec.kernels.driver_calls import Driver
from adaptive_rec.system.group import Group

PIECE_BYTES = 4 << 20
"""Of a copy up; at 50 GB/s a piece takes 80 us."""

_WARM_UP_RUNS = 3  # as PyTorch's documentation advises: lazy initialization and autotuning are over by then


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
        try:
            self._driver = Driver(self.device.index)
        except OSError as error:
            rule = "run.device=cuda needs the driver of an NVIDIA GPU, which cannot be loaded; take run.device=cpu"
            raise ConfigError(f"{rule}: {error}") from error
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
        with self._driver:
            if torch.cuda.current_device() == self.device.index:  # Triton launches on the calling thread's current device
                work()  # kernels are asynchronous
                return
            with torch.cuda.device(self.device):
                work()

    def upload(self, to_device: Tensor, from_host: Tensor, after: Event | None, urgent: bool = False) -> Event:
        stream = (self._urgent if urgent else self._up).cuda_stream
        to, source, nbytes = _addresses(to_device, from_host)
        with self._driver as driver:
            if after is not None:
                driver.wait(stream, after)
            # In pieces, so that an urgent copy that shares the copy engine waits for one of them only.
            for start in range(0, nbytes, PIECE_BYTES):
                driver.copy(to + start, source + start, min(PIECE_BYTES, nbytes - start), stream)
            return driver.record(stream)

    def download(self, to_host: Tensor, from_device: Tensor, after: Event | None = None) -> Event:
        stream = self._down.cuda_stream
        with self._driver as driver:
            driver.wait(stream, driver.record(self._computing()) if after is None else after)
            driver.copy(*_addresses(to_host, from_device), stream)
            return driver.record(stream)

    def share(self, memory: Tensor) -> None:
        if not memory.nbytes:
            return
        try:
            self._driver.lock(memory.data_ptr(), memory.nbytes)
        except RuntimeError as error:
            size = f"{memory.nbytes / 2**30:.1f} GiB"
            rule = f"run.cold_rows must be staged where tables cannot be locked in memory ({size})"
            raise ConfigError(f"{rule}, the driver says: {error}") from error

    def unshare(self, memory: Tensor) -> None:
        if memory.nbytes:
            with suppress(RuntimeError):  # after an error of the device every call fails
                self.host_waits(self.compute_event())
            self._driver.unlock(memory.data_ptr())

    def launch_up(self, work: Callable[[], object]) -> Event:
        return self._launch_on(self._up, work, None)

    def launch_down(self, work: Callable[[], object], after: Event) -> Event:
        return self._launch_on(self._down, work, after)

    def up_waits(self, event: Event, urgent: bool = False) -> None:
        with self._driver as driver:
            driver.wait((self._urgent if urgent else self._up).cuda_stream, event)

    def launch_aside(self, work: Callable[[], object], after: Event | None = None) -> Event:
        return self._launch_on(self._aside, work, after)

    def _launch_on(self, stream: torch.cuda.Stream, work: Callable[[], object], after: Event | None) -> Event:
        with torch.cuda.stream(stream), self._driver as driver:
            if after is not None:
                driver.wait(stream.cuda_stream, after)
            work()
            return driver.record(stream.cuda_stream)

    def download_aside(self, copies: list[tuple[Tensor, Tensor]]) -> Event:
        stream = self._aside.cuda_stream
        with self._driver as driver:
            for to_host, from_device in copies:
                driver.copy(*_addresses(to_host, from_device), stream)
            return driver.record(stream)

    def record_aside(self, work: Callable[[], object]) -> Callable[[], object]:
        return self._recording_aside.record(work) if self._graphs else work

    def compute_waits(self, event: Event) -> None:
        with self._driver as driver:
            driver.wait(self._computing(), event)

    def compute_event(self) -> Event:
        with self._driver as driver:
            return driver.record(self._computing())

    def _computing(self) -> int:
        """The stream of computation."""
        return int(torch.cuda.current_stream(self.device).cuda_stream)

    def host_waits(self, event: Event) -> None:
        if not self._driver.has_happened(event):  # to ask keeps the interpreter's lock
            self._driver.synchronize(event)

    def has_happened(self, event: Event) -> bool:
        return self._driver.has_happened(event)

    def link(self, group: Group) -> Link:
        from adaptive_rec.system.torch_group import TensorChannel  # one process needs no torch.distributed

        return TorchLink(TensorChannel("nccl"), group.meter, self.launch)

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        if not self._graphs:
            return work
        compute = torch.cuda.current_stream(self.device)
        # Warm up on the recording stream itself: cuBLAS keeps a workspace per stream, and the graph refers to it.
        recording = self._recording.stream
        recording.wait_stream(compute)
        try:
            with torch.cuda.stream(recording):
                for _ in range(_WARM_UP_RUNS):
                    work()
        finally:  # after a failure, too, its queued work must end before the next begins
            compute.wait_stream(recording)
        return self._recording.record(work)


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
                _no_collection(),
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


@contextmanager
def _no_collection() -> Iterator[None]:
    """Have no garbage collected: it may hold graphs of a former run, and to destroy one on this thread spoils a recording."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _addresses(to: Tensor, source: Tensor) -> tuple[int, int, int]:
    """Return where a copy goes, where it comes from, and its bytes."""
    if to.nbytes != source.nbytes:
        raise ValueError(f"a copy wants tensors of one size, got {to.nbytes} bytes from {source.nbytes}")
    return to.data_ptr(), source.data_ptr(), source.nbytes


def _cuda_kernels() -> ModuleType:
    try:
        from adaptive_rec.kernels import cuda
    except ImportError as error:
        raise ConfigError(
            f"run.device=cuda needs Triton, and its kernels cannot be imported; install it or take run.device=cpu: {error}"
        ) from error
    return cuda
