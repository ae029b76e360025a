"""Computation and copies of a device run side by side, in four queues: computation, copies up, urgent ones, copies down.

A queue keeps its own order; between queues there is only the order that events make. `CudaStreams` is the real thing.
`LateStreams` is host memory on which everything, computation too, is as late or as early as the events permit, drawn from
a seed, so that a missing wait shows up as a wrong result in a test.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


class LateStreams:
    """Host memory that behaves like any device the events allow: very slow, very fast, one queue far ahead of others.

    Work and copies run when somebody waits for them or when the seeded dice say so, in the thread that happens to be
    there; how eager the dice are, and which queue they favour, changes now and then. A copy poisons its target with 0xFF (a
    NaN in every float type) as soon as its queue permits, not when it is queued, as what stands before it may be there to
    protect the target; it reads its source when it runs. An exception in queued work comes out of the call that ran it, and
    of every call after that.
    """

    def __init__(self, seed: int, kernels: ModuleType | None = None) -> None:
        if kernels is None:
            from adaptive_rec.kernels import host

            kernels = host
        self.kernels, self.device = kernels, torch.device("cpu")
        self._dice = random.Random(seed)
        self._queues: dict[str, deque[_Item]] = {name: deque() for name in ("compute", "up", "urgent", "down")}
        self._change_mood()
        self._lock = threading.RLock()
        self._running = False
        self._failure: Exception | None = None

    def allocate(self, nbytes: int) -> Tensor:
        return torch.full((nbytes,), 0xFF, dtype=torch.uint8)

    pinned = allocate

    def peak_bytes(self) -> int:
        return 0

    def free_bytes(self) -> int:
        return 1 << 62

    def trim(self) -> None:
        pass

    def launch(self, work: Callable[[], object]) -> None:
        with self._lock:
            if self._running:  # part of the work that calls it
                work()
                return
            with self._call():
                self._queues["compute"].append(_Item(work, with_grad=torch.is_grad_enabled()))

    def upload(self, to_device: Tensor, from_host: Tensor, after: Event | None, urgent: bool = False) -> Event:
        with self._call():
            return self._copy("urgent" if urgent else "up", to_device, from_host, after)

    def download(self, to_host: Tensor, from_device: Tensor) -> Event:
        with self._call():
            return self._copy("down", to_host, from_device, self._mark())

    def compute_waits(self, event: Event) -> None:
        with self._call():
            self._queues["compute"].append(_Item(waits_for=event, at_once=True))

    def compute_event(self) -> Event:
        with self._call():
            return self._mark()

    def host_waits(self, event: Event) -> None:
        with self._call():
            while not event.done:
                self._run_one()

    def has_happened(self, event: Event) -> bool:
        self.host_waits(event)  # who asks is told yes, so that a run's reports come at their steps
        return True

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        self.launch(work)  # as a real recording does
        return work

    @contextmanager
    def _call(self) -> Iterator[None]:
        """What every call has in common: the lock, an earlier failure, the dice once the call has queued its own."""
        with self._lock:
            if self._running:
                raise RuntimeError("queued work may call launch and capture only: it runs, it cannot queue")
            if self._failure is not None:
                raise self._failure
            yield
            self._advance()
            if self._dice.random() < 0.1:
                self._change_mood()
            while self._dice.random() < self._eager and self._ready():
                self._run_one()

    def _change_mood(self) -> None:
        self._eager = self._dice.choice((0.0, self._dice.uniform(0.0, 0.5), 0.8))
        self._haste = {name: self._dice.choice((0.01, self._dice.random(), 1.0)) for name in self._queues}

    def _mark(self) -> LateEvent:
        event = LateEvent()
        self._queues["compute"].append(_Item(event=event))
        return event

    def _copy(self, name: str, target: Tensor, source: Tensor, after: LateEvent | None) -> LateEvent:
        alike = (target.shape, target.dtype) == (source.shape, source.dtype)
        if not (alike and target.is_contiguous() and source.is_contiguous()):
            raise ValueError(f"a copy wants contiguous tensors of one size and type, got {target} from {source}")
        target_bytes, source_bytes = (tensor.detach().reshape(-1).view(torch.uint8) for tensor in (target, source))
        event = LateEvent()
        if after is not None:
            self._queues[name].append(_Item(waits_for=after, at_once=True))
        poison = _Item(lambda: target_bytes.fill_(0xFF), at_once=True)
        self._queues[name].extend([poison, _Item(lambda: target_bytes.copy_(source_bytes), event=event)])
        return event

    def _ready(self) -> list[str]:
        heads = [(name, queue[0]) for name, queue in self._queues.items() if queue]
        return [name for name, item in heads if item.waits_for is None or item.waits_for.done]

    def _run_one(self) -> None:
        """Run the head of a queue drawn by the dice."""
        ready = self._ready()
        if not ready:
            stuck = [name for name, queue in self._queues.items() if queue]
            raise RuntimeError(f"nothing can happen: queues {stuck} wait for events that nothing queued brings about")
        self._run_head(self._dice.choices(ready, [self._haste[name] for name in ready])[0])
        self._advance()

    def _advance(self) -> None:
        """Run the items that are no work of their own: waits that are over, and the poison behind them."""
        while at_once := [name for name in self._ready() if self._queues[name][0].at_once]:
            self._run_head(at_once[0])

    def _run_head(self, name: str) -> None:
        item = self._queues[name].popleft()
        self._running = True
        try:
            with torch.set_grad_enabled(item.with_grad):
                item.work()
        except Exception as error:
            self._failure = error  # as on a device: after an error nothing it computes is worth having
            raise
        finally:
            self._running = False
        if item.event is not None:
            item.event.done = True


@dataclass(eq=False)
class LateEvent:
    done: bool = False


@dataclass
class _Item:
    work: Callable[[], object] = lambda: None
    waits_for: LateEvent | None = None
    event: LateEvent | None = None  # has happened when the work is done
    at_once: bool = False  # runs as soon as it may, without dice
    with_grad: bool = False  # a thread's own, and the thread that runs this need not be the one that queued it
