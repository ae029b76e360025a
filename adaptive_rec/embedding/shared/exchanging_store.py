"""What the stores of a run of several processes share: this rank's rows, and those of other ranks fetched for each batch.

The rows that this rank owns are a store of their own, with both tiers: their owner sees every lookup of them, decides
where they live, and updates them. A step fetches what its part of the batch reads from the owners, distinct rows and pooled
parts of bags (`lines.py`), and sends back a gradient for each; the owner sums them in the order of the ranks, so that the same
number of ranks gives the same bits. What is requested, where rows are and what is skipped goes from host to host; how vectors
and gradients travel is the subclass's: `SharedStore` on CPUs, `SharedDeviceStore` on devices.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.host import fill_parts, first_bound
from adaptive_rec.embedding.records import RowUpdate
from adaptive_rec.embedding.shared.asked_rows import AskedRows
from adaptive_rec.embedding.shared.lines import PoolLines
from adaptive_rec.embedding.shared.ownership import Ownership
from adaptive_rec.embedding.shared.requests import (
    ExchangePlan,
    RequestedLookups,
    Requests,
    SentLines,
    exchange_requests,
)
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.kernels.fill import fill_rows
from adaptive_rec.kernels.staging import touched_rows
from adaptive_rec.live.state_writer import Tier
from adaptive_rec.placement import COLD, RowSpace
from adaptive_rec.system.group import Group

STALE = 2
"""The class of a stale row; 1: hot, 0: cold."""

UNTOUCHED, TRAINED, FROZEN = 0, 1, 2
"""What a step did with a line that a rank had requested. Only with TRAINED its gradient is sent."""


@dataclass(frozen=True)
class Agreement:
    """What the ranks do with the lines of a batch in one step."""

    sent: list[SentLines]
    """The lines of each pool whose gradients travel."""
    position_M: NDArray[np.int64]
    """Where the gradient of each sample of `Requests.owned` stands among those of its pool that come here; -1: none comes."""
    frozen_U: NDArray[np.bool_] | None
    """Distinct rows of `Requests.owned` whose update is skipped."""


class ExchangingStore(EmbeddingStore):
    """This rank's rows; `batch_space` has those of all ranks, which batches read."""

    def __init__(
        self, group: Group, space: RowSpace, *arguments: Any, drawn: bool = True, rounded: bool = False, **named: Any
    ) -> None:
        """`arguments`, `named`: those of the store of this rank's rows, without whether they are drawn. `rounded`: in steps,
        vectors and gradients travel in bfloat16."""
        self._rounded = rounded
        self.group = group
        self._announcing = group.fork()
        self.ownership = Ownership(space, group.ranks, group.rank)
        of_own_rows: tuple[Any, ...] = (self.ownership.own, *arguments, False)
        super().__init__(*of_own_rows, **named)
        for table in range(len(space.tables)) if drawn else ():
            self._draw(table)

    @property
    def batch_space(self) -> RowSpace:
        return self.ownership.space

    # A step ----------------------------------------------------------------------------------------------------------

    def classify(self, work: ClassifiedBatch) -> None:
        """Classify what is requested of this rank. The sources of a batch's own rows come with them."""
        if work.space is self.space:
            super().classify(work)

    def stage(self, work: ClassifiedBatch) -> None:
        """Exchange the batch's requests."""
        work.attach(self._requested(work, self._announcing))

    def look_up(self, work: ClassifiedBatch) -> None:
        """Exchange a batch's requests between two steps, and fetch its rows."""
        work.attach(self._requested(work, self.group))
        self._fetch(work, rounded=False)

    def _requested(self, work: ClassifiedBatch, group: Group) -> Requests:
        return exchange_requests(work, self.ownership, group, self.threads, 2 if self._rounded else self.dtype.itemsize)

    def take(self, work: ClassifiedBatch) -> None:
        """Fetch what the batch requests as all steps so far have left it."""
        self._fetch(work, self._rounded)

    def _fetch(self, work: ClassifiedBatch, rounded: bool) -> None:
        requests: Requests = work.staged
        self._ready(work)
        self._exchange_classes(work)
        requests.take([self._exchange_vectors(requests, pool, rounded) for pool in range(len(requests.pools))])

    @abstractmethod
    def _ready(self, work: ClassifiedBatch) -> None:
        """Make ready what is requested of this rank for a batch, under the current placement."""

    @abstractmethod
    def _exchange_vectors(self, requests: Requests, pool: int, rounded: bool) -> Any:
        """Send the vectors of a pool that are requested here, and return those of this rank's lines, or their place."""

    def _exchange_classes(self, work: ClassifiedBatch) -> None:
        """Find the sources of a batch's rows, hot where they are hot at their owner, and which of them are stale."""
        requests: Requests = work.staged
        owned, stale_U = requests.owned, np.empty(len(work.source_U), dtype=np.bool_)
        class_N = (owned.hot_U.astype(np.uint8) + super().stale_of(owned))[owned.inverse_N]
        for pool, part in enumerate(requests.pools):
            span = work.pool_range(pool)
            class_U = self._answer(part.by_row, class_N[part.by_row.asked], span.stop - span.start)
            place_U = np.arange(span.stop - span.start)
            work.source_U[span] = np.where(class_U > 0, place_U, ~place_U)
            stale_U[span] = class_U == STALE
        requests.set_stale(stale_U)
        work.spread_sources()

    def _answer(self, way: ExchangePlan, values: NDArray[Any], places: int) -> NDArray[Any]:
        """Send what was requested here to those who requested it; return what this rank requested, in its places."""
        found = self.group.exchange("rows", values, way.received_W, way.sent_W)
        placed = np.empty((places, *found.shape[1:]), dtype=found.dtype)
        placed[way.place] = found
        return placed

    def stale_of(self, work: ClassifiedBatch) -> NDArray[np.bool_]:
        requests: Requests = work.staged
        return requests.stale_U

    def _agree(self, work: ClassifiedBatch, update: RowUpdate) -> Agreement:
        """Tell the owners what this rank's step did with its lines, and get what the others' steps did."""
        requests: Requests = work.staged
        owned, sent = requests.owned, []
        frozen_U = np.zeros(len(owned.distinct_U), dtype=np.bool_) if update.skips else None
        position_M = np.empty(owned.batch.size, dtype=np.int64)
        for pool, part in enumerate(requests.pools):
            way = part.by_line
            if frozen_U is None:
                position_M[way.asked] = np.arange(len(way.asked))
                sent.append(SentLines(way.place, way.sent_W, way.received_W))
                continue
            outcome_L = self._outcome(work, update, pool)
            outcome_M = self._tell(way, outcome_L)
            sent_L, received_M = outcome_L[way.place] == TRAINED, outcome_M == TRAINED
            sent.append(SentLines(way.place[sent_L], *way.chosen(sent_L, received_M)))
            position_M[way.asked] = np.where(outcome_M == UNTOUCHED, -1, np.cumsum(received_M) - received_M)
            frozen_N = self._tell(part.by_row, self._frozen(work, update, pool))
            frozen_U[owned.inverse_N[part.by_row.asked[frozen_N]]] = True
        return Agreement(sent, position_M, frozen_U)

    def _tell(self, way: ExchangePlan, values: NDArray[Any]) -> NDArray[Any]:
        """Send owners a value for each place, and return those that were sent here."""
        return self.group.exchange("requests", values[way.place], way.sent_W, way.received_W)

    def _frozen(self, work: ClassifiedBatch, update: RowUpdate, pool: int) -> NDArray[np.bool_]:
        """Return which distinct rows of a pool are frozen."""
        span = work.pool_range(pool)
        return np.zeros(span.stop - span.start, np.bool_) if update.frozen_U is None else update.frozen_U[span]

    def _outcome(self, work: ClassifiedBatch, update: RowUpdate, pool: int) -> NDArray[np.uint8]:
        """Return what this rank's step did with each line of a pool (L). A part is trained with all its rows, or is untouched."""
        lines: PoolLines = work.staged.pools[pool].lines
        touched_L, frozen_L = np.empty((2, len(lines.owner_L)), dtype=np.bool_)
        first, segments_U1, segment_bag_N = lines.segments
        segments_L1 = segments_U1[first : first + len(touched_L) + 1]
        touched_rows(segments_L1, segment_bag_N, len(self.batch_space.features), update.position_B, touched_L)
        frozen_L[:] = False
        if update.frozen_U is not None:
            frozen_L[: len(lines.rows)] = update.frozen_U[lines.rows]
        return np.where(touched_L, np.where(frozen_L, FROZEN, TRAINED), UNTOUCHED).astype(np.uint8)

    @property
    def own_slots(self) -> slice:
        slots_W = self.group.gather(np.array([sum(self.device.capacities)]))[:, 0]
        first = int(slots_W[: self.group.rank].sum())
        return slice(first, first + int(slots_W[self.group.rank]))

    def slots_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        row_U, inverse = np.unique(rows, return_inverse=True)
        asked = AskedRows.ask(self.group, self.ownership, row_U, self.group.exchange_sizes)
        slot_M, first = super().slots_of(asked.row_M), self.own_slots.start
        slots: NDArray[np.int64] = asked.answer(np.where(slot_M >= 0, first + slot_M, -1))[inverse]
        return slots

    def owned(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        owner, own_rows = self.ownership.split(rows)
        return owner == self.group.rank, own_rows[owner == self.group.rank]

    def counted(self, work: ClassifiedBatch) -> RequestedLookups:
        requests: Requests = work.staged
        return requests.counted

    def shown_placement(self) -> tuple[NDArray[np.int32], list[Tier]]:
        _, own = super().shown_placement()
        tiers = [self._tier_of_all(tier, pool.rows) for tier, pool in zip(own, self.batch_space.pools, strict=True)]
        slot_of_row = np.full(self.batch_space.rows if self.group.rank == 0 else 0, COLD, dtype=np.int32)
        for tier in tiers if self.group.rank == 0 else ():
            slots = np.flatnonzero(tier.row_of_slot_H >= 0)
            slot_of_row[tier.row_of_slot_H[slots]] = slots
        return slot_of_row, tiers

    def _tier_of_all(self, own: Tier, rows: int) -> Tier:
        """Return a pool's slots of all ranks to rank 0, with the rows of `batch_space`; at most as many as the pool has rows."""
        rows_H = np.where(own.row_of_slot_H >= 0, self.ownership.joint_rows(np.maximum(own.row_of_slot_H, 0)), -1)
        sent_W = np.zeros(self.group.ranks, dtype=np.int64)
        sent_W[0] = len(rows_H)
        slots_W = self.group.gather(sent_W[:1])[:, 0] * (self.group.rank == 0)
        arrays = rows_H, own.stale_H, own.estimate_H, own.movement_H
        found = [self.group.exchange("placement", array, sent_W, slots_W) for array in arrays]
        excess = max(0, len(found[0]) - rows)  # ranks have slots for equally many rows, of which some do not exist
        free = np.flatnonzero(found[0] < 0)
        return Tier(*(np.delete(array, free[len(free) - excess :]) for array in found))

    # Whole tables ----------------------------------------------------------------------------------------------------

    def import_rows(self, table: int, first: int, weights_ND: NDArray[Any], state_NK: NDArray[Any]) -> None:
        """Set those of a table's rows from number `first` on that are this rank's."""
        ranks, end = self.group.ranks, first + len(weights_ND)
        blocks = slice(first // ranks, -(-end // ranks))
        ids = self.ownership.owned_ids(table)[blocks]
        inside = (first <= ids) & (ids < end)
        pool, low, _ = self.space.table_range(table)
        rows, lines = low + np.arange(blocks.start, blocks.stop)[inside], ids[inside] - first
        self._overwrite(pool, rows, (weights_ND[lines], state_NK[lines]))

    def draw_rows(self, table: int, row_C: NDArray[np.int64], key_C: NDArray[np.int64], rows: int) -> None:
        """Set those of a table's rows that are this rank's; the other ranks draw theirs."""
        here, own_row_C = self._owned_of(table, row_C)
        super().draw_rows(table, own_row_C, key_C[here], rows)

    def clear_rows(self, table: int, row_C: NDArray[np.int64]) -> NDArray[np.int64]:
        return super().clear_rows(table, self._owned_of(table, row_C)[1])

    def flag_changed(self, table: int, row_C: NDArray[np.int64]) -> None:
        super().flag_changed(table, self._owned_of(table, row_C)[1])

    def _owned_of(self, table: int, row_C: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return which of some rows of a table this rank has, and their numbers in its part of the table."""
        here, own_rows = self.owned(self.batch_space.table_first_row[table] + row_C)
        return here, own_rows - self.space.table_first_row[table]

    def saved_rows(
        self, row_N: NDArray[np.int64], weights_ND: NDArray[Any], state_NK: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]:
        joint_N = self.ownership.joint_rows(row_N)
        some = joint_N >= 0
        return (joint_N, weights_ND, state_NK) if some.all() else (joint_N[some], weights_ND[some], state_NK[some])

    def _draw(self, table: int) -> None:
        """Draw the first values of this rank's rows of a table, as one process draws them."""
        pool, low, high = self.space.table_range(table)
        weights, ids = self.host.weights[pool][low:high], self.ownership.owned_ids(table)
        bound = first_bound(self.batch_space.tables[table].rows)

        def fill(part: slice) -> None:
            fill_rows(np.uint64(self.seed % 2**64), table, bound, ids[part], weights[part])

        fill_parts(len(ids), fill)
