"""Threads that share work over rows; beside OpenMP's, which only the training thread may use.

Beside threads that need the interpreter, telling them of their parts costs more than many a part: futures took twice as long.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import numpy as np

from adaptive_rec.system.background import give_way

T = TypeVar("T")


class Crew:
    """Threads that share work over rows where this is worth it. Any thread may give them work, which may not give them more."""

    def __init__(self, threads: int, niceness: int = 0) -> None:
        self.size = threads
        self._niceness = niceness
        self._lock = threading.Lock()
        self._threads: _Threads | None = None

    def _give(self, parts: list[_Part[Any]]) -> None:
        with self._lock:
            if self._threads is None or self._threads.process != os.getpid():  # a fork has no threads of its parent's
                self._threads = _Threads()
                weakref.finalize(self, self._threads.end).atexit = False
            self._threads.fill(self.size, self._niceness)
            for part in parts:
                self._threads.queue.put(part)

    def share(self, work: Callable[[int, int], object], rows: int, least: int) -> None:
        """Call ``work(first, end)`` for parts of at least `least` rows that together are all of them, and wait. The caller does
        the first part. Raises the error of the first part that failed, or what interrupted the caller, once none is under way."""
        count = min(self.size, rows // max(1, least))
        if count < 2:
            work(0, rows)
            return
        bounds = np.linspace(0, rows, count + 1).astype(np.int64).tolist()
        parts = [_Part(partial(work, first, end)) for first, end in pairwise(bounds)]
        self._give(parts[1:])
        parts[0].run()
        interrupted = [part.outlast() for part in parts]
        for error in filter(None, interrupted):
            raise error
        for part in parts:
            part.result()

    def start(self, work: Callable[[], T], rows: int, least: int) -> Callable[[], T]:
        """Begin work on rows beside the caller's, if there are threads for it and at least `least` rows. Returns a function that
        waits for its result, or does the work when it is first called."""
        if self.size < 2 or rows < least:
            return cache(work)
        part = _Part(work)
        self._give([part])
        return part.result

    def close(self) -> None:
        """End the threads, after all work. Later work starts others."""
        with self._lock:
            threads, self._threads = self._threads, None
            if threads is not None and threads.process == os.getpid():
                threads.end()
                threads.join()


class _Threads:
    """A queue and threads that work it off. They know the queue only, so who forgets them need only end it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.queue: SimpleQueue[_Part[Any] | None] = SimpleQueue()
        self._workers: list[threading.Thread] = []

    def fill(self, size: int, niceness: int) -> None:
        """Start threads until there are so many."""
        while len(self._workers) < size:
            name = f"rows_{len(self._workers)}"
            worker = threading.Thread(target=_work_off, args=(self.queue, niceness), name=name, daemon=True)
            worker.start()  # one that runs all the same after an interrupt here ends with the others
            self._workers.append(worker)

    def end(self) -> None:
        """Have the threads end after all work."""
        self.queue.put(None)

    def join(self) -> None:
        for worker in self._workers:
            worker.join()


class _Part(Generic[T]):
    """A piece of work, its result or its error. A lock is held until it is over: it costs less than an event."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._found: T | None = None
        self._error: BaseException | None = None
        self._under_way = threading.Lock()
        self._under_way.acquire()

    def run(self) -> None:
        assert self._work is not None, "a part runs once"
        try:
            self._found = self._work()
        except BaseException as error:  # raised by who waits for it
            self._error = error
        self._work = None  # what it holds may be large
        self._under_way.release()

    def wait(self) -> None:
        with self._under_way:
            pass

    def outlast(self) -> BaseException | None:
        """Wait, whatever interrupts. Returns the last interrupt."""
        interrupt = None
        while True:
            try:
                self.wait()
            except BaseException as error:
                interrupt = error
            else:
                return interrupt

    def result(self) -> T:
        self.wait()
        if self._error is not None:
            raise self._error
        return self._found  # type: ignore[return-value]  # it is over


def _work_off(queue: SimpleQueue[_Part[Any] | None], niceness: int) -> None:
    """Do parts until told to stop."""
    give_way(niceness)
    while (part := queue.get()) is not None:
        part.run()
        del part
    queue.put(None)  # for the others
