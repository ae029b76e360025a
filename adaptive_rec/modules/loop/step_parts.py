"""The parts of a step: each call's bags with the gradients of their vectors, joined for the update of rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.modules.loop.bags import NO_CALL, BagBatch, Bags
from adaptive_rec.modules.loop.lookahead import AheadBatch, PoolCall
from adaptive_rec.modules.loop.uploads import to_device

LARGE_BYTES = 4 << 20
"""Gradients of a table from this size on are not joined with those of others."""


@dataclass(frozen=True)
class StepPart:
    """A call's share in a step."""

    call: PoolCall
    gradient_LD: Tensor
    lr: float
    counts: bool = True
    """Whether the call was made by the model, so that its lookups count."""


@dataclass(frozen=True)
class StepUpdate:
    """The update of a step, or of those of its tables that were updated equally often before and have the same learning rate."""

    number: int
    """Number of these tables' updates, this one included."""
    lr: float
    counts: bool
    work: ClassifiedBatch
    gradients: list[Tensor]
    """Gradients of pooled vectors (L, 1, D), for each pool."""
    position_B: NDArray[np.int64]
    """Index of each bag of the batch in the gradients of its pool."""
    bags: list[tuple[int, Bags]]
    """Bags, with the number of the first of them in the batch."""


class StepParts:
    """Groups and joins the parts of steps."""

    def __init__(self, store: EmbeddingStore, dtype: torch.dtype, steps_T: NDArray[np.int64], by_table: bool) -> None:
        """`steps_T`: number of steps of each table. `by_table`: whether the update rule counts the steps of each table."""
        self._store, self._dtype, self._steps_T, self._by_table = store, dtype, steps_T, by_table
        self.steps_ahead = 0
        """Number of steps whose announced lookups were all made ahead."""

    def updates(self, parts: list[StepPart], steps: int, announced: AheadBatch | None) -> list[StepUpdate]:
        """Return the updates of a step. `steps`: the number of steps so far. `announced`: the batch that was looked up ahead for
        this step; it is released where its rows are about to be out of date."""
        parts = _merged(parts)
        ahead = self._ahead(parts)
        groups = self._groups(parts, steps, ahead)
        if self._store.path.updates_once and len(groups) > 1:
            ahead = None
        self._release(parts, ahead, announced)
        made = [self._join(number, lr, some, ahead) for number, lr, some in groups]
        if ahead is not None:
            updated = {table for part in parts for table in part.call.bags.tables}  # other optimizers update the others
            own = sum(not updated.isdisjoint(bags.tables) for _, bags, _ in ahead.batch.parts)
            self.steps_ahead += sum(part.call.ahead is ahead for part in parts) == own
            ahead.take_for_update(self._store)
        return made

    def _release(self, parts: list[StepPart], ahead: AheadBatch | None, announced: AheadBatch | None) -> None:
        """Release batches other than `ahead` that hold rows of tables about to be updated."""
        others = [part for part in parts if ahead is None or part.call.ahead is not ahead]
        updated = {table for part in others for table in part.call.bags.tables}
        for outdated in [*(part.call.ahead for part in others), announced]:
            if outdated is not None and outdated is not ahead and not outdated.tables.isdisjoint(updated):
                outdated.release(self._store)

    def _ahead(self, parts: list[StepPart]) -> AheadBatch | None:
        """Return the batch that was looked up ahead, where no table of it was also looked up otherwise."""
        found = {part.call.ahead for part in parts} - {None}
        ahead = found.pop() if len(found) == 1 else None
        late = {table for part in parts if part.call.ahead is None for table in part.call.bags.tables}
        return ahead if ahead is not None and ahead.tables.isdisjoint(late) else None

    def _groups(
        self, parts: list[StepPart], steps: int, ahead: AheadBatch | None
    ) -> list[tuple[int, float, list[StepPart]]]:
        """Group parts by the number of their tables' updates, which Adam's bias correction needs, as in torch, and by rate.
        Those that were looked up ahead are apart from others, and so is a table with large gradients. Returns number, rate and
        parts of each group."""
        groups: dict[tuple[int, float, bool, bool, int], list[StepPart]] = defaultdict(list)
        large = self._large(parts)
        for part in parts:
            number = int(self._steps_T[list(part.call.bags.tables)].max()) if self._by_table else steps
            own = part.call.bags.tables[0] if part.call.bags.tables[0] in large else -1
            groups[number + 1, part.lr, part.counts, ahead is not None and part.call.ahead is ahead, own].append(part)
        return [(number, lr, some) for (number, lr, *_), some in groups.items()]

    def _large(self, parts: list[StepPart]) -> set[int]:
        """Return tables that are updated by themselves, as joining their gradients would cost more than an update."""
        if self._store.path.updates_once:
            return set()
        sizes: Counter[int] = Counter()
        for part in parts:
            sizes[part.call.bags.tables[0]] += part.gradient_LD.nbytes
        together = {table for part in parts if len(part.call.bags.tables) > 1 for table in part.call.bags.tables}
        return {table for table, size in sizes.items() if size >= LARGE_BYTES} - together

    def _join(self, number: int, lr: float, parts: list[StepPart], ahead: AheadBatch | None) -> StepUpdate:
        """Join the bags of a group and their gradients."""
        if ahead is not None and parts[0].call.ahead is ahead:
            work, firsts = ahead.work, [part.call.first for part in parts]
        else:
            parts.sort(key=lambda part: part.call.bags.pool)
            batch = BagBatch.of(self._store.space, [(NO_CALL, part.call.bags) for part in parts])
            work, firsts = ClassifiedBatch(batch, self._store.space, self._store.threads), [f for _, _, f in batch.parts]
        position_B = np.full(work.batch.size, -1, dtype=np.int64)
        gradients: list[list[Tensor]] = [[] for _ in self._store.space.pools]
        vectors = [0] * len(gradients)
        placed = sorted(zip(firsts, parts, strict=True), key=lambda pair: pair[0])
        for first, part in placed:
            bags, gradient_LD = part.call.bags, part.gradient_LD
            begin, count = vectors[bags.pool], len(bags)
            if bags.divisor_L1 is not None:
                gradient_LD = gradient_LD / to_device(bags.divisor_L1, gradient_LD.device)
            gradients[bags.pool].append(gradient_LD)
            position_B[first : first + count] = np.arange(begin, begin + count)
            vectors[bags.pool] += count
        joined = [self._whole(pool, parts) for pool, parts in enumerate(gradients)]
        bags_of_parts = [(first, part.call.bags) for first, part in placed]
        return StepUpdate(number, lr, parts[0].counts, work, joined, position_B, bags_of_parts)

    def _whole(self, pool: int, parts: list[Tensor]) -> Tensor:
        if not parts:
            return torch.empty((0, 1, self._store.space.pools[pool].dim), dtype=self._dtype, device=self._store.torch_device)
        whole = torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
        return whole.unsqueeze(1)


def _merged(parts: list[StepPart]) -> list[StepPart]:
    """Return the parts with the gradients of calls that several backward passes went through summed."""
    by_call: dict[PoolCall, StepPart] = {}
    for part in parts:
        known = by_call.get(part.call)
        by_call[part.call] = part if known is None else replace(known, gradient_LD=known.gradient_LD + part.gradient_LD)
    return list(by_call.values())
