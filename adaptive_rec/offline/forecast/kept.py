"""A stream whose batches are read once for all lanes, as far as memory allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from adaptive_rec.batch import Batch, Position
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.data.source import Source, Wrapped
from adaptive_rec.placement import RowSpace

KEPT_LIMIT_BYTES = 1 << 30


@dataclass
class _Stream:
    """A stream from one position on: the batches read so far, and the iterator over the rest."""

    rest: Iterator[Batch]
    batches: list[Batch] = field(default_factory=list)


class KeptSource(Wrapped):
    """A source that keeps its batches and their distinct rows in memory up to a limit, and reads the others again each time.

    The same position always yields the same batches, so the results are equal.
    """

    def __init__(self, source: Source, space: RowSpace, limit_bytes: int = KEPT_LIMIT_BYTES) -> None:
        super().__init__(source)
        self._space, self._left_bytes = space, limit_bytes
        self._streams: dict[tuple[Position, int], _Stream] = {}
        self._works: dict[int, ClassifiedBatch] = {}
        """Distinct rows by the identity of their batch, which is kept as long."""

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        stream = self._streams.get((position, batch_size))
        if stream is None:
            stream = _Stream(self._source.train_batches(position, batch_size))
            self._streams[position, batch_size] = stream
        place = 0
        while True:
            if place == len(stream.batches):
                if self._left_bytes <= 0:
                    yield from self._source.train_batches(position, batch_size)
                    return
                batch = next(stream.rest, None)
                if batch is None:
                    return
                stream.batches.append(batch)
                self._left_bytes -= _bytes(batch)
            yield stream.batches[place]
            position = stream.batches[place].position
            place += 1

    def keep(self, work: ClassifiedBatch) -> None:
        """Keep a batch's distinct rows where there is room."""
        if self._left_bytes > 0 and id(work.batch) not in self._works:
            self._works[id(work.batch)] = work
            self._left_bytes -= work.inverse_N.nbytes * 4 + work.distinct_U.nbytes * 3

    def classified(self, batch: Batch) -> ClassifiedBatch:
        """Return a batch's distinct rows, not yet classified; those that are not kept are found again."""
        work = self._works.get(id(batch))
        return work if work is not None and work.batch is batch else ClassifiedBatch(batch, self._space)


def _bytes(batch: Batch) -> int:
    return batch.dense_BX.nbytes + batch.ids_N.nbytes + batch.offsets.nbytes + batch.labels_B.nbytes
