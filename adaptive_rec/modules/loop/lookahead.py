"""Look-ahead: batches of bags that are classified, and on a device gathered, before the user's loop reaches them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.modules.loop.bags import BagBatch, Bags, CallKey

Sparse = Callable[[Any], Any]
"""A function from an item of the loader to the inputs that its step will look up; see `EmbeddingRuntime.prefetch`."""


class AheadBatch:
    """All bags of a coming step as one classified batch. Each forward call of the step takes its bags from here."""

    def __init__(self, work: ClassifiedBatch) -> None:
        assert isinstance(work.batch, BagBatch)
        self.work = work
        self.batch: BagBatch = work.batch
        self.tables = {table for _, bags, _ in self.batch.parts for table in bags.tables}
        self.over = False
        """Whether the update is done or the batch was released: calls are then looked up like any others."""
        self._taken = False
        self._pooled: dict[int, tuple[tuple[int, int], Tensor]] = {}
        self._waiting: dict[CallKey, list[tuple[Bags, int]]] = {}
        self._ranges: dict[int, tuple[int, int]] = {}
        for key, bags, first in self.batch.parts:
            self._waiting.setdefault(key, []).append((bags, first))
            begin, _ = self._ranges.get(bags.pool, (first, first))
            self._ranges[bags.pool] = begin, first + len(bags)

    def calls(self, key: CallKey) -> list[PoolCall]:
        """Return the bags of a forward call, the first time it is made; none where the call was not announced."""
        return [PoolCall(bags, self, first) for bags, first in self._waiting.pop(key, ())]

    def bag_range(self, pool: int) -> tuple[int, int]:
        """First and end of a pool's bags among the bags of the batch."""
        return self._ranges[pool]

    def pooled(self, pool: int, version: tuple[int, int]) -> Tensor | None:
        """Pooled vectors of all bags of a pool, or rows fetched for them, where they were kept for this version of the rows."""
        kept = self._pooled.get(pool)
        return kept[1] if kept is not None and kept[0] == version else None

    def keep_pooled(self, pool: int, version: tuple[int, int], vectors: Tensor) -> None:
        """Keep what `pooled` returns."""
        self._pooled[pool] = version, vectors

    def take(self, store: EmbeddingStore) -> ClassifiedBatch:
        """Return the batch, classified under the present placement."""
        if not self._taken or self.work.placement_version != store.index.placement.version:
            store.batches.take(self.work)
            self._taken = True
        return self.work

    def take_for_update(self, store: EmbeddingStore) -> None:
        """Take the batch for the update that ends it."""
        self.take(store)
        self.over = True

    def release(self, store: EmbeddingStore) -> None:
        """Free the rows that the store holds for the batch, unless it is over."""
        if not self.over:
            self.over = True
            store.batches.release(self.work)


class Ahead:
    """The batch that was looked up ahead for the present step of a loop, if there is one."""

    def __init__(self, store: EmbeddingStore) -> None:
        self._store = store
        self.batch: AheadBatch | None = None

    def begin(self, work: ClassifiedBatch) -> None:
        """Know the batch of the step that begins."""
        self.batch = AheadBatch(work)

    def drop(self) -> None:
        """Drop the batch: the loop has finished its item, a step has failed, or rows are about to be replaced."""
        if self.batch is not None:
            self.batch.release(self._store)
            self.batch = None


class PoolCall:
    """The bags of one pool that one forward call looks up."""

    __slots__ = ("_ahead", "bags", "first", "folded")

    def __init__(
        self, bags: Bags, ahead: AheadBatch | None = None, first: int = 0, folded: tuple[Bags, ...] = ()
    ) -> None:
        self.bags = bags
        self.folded = folded
        """Lookups whose gradients were summed by row into these bags."""
        self.first = first
        """Number of the first of these bags within the batch that was looked up ahead."""
        self._ahead = ahead

    @property
    def ahead(self) -> AheadBatch | None:
        """The batch that has these bags, until it is over."""
        return self._ahead if self._ahead is not None and not self._ahead.over else None
