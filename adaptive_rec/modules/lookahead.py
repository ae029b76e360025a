"""Look-ahead for any Python loop: bags of the next batches are put together, classified and, on a device, sent ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.modules.bags import BagBatch, Bags, Key
from adaptive_rec.modules.gradients import Lookup

Sparse = Callable[[Any], Any]
"""From an item of the loader to what the step will look up; see `EmbeddingRuntime.prefetch`."""


class Ahead:
    """A step's batch, made ready; its lookups are taken by the forward calls that they were made ready for."""

    def __init__(self, work: ClassifiedBatch) -> None:
        assert isinstance(work.batch, BagBatch)
        self.work = work
        self.batch: BagBatch = work.batch
        self._taken = False
        self._pooled: dict[int, tuple[tuple[int, int], Tensor]] = {}
        self.over = False
        """Whether it was updated or given up: its lookups are as good as any other's then."""
        self._waiting: dict[Key, list[tuple[Bags, int]]] = {}
        self._lines: dict[int, tuple[int, int]] = {}
        for key, bags, first in self.batch.parts:
            self._waiting.setdefault(key, []).append((bags, first))
            begin, _ = self._lines.get(bags.pool, (first, first))
            self._lines[bags.pool] = begin, first + len(bags)

    def lookups(self, key: Key) -> list[Lookup]:
        """Those of a forward call, once; nothing where none were made ready for it."""
        return [Lookup(bags, self, first) for bags, first in self._waiting.pop(key, ())]

    def lines(self, pool: int) -> tuple[int, int]:
        """Where a pool's bags begin and end among the batch's."""
        return self._lines[pool]

    def kept(self, pool: int, moment: tuple[int, int], make: Callable[[], Tensor]) -> Tensor:
        """A pool's pooled vectors as of a moment, made once."""
        if pool not in self._pooled or self._pooled[pool][0] != moment:
            self._pooled[pool] = moment, make()
        return self._pooled[pool][1]

    def take(self, store: EmbeddingStore) -> ClassifiedBatch:
        """Its batch, brought up to the present placement."""
        if not self._taken or self.work.placement_version != store.placement.version:
            store.take(self.work)
            self._taken = True
        return self.work
