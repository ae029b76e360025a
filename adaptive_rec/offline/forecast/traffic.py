"""The bytes that a rank of several sends in a step, counted from batches by the functions that a run sends with, and the time
that they take: messages, and bytes on the slowest way.

Gathers and sums are rings: a message goes from rank to rank, W - 1 times for a gather, 2 (W - 1) times for a sum, and one rank of
a node sends to the next node. In an exchange a rank sends each other one a message, and the ranks of a node share its network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, take
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.peers.lines import (
    CLASS_BYTES,
    LOOKUP_REQUEST_BYTES,
    PART_BYTES,
    ROW_REQUEST_BYTES,
    lines_of,
)
from adaptive_rec.embedding.peers.ownership import Ownership
from adaptive_rec.embedding.peers.whole_tables import choose_homes
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.group import part_of

COUNTED_RANKS = 8
"""The most ranks that are counted, spread evenly over all of them."""

SIZE_BYTES = 12
"""Bytes that say how much a rank requests of another one in a pool."""


@dataclass(frozen=True)
class Nodes:
    """Ranks on machines (nodes), filled one after the other."""

    ranks: int
    most_per_node: int

    @property
    def per_node(self) -> int:
        return min(self.ranks, self.most_per_node)

    @property
    def nodes(self) -> int:
        return -(-self.ranks // self.most_per_node)

    def beside(self, rank: int) -> slice:
        """Return the ranks of a rank's node."""
        first = rank // self.most_per_node * self.most_per_node
        return slice(first, first + self.most_per_node)


@dataclass(frozen=True)
class Sent:
    """What a rank sends to other ranks in a step, on average over those counted."""

    samples: float
    """Samples of its part of a batch."""
    lines: float
    """Rows and parts of bags that it asks for, its own among them; it is asked for as many."""
    requests: float
    rows: float
    gradients: float
    dense: float
    """Bytes, likewise below."""
    outside: float
    """Bytes of requests, rows and gradients that go to other nodes."""

    @property
    def exchanged(self) -> float:
        """Bytes of requests, rows and gradients."""
        return self.requests + self.rows + self.gradients

    def per_sample(self) -> dict[str, float]:
        """Return the bytes a sample of the rank's part, by kind."""
        kinds = {name: getattr(self, name) for name in ("requests", "rows", "gradients", "dense", "outside")}
        return {name: sent / self.samples if self.samples else 0.0 for name, sent in kinds.items()}


def count_sent(
    space: RowSpace, batches: Iterable[Batch], layouts: Sequence[Nodes], vector_bytes: int, dense_bytes: int,
    whole_tables: bool = False,
) -> list[Sent]:  # fmt: skip
    """Count what ranks send for these batches under each layout. `vector_bytes` is the size of a component of a vector,
    `dense_bytes` that of the dense part's gradients. `whole_tables`: a rank may own a table whole."""
    sums, steps = np.zeros((len(layouts), 6)), 0
    homes = [tuple[int, ...]()] * len(layouts)
    for batch in batches:
        steps += 1
        if whole_tables and steps == 1:
            homes = [choose_homes(space, batch, each.ranks, vector_bytes) for each in layouts]
        for place, (layout, home_T) in enumerate(zip(layouts, homes, strict=True)):
            ranks = counted_ranks(layout.ranks)
            sums[place] += np.mean([_of_rank(space, batch, layout, rank, vector_bytes, home_T) for rank in ranks], axis=0)
    means = (sums / max(1, steps)).tolist()
    return [_sent(mean, layout, dense_bytes) for mean, layout in zip(means, layouts, strict=True)]


def counted_ranks(ranks: int) -> list[int]:
    return sorted({round(rank) for rank in np.linspace(0, ranks - 1, min(ranks, COUNTED_RANKS))})


