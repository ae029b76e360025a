"""A stream that is read once for all who follow it, as far as memory allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from adaptive_rec.batch import Batch, Position
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.data.source import Source, Wrapped
from adaptive_rec.placement import RowSpace

KEPT_LIMIT_BYTES = 1 << 30


@dataclass
class _Begun:
    """A stream from one position on, as far as somebody has read it."""

    rest: Iterator[Batch]
    batches: list[Batch] = field(default_factory=list)


class KeptSource(Wrapped):
    """A source whose batches stay in memory, with their distinct rows, up to a limit; those beyond are read anew each time.

    The same position gives the same batches, so nobody can tell the difference.
    """

    def __init__(self, source: Source, space: RowSpace, limit_bytes: int = KEPT_LIMIT_BYTES) -> None:
        super().__init__(source)
        self._space, self._left_bytes = space, limit_bytes
        self._begun: dict[tuple[Position, int], _Begun] = {}
        self._works: dict[int, ClassifiedBatch] = {}
        """By the identity of a batch, which is kept as long."""

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        begun = self._begun.get((position, batch_size))
        if begun is None:
            begun = _Begun(self._source.train_batches(position, batch_size))
            self._begun[position, batch_size] = begun
        place = 0
        while True:
            if place == len(begun.batches):
                if self._left_bytes <= 0:
                    yield from self._source.train_batches(position, batch_size)
                    return
                batch = next(begun.rest, None)
                if batch is None:
                    return
                begun.batches.append(batch)
                self._left_bytes -= _bytes(batch)
            yield begun.batches[place]
            position = begun.batches[place].position
            place += 1

    def keep(self, work: ClassifiedBatch) -> None:
        """Keep a batch's distinct rows too, where there is room."""
        if self._left_bytes > 0 and id(work.batch) not in self._works:
            self._works[id(work.batch)] = work
            self._left_bytes -= work.inverse_N.nbytes * 4 + work.distinct_U.nbytes * 3

    def classified(self, batch: Batch) -> ClassifiedBatch:
        """A batch's distinct rows, found anew where they are not kept. Where they are is up to who takes them."""
        work = self._works.get(id(batch))
        return work if work is not None and work.batch is batch else ClassifiedBatch(batch, self._space)


def _bytes(batch: Batch) -> int:
    return batch.dense_BX.nbytes + batch.ids_N.nbytes + batch.offsets.nbytes + batch.labels_B.nbytes
