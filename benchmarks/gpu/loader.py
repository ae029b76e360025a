"""Batches in the form that a rival reads, made on a thread of its own, as a data loader's worker would."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

from adaptive_rec.batch import Batch, Position
from adaptive_rec.data.source import Source
from benchmarks.common.shapes import Preloaded, cores

AHEAD_BATCHES = 2


class Loader:
    """Reads batches and reforms them ahead. Preloaded ones are reformed before the clock runs, once."""

    def __init__(self, source: Source, seed: int, batch_size: int, prepare: Callable[[Batch], Any]) -> None:
        self.wait_seconds = 0.0
        self._prepared: Iterator[Any] | None = None
        if isinstance(source, Preloaded):
            with ThreadPoolExecutor(cores()) as pool:
                self._prepared = cycle(list(pool.map(prepare, source.batches)))
            return
        self._ready: queue.Queue[Any] = queue.Queue(AHEAD_BATCHES)
        self._ended = threading.Event()
        batches = source.train_batches(Position(seed=seed), batch_size)
        self._thread = threading.Thread(target=self._read, args=(batches, prepare), name="loader", daemon=True)
        self._thread.start()

    def _read(self, batches: Iterator[Batch], prepare: Callable[[Batch], Any]) -> None:
        try:
            for batch in batches:
                self._put(prepare(batch))
                if self._ended.is_set():
                    return
        except BaseException as error:
            self._put(error)

    def _put(self, item: Any) -> None:
        while not self._ended.is_set():
            try:
                return self._ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def take(self) -> Any:
        if self._prepared is not None:
            return next(self._prepared)
        began = time.perf_counter()
        item = self._ready.get(timeout=120)
        self.wait_seconds += time.perf_counter() - began
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        if self._prepared is None:
            self._ended.set()
            self._thread.join(10)
