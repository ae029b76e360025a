"""A simulated device for tests: copies and computation run as late or as early as the events permit.

The order is drawn from a seed, so that a missing wait leads to a wrong result.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from adaptive_rec.embedding.staged.link import Link
from adaptive_rec.embedding.staged.streams import Event
from adaptive_rec.system.group import Group
from tests.doubles.late_threads import LateOperation, LateThreads


class LateStreams:
    """A device in host memory with any timing that the events allow: very slow, very fast, one queue far ahead of others.

    Work and copies run in the calling thread, when a call waits for them or when seeded dice say so; how eager the dice are, and
    which queue they prefer, changes now and then. A copy fills its target with 0xFF (NaN in every float type) as soon as its
    queue permits, and reads its source when it runs. An exception in queued work is raised by the call that ran it, and by every
    later call.
    """

    def __init__(self, seed: int, kernels: ModuleType | None = None) -> None:
        if kernels is None:
            from tests.doubles import host_kernels

            kernels = host_kernels
        self.kernels, self.device = kernels, torch.device("cpu")
        self._dice = random.Random(seed)
        self._queues: dict[str, deque[_Item]] = {name: deque() for name in ("compute", "up", "urgent", "down", "aside")}
        self._change_mood()
        self._lock = threading.RLock()
        self._running = False
        self._failure: Exception | None = None
        self._others: list[LateStreams] = []
        """The devices of the other ranks of a group."""

    def link(self, group: Group) -> Link:
        assert isinstance(group, LateThreads), "late devices belong to ranks that are threads"
        channel = group.fork()
        self._others = [other for other in channel.meet(self) if other is not self]
        return LateLink(self, channel)

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

    def download(self, to_host: Tensor, from_device: Tensor, after: Event | None = None) -> Event:
        with self._call():
            return self._copy("down", to_host, from_device, self._mark() if after is None else after)

    def share(self, memory: Tensor) -> None:
        pass

    unshare = share

    def launch_up(self, work: Callable[[], object]) -> Event:
        return self._launch_on("up", work, None)

    def launch_down(self, work: Callable[[], object], after: Event) -> Event:
        return self._launch_on("down", work, after)

    def up_waits(self, event: Event, urgent: bool = False) -> None:
        with self._call():
            self._queues["urgent" if urgent else "up"].append(_Item(waits_for=event, at_once=True))

    def launch_aside(self, work: Callable[[], object], after: Event | None = None) -> Event:
        return self._launch_on("aside", work, after)

    def _launch_on(self, name: str, work: Callable[[], object], after: Event | None) -> LateEvent:
        with self._call():
            event = LateEvent()
            if after is not None:
                self._queues[name].append(_Item(waits_for=after, at_once=True))
            self._queues[name].append(_Item(work, event=event))
            return event

    def download_aside(self, copies: list[tuple[Tensor, Tensor]]) -> Event:
        with self._call():
            return [self._copy("aside", *each, None) for each in copies][-1]

    def record_aside(self, work: Callable[[], object]) -> Callable[[], object]:
        return work

    def compute_waits(self, event: Event) -> None:
        with self._call():
            self._queues["compute"].append(_Item(waits_for=event, at_once=True))

    def compute_event(self) -> Event:
        with self._call():
            return self._mark()

    def host_waits(self, event: Event) -> None:
        while not self._runs_until(event):
            if not any([other.run_aside() for other in self._others]):
                time.sleep(_PAUSE_SECONDS)

    def _runs_until(self, event: Event) -> bool:
        """Run until the event has happened. Returns False where another rank's device must work first."""
        with self._call():
            while not event.done:
                if self._awaits_others():
                    return False
                self._run_one()
        return True

    def _awaits_others(self) -> bool:
        """Whether nothing can run before another rank's device has."""
        heads = [queue[0].waits_for for queue in self._queues.values() if queue]
        return not self._ready() and any(isinstance(event, LateOperation) for event in heads)

    def run_aside(self) -> bool:
        """Run an item, as a device works on while its host waits for others. Returns whether there was one."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            found = self._failure is None and bool(self._ready())
            if found:
                self._run_one()
            return found
        finally:
            self._lock.release()

    def has_happened(self, event: Event) -> bool:
        self.host_waits(event)  # so that a run's reports come at their steps
        return True

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        self.launch(work)  # as a real recording does
        return work

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Hold the lock, raise an earlier failure, and roll the dice after the call has queued its work."""
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
            raise RuntimeError(f"nothing can run: queues {stuck} wait for events that no queued work brings about")
        self._run_head(self._dice.choices(ready, [self._haste[name] for name in ready])[0])
        self._advance()

    def _advance(self) -> None:
        """Run the items that need no dice: waits that are over, and the poison behind them."""
        while at_once := [name for name in self._ready() if self._queues[name][0].at_once]:
            self._run_head(at_once[0])

    def _run_head(self, name: str) -> None:
        item = self._queues[name].popleft()
        self._running = True
        try:
            with torch.set_grad_enabled(item.with_grad):
                item.work()
        except Exception as error:
            self._failure = error  # as on a device, where nothing can be computed after an error
            raise
        finally:
            self._running = False
        if item.event is not None:
            item.event.done = True


_PAUSE_SECONDS = 0.0002


class LateLink(Link):
    """A link whose operations end as late as the devices of all ranks permit. What comes is no number until then."""

    def __init__(self, streams: LateStreams, channel: LateThreads) -> None:
        super().__init__(channel.rank, channel.ranks, channel.meter)
        self._streams, self._channel = streams, channel

    def _exchange(self, lines: Tensor, found: Tensor, sent_W: list[int], received_W: list[int]) -> None:
        self._queue(
            lambda: lines.clone().split(sent_W), lambda parts: torch.cat([each[self._rank] for each in parts]), found
        )

    def _add(self, tensor: Tensor) -> None:
        self._queue(tensor.clone, lambda parts: functools.reduce(torch.add, parts), tensor)

    def _queue(self, give: Callable[[], object], take: Callable[[list[Any]], Tensor], target: Tensor) -> None:
        operation = self._channel.operation()

        def post() -> None:
            operation.post(give())
            target.reshape(-1).view(torch.uint8).fill_(0xFF)

        self._streams.launch(post)
        self._streams.compute_waits(operation)
        self._streams.launch(lambda: target.copy_(take(operation.read())))


@dataclass(eq=False)
class LateEvent:
    done: bool = False


@dataclass
class _Item:
    work: Callable[[], object] = lambda: None
    waits_for: LateEvent | LateOperation | None = None
    event: LateEvent | None = None  # has happened when the work is done
    at_once: bool = False  # runs as soon as it may, without dice
    with_grad: bool = False  # the mode of the thread that queued it; another may run it