def _of_rank(
    space: RowSpace, batch: Batch, layout: Nodes, rank: int, vector_bytes: int, home_T: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return samples, lines, and bytes to other ranks: requests, rows, gradients, and of all those the part to other nodes."""
    ownership, part = Ownership(space, layout.ranks, rank, home_T=home_T), part_of(batch.size, rank, layout.ranks)
    work = ClassifiedBatch(take(batch, np.arange(part.start, part.stop)), space)
    owner_U, _ = ownership.split(work.distinct_U)
    lines = lines_of(work, ownership, owner_U, vector_bytes)
    counts_WP3 = np.stack([each.counts(layout.ranks) for each in lines.pools], axis=1)
    lines_WP, dim_P = counts_WP3[..., 0] + counts_WP3[..., 1], np.array([pool.dim for pool in space.pools])
    gradients_W = lines_WP @ dim_P * vector_bytes
    rows_W, parts_W, lookups_W = np.moveaxis(counts_WP3.sum(axis=1), -1, 0)
    requests_W = rows_W * ROW_REQUEST_BYTES + parts_W * PART_BYTES + lookups_W * LOOKUP_REQUEST_BYTES
    requests_W += SIZE_BYTES * len(space.pools)
    sent_3W = np.stack([requests_W, gradients_W + (rows_W + lookups_W) * CLASS_BYTES, gradients_W])
    outside = sent_3W.sum() - sent_3W[:, layout.beside(rank)].sum()
    sent_3W[:, rank] = 0
    return np.array([part.stop - part.start, lines_WP.sum(), *sent_3W.sum(axis=1), outside], dtype=np.float64)


def _sent(means: Sequence[float], layout: Nodes, dense_bytes: int) -> Sent:
    samples, lines, requests, rows, gradients, outside = means
    others = layout.ranks - 1
    dense = 2 * others / layout.ranks * dense_bytes
    return Sent(samples, lines, requests, rows, gradients, dense, outside)


# Time -----------------------------------------------------------------------------------------------------------------


HOP_SECONDS = 160e-6
"""A small message from one rank to another, with gloo's work: measured between two processes of a machine (2 shared cores of an
AMD EPYC, torch 2.13); taken for messages between machines too."""

MESSAGE_SECONDS = 20e-6
"""Each further message of an exchange, which are under way together. Assumed."""

LOCAL_BYTES_PER_SECOND = 1.2e9
"""Bytes that a rank sends to others of its machine in a second, measured likewise."""

GATHERS, SUMS = 4, 1
"""Gathers and sums over ranks in a step."""


def exchanges(pools: int) -> int:
    """Return the exchanges of a step: sizes of requests, requests, and of each pool vectors, classes and gradients."""
    return 2 + 3 * pools


@dataclass(frozen=True)
class NetworkSeconds:
    """Seconds of a step between ranks."""

    messages: float
    """Passing messages, however small."""
    exchanged: float
    """Bytes of requests, rows and gradients."""
    dense: float

    @property
    def all(self) -> float:
        return self.messages + self.exchanged + self.dense

    def largest(self) -> str:
        """Return in words what takes most."""
        parts = {
            "passing messages, however small": self.messages,
            "sending rows and their gradients": self.exchanged,
            "adding up the gradients of the dense part": self.dense,
        }
        return max(parts, key=lambda name: parts[name])


def network_seconds(sent: Sent, layout: Nodes, pools: int, network_bytes_per_second: float) -> NetworkSeconds:
    """Return the seconds of a step. The network is that of a node; it is not used where there is one node."""
    others = layout.ranks - 1
    if not others:
        return NetworkSeconds(0.0, 0.0, 0.0)
    hops = others * (GATHERS + 2 * SUMS) + exchanges(pools)
    messages = hops * HOP_SECONDS + exchanges(pools) * (others - 1) * MESSAGE_SECONDS
    ring = LOCAL_BYTES_PER_SECOND if layout.nodes == 1 else min(LOCAL_BYTES_PER_SECOND, network_bytes_per_second)
    exchanged = (sent.exchanged - sent.outside) / LOCAL_BYTES_PER_SECOND
    if layout.nodes > 1:
        exchanged = max(exchanged, layout.per_node * sent.outside / network_bytes_per_second)
    return NetworkSeconds(messages, exchanged, sent.dense / ring)
