"""Batches in the form that a rival reads, made ahead on a thread of its own, as a data loader's worker would."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle
from typing import Any

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from benchmarks.common.shapes import Preloaded, cores

WAIT_SECONDS = 120
"""For a batch, at most."""


class Loader:
    """Reads batches and reforms them, some ahead once the first one is taken. Preloaded ones are reformed before, once."""

    def __init__(self, source: Source, config: Config, prepare: Callable[[Batch], Any], ahead: int = 2) -> None:
        self.wait_seconds = 0.0
        self._ahead, self._depth = deque[Future[Any]](), ahead
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._prepared: Iterator[Any] | None = None
        if isinstance(source, Preloaded):
            with ThreadPoolExecutor(cores()) as pool:
                self._prepared = cycle(list(pool.map(prepare, source.batches)))
            return
        batches = source.train_batches(Position(seed=config.run.seed), config.run.batch_size)
        self._read = lambda: prepare(next(batches))

    def take(self) -> Any:
        if self._prepared is not None:
            return next(self._prepared)
        began = time.perf_counter()
        while len(self._ahead) <= self._depth:
            self._ahead.append(self._thread.submit(self._read))
        item = self._ahead.popleft().result(WAIT_SECONDS)
        self.wait_seconds += time.perf_counter() - began
        return item

    def settle(self) -> None:
        """Return when what it reads ahead is there."""
        for batch in self._ahead:
            batch.result(WAIT_SECONDS)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
