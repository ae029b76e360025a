"""The store of a run of several processes on CPUs: this rank's rows, and those of other ranks fetched for each batch.

The rows that this rank owns are a `DirectStore` of their own, with both tiers: their owner sees every lookup of them, decides
where they live, and updates them. A step fetches the distinct rows that its part of the batch reads from their owners, and sends
back a gradient for each; the owner sums them in the order of the ranks, so that the same number of ranks gives the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.direct import DirectStore
from adaptive_rec.embedding.host import fill_parts, first_bound
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.embedding.shared.ownership import Ownership
from adaptive_rec.embedding.shared.requests import PoolRequests, RequestedLookups, Requests, exchange_requests
from adaptive_rec.kernels import pooling, row_update
from adaptive_rec.kernels.fill import fill_rows
from adaptive_rec.live.state_writer import Tier
from adaptive_rec.placement import COLD, RowSpace
from adaptive_rec.system.group import Group

STALE = 2
"""The class of a stale row; 1: hot, 0: cold."""

_SUM = row_update.Hyper(lr=-1.0, eps=0.0, beta1=0.0, beta2=0.0, step=1)
"""SGD with this learning rate on rows of zeros makes each row the sum of its gradients."""


class SharedStore(DirectStore):
    """This rank's rows; `batch_space` has those of all ranks, which batches read."""

    def __init__(
        self, group: Group, space: RowSpace, rule: RowRule, seed: int, dtype: torch.dtype, budget_bytes: int,
        monitored: bool, drawn: bool = True,
    ) -> None:  # fmt: skip
        self.group = group
        self._announcing = group.fork()
        self.ownership = Ownership(space, group.ranks, group.rank)
        super().__init__(
            self.ownership.own, rule, seed, dtype, torch.device("cpu"), budget_bytes, monitored, False
        )
        for table in range(len(space.tables)) if drawn else ():
            self._draw(table)

    @property
    def batch_space(self) -> RowSpace:
        return self.ownership.space

    # A step ----------------------------------------------------------------------------------------------------------

    def classify(self, work: ClassifiedBatch) -> None:
        """Nothing yet: the sources of a batch's rows come with them."""

    def stage(self, work: ClassifiedBatch) -> None:
        """Exchange the batch's requests."""
        work.attach(exchange_requests(work, self.ownership, self._announcing, self.threads))

    def look_up(self, work: ClassifiedBatch) -> None:
        """Exchange a batch's requests between two steps, and fetch its rows."""
        work.attach(exchange_requests(work, self.ownership, self.group, self.threads))
        self.take(work)

    def take(self, work: ClassifiedBatch) -> None:
        """Fetch the batch's rows as all steps so far have left them."""
        requests: Requests = work.staged
        super().classify(requests.owned)
        asked_class_M = self._asked_classes(requests.owned)
        for pool, part in enumerate(requests.pools):
            span = work.pool_range(pool)
            rows_UD = self._answer(part, self._asked_rows(requests.owned, pool, part))
            class_U = self._answer(part, asked_class_M[part.line_M])
            place_U = np.arange(span.stop - span.start)
            work.source_U[span] = np.where(class_U > 0, place_U, ~place_U)
            requests.take(rows_UD, class_U == STALE)
        work.spread_sources()

    def _asked_classes(self, owned: ClassifiedBatch) -> NDArray[np.uint8]:
        """Return the class of each row that is requested here (M)."""
        class_U = owned.hot_U.astype(np.uint8) + super().stale_of(owned)
        class_M = np.empty(owned.batch.size, dtype=np.uint8)
        class_M[owned.segment_bag_N // len(self.space.pools)] = np.repeat(class_U, np.diff(owned.segments_U1))
        return class_M

    def _asked_rows(self, owned: ClassifiedBatch, pool: int, part: PoolRequests) -> NDArray[Any]:
        """Return the rows of a pool that are requested here (M, D)."""
        asked = np.empty((len(part.line_M), 1, self.space.pools[pool].dim), dtype=self.host.weights[pool].dtype)
        pooling.gather_pooled(
            part.line_M, np.array([pool]), len(self.space.pools), owned.batch.offsets, owned.one_hot, owned.source_N,
            self.space.mean_F, *self.weights_of(pool), asked, threads=self.threads,
        )  # fmt: skip
        return asked[:, 0]

    def _answer(self, part: PoolRequests, values: NDArray[Any]) -> NDArray[Any]:
        """Send values of the requested rows of a pool to those who requested them; return those of the batch's own rows."""
        found = self.group.exchange("rows", values, part.received_W, part.sent_W)
        of_batch = np.empty_like(found)
        of_batch[part.order_U] = found
        return of_batch

    def stale_of(self, work: ClassifiedBatch) -> NDArray[np.bool_]:
        requests: Requests = work.staged
        return np.concatenate(requests.stale)

    def gather(
        self, work: ClassifiedBatch, samples_S: NDArray[np.int64], scale_S: NDArray[np.float64], micro: MicroBatch
    ) -> None:
        fetched = work.staged.fetched
        self.fill(work, samples_S, scale_S, micro, lambda pool: (fetched[pool], fetched[pool]))

    def apply(self, work: ClassifiedBatch, update: RowUpdate) -> None:
        """Send the rows' gradients to their owners, and update this rank's rows by those that came."""
        requests: Requests = work.staged
        position_M = np.empty(requests.owned.batch.size, dtype=np.int64)
        gradients = []
        for pool, part in enumerate(requests.pools):
            summed_UD = self._sum(work, update, pool)
            received = self.group.exchange("gradients", summed_UD[part.order_U], part.sent_W, part.received_W)
            gradients.append(torch.from_numpy(received[:, None]))
            position_M[part.line_M] = np.arange(len(part.line_M))
        super().apply(
            requests.owned, RowUpdate(gradients, position_M, None, update.lr, update.step, measure=update.measure)
        )

    def _sum(self, work: ClassifiedBatch, update: RowUpdate, pool: int) -> NDArray[Any]:
        """Return the sum of the gradients of each distinct row of a pool (U, D), over this rank's samples."""
        span, space = work.pool_range(pool), self.batch_space
        rows, dim = span.stop - span.start, space.pools[pool].dim
        if not update.gradients:
            return np.zeros((rows, dim), dtype=self.host.dtype)
        gradients = update.gradients[pool].numpy()
        summed, place_U = np.zeros((rows, dim), dtype=gradients.dtype), np.arange(rows)
        nothing = np.empty((0, 0), dtype=gradients.dtype)
        row_update.update_rows(
            row_update.SGD, _SUM, row_update.RowSegments(span.start, work.segments_U1, work.segment_bag_N),
            self.gradient_places(work, update), gradients,
            row_update.PoolRows(np.zeros(rows, np.bool_), place_U, ~place_U, np.zeros(rows, np.bool_)),
            row_update.TierArrays(nothing, nothing, summed, np.empty((rows, 0), dtype=gradients.dtype)),
            threads=self.threads,
        )  # fmt: skip
        return summed

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
        rows = low + np.arange(blocks.start, blocks.stop)[inside]
        self.host.weights[pool][rows] = weights_ND[ids[inside] - first]
        self.host.state[pool][rows] = state_NK[ids[inside] - first]

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
