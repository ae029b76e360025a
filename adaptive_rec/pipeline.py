"""What runs at the same time as what: batches are read, classified and their cold rows sent ahead, by one worker.

The worker only reads shared state: the placement (whose version it notes first) and the host tier (whose writes the store
logs). Batches that a migration or an update overtook are put right when the step takes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from adaptive_rec.batch import Batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.telemetry import StageTimes


class Pipeline:
    """Iterate over a stream's batches, classified; up to `depth()` of them are made ready ahead."""

    def __init__(
        self, batches: Iterator[Batch], store: EmbeddingStore, depth: Callable[[], int], times: StageTimes
    ) -> None:
        self._batches = batches
        self._store = store
        self._depth = depth
        self._times = times
        self._worker: ThreadPoolExecutor | None = None
        self._ahead: deque[Future[ClassifiedBatch | None]] = deque()

    def __iter__(self) -> Iterator[ClassifiedBatch]:
        while (work := self._next()) is not None:
            with self._times("classify"):
                self._store.classify(work)
            yield work

    def _next(self) -> ClassifiedBatch | None:
        depth = self._depth()
        if depth and self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        while self._worker is not None and len(self._ahead) < depth:
            self._ahead.append(self._worker.submit(self._prepare))
        if not self._ahead:
            return self._prepare()
        with self._times("wait"):
            work = self._ahead.popleft().result()
        if self._worker is not None and len(self._ahead) < depth:
            self._ahead.append(self._worker.submit(self._prepare))
        return work

    def _prepare(self) -> ClassifiedBatch | None:
        """Read one batch and make it ready. None at the end of the stream."""
        with self._times("load"):
            batch = next(self._batches, None)
        if batch is None:
            return None
        with self._times("classify"):
            work = ClassifiedBatch(batch, self._store.space)
            self._store.classify(work)
        with self._times("stage"):
            self._store.stage(work)
        return work

    def close(self) -> None:
        """Stop the worker; batches made ready but not taken are dropped, the reader's position does not count them."""
        for future in self._ahead:
            future.cancel()
        if self._worker is not None:
            self._worker.shutdown(wait=True)
