"""This rank's rows, and those of other ranks fetched for each batch.

The owner of rows sees every lookup of them, decides where they live, and updates them. A step fetches what its part of the batch
reads from the owners, distinct rows and pooled parts of bags (`lines.py`), and sends back a gradient for each; the owner sums
them in the order of the ranks, so that the same number of ranks gives the same bits. What is requested of a rank is a batch of
its own rows, which takes any path: it is staged ahead, gathered and updated like any batch.

What is requested, where rows are and what is skipped goes from host to host; how vectors and gradients travel is the transport's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.device import split_budget
from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.path.row_path import BatchPath, RowPath
from adaptive_rec.embedding.peers.asked_rows import AskedRows
from adaptive_rec.embedding.peers.lines import PoolLines
from adaptive_rec.embedding.peers.ownership import Ownership
from adaptive_rec.embedding.peers.peers import Peers, Some
from adaptive_rec.embedding.peers.requests import (
    ExchangePlan,
    RequestedLookups,
    Requests,
    SentLines,
    exchange_requests,
)
from adaptive_rec.embedding.peers.transport import Agreement, Transport, answer
from adaptive_rec.embedding.records import Fetched, MicroBatch, RowUpdate
from adaptive_rec.embedding.shard_arrays import ROW
from adaptive_rec.kernels.staging import touched_rows
from adaptive_rec.live.state_writer import Tier
from adaptive_rec.placement import COLD, RowSpace
from adaptive_rec.system.group import Group

STALE = 2
"""The class of a stale row; 1: hot, 0: cold."""

UNTOUCHED, TRAINED, FROZEN = 0, 1, 2
"""What a step did with a line that a rank had requested. Only with TRAINED its gradient is sent."""


class RankPeers(Peers, BatchPath):
    """Several ranks; `batch_space` has the rows of all of them, which batches read."""

    owns_all = False

    def __init__(
        self, index: RowIndex, hot: HotRows, path: RowPath, group: Group, ownership: Ownership, transport: Transport,
        rounded: bool,
    ) -> None:  # fmt: skip
        """`rounded`: in steps, vectors and gradients travel in bfloat16."""
        super().__init__(index, hot, path, group)
        self.ownership, self.home_T = ownership, ownership.home_T
        self._transport, self._rounded = transport, rounded
        self._announcing = group.fork()
        self.link = transport.link

    @property
    def batch_space(self) -> RowSpace:
        return self.ownership.space

    @property
    def batches(self) -> BatchPath:
        return self

    # A step ----------------------------------------------------------------------------------------------------------

    def classified(self, batch: Batch, threads: int = 1) -> ClassifiedBatch:
        """The sources of its rows come with what the owners answer."""
        return ClassifiedBatch(batch, self.batch_space, threads)

    def stage(self, work: ClassifiedBatch) -> None:
        """Exchange the batch's requests, and stage what is requested here."""
        work.attach(self._requested(work, self._announcing))
        self._transport.stage(work)

    def look_up(self, work: ClassifiedBatch) -> None:
        """Exchange a batch's requests between two steps, and fetch its rows."""
        work.attach(self._requested(work, self.group))
        self.path.look_up(work.staged.owned)
        self._fetch(work, rounded=False)

    def take(self, work: ClassifiedBatch) -> None:
        """Fetch what the batch requests as all steps so far have left it."""
        self.path.take(work.staged.owned)
        self._fetch(work, self._rounded)

    def await_rows(self, work: ClassifiedBatch) -> None:
        self.path.await_rows(work.staged.owned)

    def _requested(self, work: ClassifiedBatch, group: Group) -> Requests:
        vector_bytes = 2 if self._rounded else self._hot.dtype.itemsize
        return exchange_requests(work, self.ownership, group, self.path.threads, vector_bytes)

    def _fetch(self, work: ClassifiedBatch, rounded: bool) -> None:
        requests: Requests = work.staged
        self._transport.make_ready(work)
        self._exchange_classes(work)
        requests.take([self._transport.fetch(requests, pool, rounded) for pool in range(len(requests.pools))])

    def gather(
        self, work: ClassifiedBatch, samples_S: NDArray[np.int64], scale_S: NDArray[np.float64], micro: MicroBatch
    ) -> None:
        self._transport.gather(work, samples_S, scale_S, micro)

    def apply(self, work: ClassifiedBatch, update: RowUpdate) -> None:
        """Send the lines' gradients to their owners, and update this rank's rows by those that came."""
        requests: Requests = work.staged
        agreed = self._agree(work, update)
        gradients = self._transport.exchange_gradients(work, update, agreed, self._rounded)
        own = RowUpdate(gradients, agreed.position_M, agreed.frozen_U, update.lr, update.step, measure=update.measure)
        self.path.apply(requests.owned, own)

    def release(self, work: ClassifiedBatch) -> None:
        requests: Requests | None = work.staged
        if requests is not None:
            self._transport.release(requests)
            self.path.release(requests.owned)

    def has_arrived(self, fetched: Fetched) -> bool:
        return self.group.all_true(fetched.is_here()) if self._transport.is_late else fetched.is_here()

    # What ranks tell each other --------------------------------------------------------------------------------------

    def _exchange_classes(self, work: ClassifiedBatch) -> None:
        """Find the sources of a batch's rows, hot where they are hot at their owner, and which of them are stale."""
        requests: Requests = work.staged
        owned, stale_U = requests.owned, np.empty(len(work.source_U), dtype=np.bool_)
        class_N = (owned.hot_U.astype(np.uint8) + super().stale_of(owned))[owned.inverse_N]
        for pool, part in enumerate(requests.pools):
            span = work.pool_range(pool)
            class_U = answer(self.group, part.by_row, class_N[part.by_row.asked], span.stop - span.start)
            place_U = np.arange(span.stop - span.start)
            work.source_U[span] = np.where(class_U > 0, place_U, ~place_U)
            stale_U[span] = class_U == STALE
        requests.set_stale(stale_U)
        work.spread_sources()

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

    def counted(self, work: ClassifiedBatch) -> RequestedLookups:
        requests: Requests = work.staged
        return requests.counted

    # Who owns what ---------------------------------------------------------------------------------------------------

    def owned(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        owner, own_rows = self.ownership.split(rows)
        return owner == self.group.rank, own_rows[owner == self.group.rank]

    def owned_of(self, table: int, row_C: NDArray[np.int64]) -> tuple[Some, NDArray[np.int64]]:
        here, own_rows = self.owned(self.batch_space.table_first_row[table] + row_C)
        return here, own_rows - self._index.space.table_first_row[table]

    def own_range(self, table: int, first: int, rows: int) -> tuple[NDArray[np.int64], Some]:
        each = 1 if self.home_T and self.home_T[table] == self.group.rank else self.group.ranks
        blocks = slice(first // each, -(-(first + rows) // each))
        id_C = self.ownership.owned_ids(table)[blocks]
        inside = (first <= id_C) & (id_C < first + rows)
        return np.arange(blocks.start, blocks.start + len(id_C))[inside], id_C[inside] - first

    def joint_shard(self, shard: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        joint_N = self.joint_rows(shard[ROW])
        some = joint_N >= 0
        joint = {**shard, ROW: joint_N}
        return joint if some.all() else {name: array[some] for name, array in joint.items()}

    def joint_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.ownership.joint_rows(rows)

    # Slots of all ranks ----------------------------------------------------------------------------------------------

    def capacities(self, budget_bytes: int) -> list[int]:
        return split_budget(self.batch_space, self._hot.row_bytes(), self.group.ranks * budget_bytes)

    @property
    def own_slots(self) -> slice:
        slots_W = self.group.gather(np.array([sum(self._hot.tier.capacities)]))[:, 0]
        first = int(slots_W[: self.group.rank].sum())
        return slice(first, first + int(slots_W[self.group.rank]))

    def slots_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        row_U, inverse = np.unique(rows, return_inverse=True)
        asked = AskedRows.ask(self.group, self.ownership, row_U, self.group.exchange_sizes)
        slot_M, first = super().slots_of(asked.row_M), self.own_slots.start
        slots: NDArray[np.int64] = asked.answer(np.where(slot_M >= 0, first + slot_M, -1))[inverse]
        return slots

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
        rows_H = np.where(own.row_of_slot_H >= 0, self.joint_rows(np.maximum(own.row_of_slot_H, 0)), -1)
        sent_W = np.zeros(self.group.ranks, dtype=np.int64)
        sent_W[0] = len(rows_H)
        slots_W = self.group.gather(sent_W[:1])[:, 0] * (self.group.rank == 0)
        arrays = rows_H, own.stale_H, own.estimate_H, own.movement_H
        found = [self.group.exchange("placement", array, sent_W, slots_W) for array in arrays]
        excess = max(0, len(found[0]) - rows)  # ranks have slots for equally many rows, of which some do not exist
        free = np.flatnonzero(found[0] < 0)
        return Tier(*(np.delete(array, free[len(free) - excess :]) for array in found))
