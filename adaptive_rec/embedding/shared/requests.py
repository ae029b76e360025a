"""The rows that the ranks of a group request of one another for one batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.shared.ownership import Ownership
from adaptive_rec.system.group import Group

MOST_COUNTED = 0xFFFF
"""Most lookups of a row that a rank reports for one batch."""


@dataclass(frozen=True)
class RequestedLookups:
    """Lookups of an owner's rows by all ranks, for the sketch."""

    distinct_U: NDArray[np.int64]
    segments_U1: NDArray[np.int64]
    source_U: NDArray[np.int64]


@dataclass(frozen=True)
class PoolRequests:
    """Rows of one pool: what this rank requests and what is requested of it, owner after owner and rank after rank."""

    order_U: NDArray[np.int64]
    """The batch's distinct rows of the pool, by their numbers among them, owner after owner."""
    sent_W: NDArray[np.int64]
    """Number of rows that this rank requests of each rank."""
    line_M: NDArray[np.int64]
    """Samples of `Requests.owned` that are of this pool: rows that are requested here, rank after rank."""
    received_W: NDArray[np.int64]
    """Number of rows that each rank requests here."""

    def count_sent(self, chosen_U: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Count for each rank the chosen ones of the rows requested of it, which stand in `order_U`."""
        return _count_parts(chosen_U, self.sent_W)

    def count_received(self, chosen_M: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Count for each rank the chosen ones of its requests here, which stand in `line_M`."""
        return _count_parts(chosen_M, self.received_W)


@dataclass
class Requests:
    """A batch's requests, exchanged; the store's `staged` part of the batch."""

    owned: ClassifiedBatch
    """The rows that are requested of this rank, as a batch of its own rows: each request is a sample with one lookup."""
    count_M: NDArray[np.int64]
    """Lookups that each request stands for."""
    pools: list[PoolRequests]
    fetched: list[NDArray[np.floating]] = field(default_factory=list)
    """The batch's distinct rows of each pool (U, D), once the step has begun."""
    stale: list[NDArray[np.bool_]] = field(default_factory=list)
    """Which of them are hot and stale, likewise."""

    def take(self, rows_UD: NDArray[np.floating], stale_U: NDArray[np.bool_]) -> None:
        """Take the answers for the next pool."""
        self.fetched.append(rows_UD)
        self.stale.append(stale_U)

    @property
    def counted(self) -> RequestedLookups:
        owned = self.owned
        total_N1 = np.concatenate([[0], np.cumsum(self.count_M[owned.segment_bag_N // len(self.pools)])])
        return RequestedLookups(owned.distinct_U, total_N1[owned.segments_U1], owned.source_U)


def exchange_requests(work: ClassifiedBatch, ownership: Ownership, group: Group, threads: int) -> Requests:
    """Send each owner the rows that a batch reads, with their lookups, and get what the others request."""
    pools = len(work.space.pools)
    owner_U, own_row_U = ownership.split(work.distinct_U)
    order_U = np.argsort(owner_U.astype(np.int32), kind="stable")
    pool_U = np.repeat(np.arange(pools), np.diff(work.pool_ends, prepend=0))
    sent_WP = np.bincount(owner_U * pools + pool_U, minlength=group.ranks * pools).reshape(-1, pools)
    sizes_WP = group.gather(sent_WP.reshape(-1)).reshape(group.ranks, group.ranks, pools)[:, group.rank]
    asked = np.empty(len(order_U), dtype=[("row", "<u4"), ("count", "<u2")])
    asked["row"] = own_row_U[order_U]
    asked["count"] = np.minimum(np.diff(work.segments_U1)[order_U], MOST_COUNTED)
    found = group.exchange("requests", asked, sent_WP.sum(axis=1), sizes_WP.sum(axis=1))
    pool_M = np.repeat(np.tile(np.arange(pools), group.ranks), sizes_WP.reshape(-1))
    own = ownership.own
    owned = ClassifiedBatch(_batch_of(found["row"] - own.pool_first_row[pool_M], pool_M, pools), own, threads)
    firsts = np.concatenate([[0], work.pool_ends])
    parts = []
    for pool in range(pools):
        of_pool = order_U[pool_U[order_U] == pool] - firsts[pool]
        parts.append(PoolRequests(of_pool, sent_WP[:, pool], np.flatnonzero(pool_M == pool), sizes_WP[:, pool]))
    return Requests(owned, found["count"].astype(np.int64), parts)


def _batch_of(row_M: NDArray[np.int64], pool_M: NDArray[np.int64], pools: int) -> Batch:
    """Return a batch with a sample for each requested row, which it looks up in its pool alone."""
    line_M = np.arange(len(row_M))
    offsets = np.zeros(len(row_M) * pools + 1, dtype=np.int64)
    offsets[1:] = (line_M[:, None] + (np.arange(pools) >= pool_M[:, None])).reshape(-1)
    nothing = np.empty((len(row_M), 0), dtype=np.float32)
    return Batch(nothing, row_M.astype(np.int64), offsets, np.zeros(len(row_M), np.float32))


def _count_parts(chosen: NDArray[np.bool_], length_W: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the chosen ones in each of W successive parts."""
    counted = np.concatenate([[0], np.cumsum(chosen)])
    return np.diff(counted[np.concatenate([[0], np.cumsum(length_W)])])
