"""What the ranks of a group request of one another for one batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.peers.lines import Lines, PoolLines, lines_of
from adaptive_rec.embedding.peers.ownership import Ownership
from adaptive_rec.system.group import SIZE, Group

MOST_COUNTED = 0xFFFF
"""Most lookups of a row that a rank reports for one batch."""


@dataclass(frozen=True)
class RequestedLookups:
    """Lookups of an owner's rows by all ranks, for the sketch."""

    distinct_U: NDArray[np.int64]
    segments_U1: NDArray[np.int64]
    source_U: NDArray[np.int64]


@dataclass(frozen=True)
class ExchangePlan:
    """How values go from owners to those who requested them, or back: here owner after owner, there rank after rank."""

    place: NDArray[np.int64]
    """Where each value that this rank requests has its place here."""
    sent_W: NDArray[np.int64]
    """Number of values that this rank requests of each rank."""
    asked: NDArray[np.int64]
    """Where each value that is requested of this rank has its place in `Requests.owned`."""
    received_W: NDArray[np.int64]
    """Number of values that each rank requests here."""

    def chosen(self, sent: NDArray[np.bool_], received: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return `sent_W` and `received_W` of some of the values."""
        return _count_parts(sent, self.sent_W), _count_parts(received, self.received_W)


@dataclass(frozen=True)
class SentLines:
    """The lines of a pool whose gradients are sent in a step."""

    line: NDArray[np.int64]
    """The lines that this rank sends, owner after owner."""
    sent_W: NDArray[np.int64]
    received_W: NDArray[np.int64]


@dataclass(frozen=True)
class PoolRequests:
    """Requests of one pool: what this rank requests and what is requested of it."""

    lines: PoolLines
    by_line: ExchangePlan
    """The way of vectors: from samples of `Requests.owned` to lines."""
    by_row: ExchangePlan
    """The way of what is said of rows: from lookups of `Requests.owned` to the batch's distinct rows."""


@dataclass
class Requests:
    """A batch's requests, exchanged; the store's `staged` part of the batch."""

    lines: Lines
    owned: ClassifiedBatch
    """What is requested of this rank, as a batch of its own rows: each line is a sample with lookups in one pool."""
    count_M: NDArray[np.int64]
    """Lookups of the requesting rank that each lookup of a sample stands for."""
    pools: list[PoolRequests]
    fetched: list[Any] = field(default_factory=list)
    """The vectors of each pool's lines (L, D), once the step has begun; on a device in the order in which they come."""
    stale_U: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    """Which of the batch's distinct rows are hot and stale, likewise."""

    on_device: Any = None
    """The lines on the device, while they have a place there (`device_lines.py`)."""

    def take(self, fetched: list[Any]) -> None:
        """Take the vectors of each pool."""
        self.fetched = fetched

    def set_stale(self, stale_U: NDArray[np.bool_]) -> None:
        """Set which distinct rows are hot and stale."""
        self.stale_U = stale_U

    def put_on_device(self, lines: Any) -> None:
        """Set the lines on the device; None: they have left it."""
        self.on_device = lines

    @property
    def counted(self) -> RequestedLookups:
        owned = self.owned
        total_N1 = np.concatenate([[0], np.cumsum(self.count_M[owned.segment_bag_N // len(self.pools)])])
        return RequestedLookups(owned.distinct_U, total_N1[owned.segments_U1], owned.source_U)


def exchange_requests(
    work: ClassifiedBatch, ownership: Ownership, group: Group, threads: int, vector_bytes: int = 4
) -> Requests:
    """Send each owner what a batch reads of it, with the lookups, and get what the others request.

    `vector_bytes`: size of a component of a vector.
    """
    owner_U, own_row_U = ownership.split(work.distinct_U)
    lines = lines_of(work, ownership, owner_U, vector_bytes)
    pools = len(lines.pools)
    sent_W3P = np.stack([each.counts(group.ranks) for each in lines.pools], axis=-1)
    received_W3P = group.exchange_sizes(sent_W3P)

    rows = np.concatenate([each.rows for each in lines.pools])
    rows = rows[np.argsort(owner_U[rows].astype(np.int32), kind="stable")]
    asked = np.empty(len(rows), dtype=[("row", "<u4"), ("count", "<u2")])
    asked["row"] = own_row_U[rows]
    asked["count"] = np.minimum(np.diff(work.segments_U1)[rows], MOST_COUNTED)
    sent = asked, lines.part_length_Q.astype(SIZE), own_row_U[lines.looked_up_K].astype(SIZE)
    found, length_Q, row_K = group.exchange_together("requests", sent, sent_W3P.sum(axis=2), received_W3P.sum(axis=2))
    has_parts = bool(len(lines.looked_up_K) or len(row_K))

    key_M = np.concatenate([np.repeat(np.arange(group.ranks * pools), received_W3P[:, k].reshape(-1)) for k in (0, 1)])
    length_M = np.concatenate([np.ones(len(found), dtype=np.int64), length_Q.astype(np.int64)])
    row_N, key_N = np.concatenate([found["row"], row_K]).astype(np.int64), np.repeat(key_M, length_M)
    own = ownership.own
    batch = _batch_of(row_N - own.pool_first_row[key_N % pools], length_M, key_M % pools, pools)
    owned = ClassifiedBatch(batch, own, threads)
    count_M = np.ones(len(length_M), dtype=np.int64)
    count_M[: len(found)] = found["count"]
    parts = []
    for pool, each in enumerate(lines.pools):
        by_line = by_row = _way(each.owner_L, np.arange(len(each.owner_L)), _Keys(key_M, pool, pools), group.ranks)
        if has_parts:
            owner = np.concatenate([each.owner_L[: len(each.rows)], each.lookup_owner_K])
            place = np.concatenate([each.rows, each.looked_up_K]) - work.pool_range(pool).start
            by_row = _way(owner, place, _Keys(key_N, pool, pools), group.ranks)
        parts.append(PoolRequests(each, by_line, by_row))
    return Requests(lines, owned, count_M, parts)


class _Keys(NamedTuple):
    """Rank and pool of all that is requested here, as one number, and one of the pools."""

    key: NDArray[np.int64]
    pool: int
    pools: int


def _way(owner: NDArray[np.int64], place: NDArray[np.int64], keys: _Keys, ranks: int) -> ExchangePlan:
    """`owner` and `place` are of what this rank requests in a pool, `keys` of what is requested of it."""
    asked = np.flatnonzero(keys.key % keys.pools == keys.pool)
    rank = keys.key[asked] // keys.pools
    order, others = (np.argsort(numbers.astype(np.int32), kind="stable") for numbers in (owner, rank))
    return ExchangePlan(place[order], np.bincount(owner, minlength=ranks), asked[others], np.bincount(rank, minlength=ranks))


def _batch_of(
    ids_N: NDArray[np.int64], length_M: NDArray[np.int64], pool_M: NDArray[np.int64], pools: int
) -> Batch:
    """Return a batch with a sample for each line, whose lookups are all in one pool."""
    end_M = np.cumsum(length_M)
    offsets = np.zeros(len(length_M) * pools + 1, dtype=np.int64)
    inside = np.arange(pools) >= pool_M[:, None]
    offsets[1:] = np.where(inside, end_M[:, None], (end_M - length_M)[:, None]).reshape(-1)
    nothing = np.empty((len(length_M), 0), dtype=np.float32)
    return Batch(nothing, ids_N, offsets, np.zeros(len(length_M), np.float32))


def _count_parts(chosen: NDArray[np.bool_], length_W: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the chosen ones in each of W successive parts."""
    counted = np.concatenate([[0], np.cumsum(chosen)])
    return np.diff(counted[np.concatenate([[0], np.cumsum(length_W)])])
