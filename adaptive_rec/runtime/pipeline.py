"""The pipeline: batches are read, classified and staged on worker threads, ahead of their steps.

Reading and staging have one thread each, as both go batch by batch; classifying has as many as configured. With none, the
training thread classifies with the threads of its kernels, as work ahead would slow the step down on few cores. Workers only
read shared state: the placement, whose version they read first, and the host tier, whose store handles rows that are on their
way. A batch that was classified before a migration is classified again when its step takes it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from adaptive_rec.batch import Batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.live.telemetry import StageTimes


class Pipeline:
    """Iterates over a stream's batches, classified; prepares up to `depth()` of them ahead.

    `prepare` converts an item of the stream to a batch, on the thread that classifies it.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        store: EmbeddingStore,
        depth: Callable[[], int],
        times: StageTimes,
        classify_threads: int = 1,
        prepare: Callable[[Any], Batch] = lambda batch: batch,
    ) -> None:
        self._batches = batches
        self._prepare = prepare
        self._store = store
        self._depth = depth
        self._times = times
        self._classify_threads = classify_threads
        self._training_thread = threading.current_thread()
        self._workers: _Workers | None = None
        self._ahead: deque[Future[Any]] = deque()
        """Batches, or classified ones where workers classify; None at the end."""
        self._failed = False

    def __iter__(self) -> Iterator[ClassifiedBatch]:
        while (work := self._next()) is not None:
            yield work

    def over(self, batches: Iterable[Any]) -> Iterator[ClassifiedBatch]:
        """Iterate over another stretch of batches after the last one has ended, with the same workers."""
        self.settle()
        self._ahead.clear()  # all of them mark the end of the last stretch
        self._batches = iter(batches)
        return iter(self)

    def arriving(self, batches: Iterable[Any], seconds: float) -> Iterator[ClassifiedBatch | None]:
        """Iterate as `over` does, over batches that are waited for: yields None each time so many seconds have passed.

        Several processes go on together: where one has failed, all come to its error, or are ended with it.
        """
        self.over(batches)
        while True:
            self._fill(max(1, self._depth()))
            with self._times("wait"):
                is_here = bool(wait([self._ahead[0]], seconds).done)
            has_failed = is_here and self._ahead[0].exception() is not None
            here_W, failed_W = self._store.group.gather(np.array([is_here, has_failed], np.int64)).T
            if not (here_W.all() or failed_W.any()):
                yield None
            elif (work := self._next()) is not None:
                yield work
            else:
                return

    def _next(self) -> ClassifiedBatch | None:
        depth = self._depth()
        self._fill(depth)
        if self._ahead:
            with self._times("wait"):
                work = self._ahead.popleft().result()
            self._fill(depth)
        else:
            work = self._load()
        ready = work is None or isinstance(work, ClassifiedBatch)
        return work if ready else self._stage(self._classify(work))

    def _fill(self, depth: int) -> None:
        """Have the workers prepare this many batches."""
        if depth and self._workers is None:
            self._workers = _Workers(self._classify_threads)
        while self._workers is not None and len(self._ahead) < depth:
            if self._classify_threads:
                loaded = self._workers.reader.submit(self._load_ahead, self._workers)
                self._ahead.append(self._workers.stager.submit(self._stage_ahead, loaded))
            else:
                self._ahead.append(self._workers.reader.submit(self._load))

    def _load_ahead(self, workers: _Workers) -> Future[ClassifiedBatch] | None:
        batch = self._load()
        return None if batch is None else workers.classifiers.submit(self._classify, batch)

    def _stage_ahead(self, loaded: Future[Future[ClassifiedBatch] | None]) -> ClassifiedBatch | None:
        classified = loaded.result()
        return None if classified is None else self._stage(classified.result())

    # For each batch, in this order -----------------------------------------------------------------------------------

    def _load(self) -> Any:
        """Read one batch. None at the end of the stream."""
        with self._times("load"):
            return next(self._batches, None)

    def _classify(self, batch: Any) -> ClassifiedBatch:
        with self._times("classify"):
            batch = self._prepare(batch)
            threads = self._store.threads if threading.current_thread() is self._training_thread else 1
            return self._store.batches.classified(batch, threads)

    def _stage(self, work: ClassifiedBatch) -> ClassifiedBatch:
        with self._times("stage"):
            self._store.batches.stage(work)
        return work

    def settle(self) -> None:
        """Wait until all batches under way are ready or have failed. Errors are raised when their batch is taken."""
        wait(self._ahead)

    def fail(self) -> None:
        """Have `close` wait for no other process, as training has failed here."""
        self._failed = True

    def close(self) -> None:
        """Stop the workers and drop the batches that were not taken; the reader's position does not count them.

        Several processes stage the batches together, and have as many under way: they stage all of them to the end.
        """
        alone = self._store.group.is_alone
        if alone or self._failed:
            for future in self._ahead:
                future.cancel()
        if self._workers is not None:
            self._workers.stop(wait=alone or not self._failed)
        self._store.path.drop_ahead()


class _Workers:
    """Threads of a pipeline. A job of the stager waits for the reader and a classifier, never the other way round."""

    def __init__(self, classify_threads: int) -> None:
        self.reader = ThreadPoolExecutor(1, thread_name_prefix="prefetch-read")
        self.classifiers = ThreadPoolExecutor(max(1, classify_threads), thread_name_prefix="prefetch-classify")
        self.stager = ThreadPoolExecutor(1, thread_name_prefix="prefetch-stage")

    def stop(self, wait: bool) -> None:
        """Stop after the jobs under way. The reader ends even if the job that waits for it was cancelled."""
        for pool in (self.reader, self.classifiers, self.stager):
            pool.shutdown(wait, cancel_futures=not wait)
