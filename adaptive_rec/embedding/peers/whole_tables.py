"""Which tables one rank owns whole: those with long bags, where that sends fewer bytes than rows that are dealt out.

A bag whose rows are dealt out has a part at each of W ranks, so W - 1 sums travel to it and W - 1 gradients back; a table's only
owner sends one sum for it and gets one gradient, or none where the bag is its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, take
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.peers.lines import count_parts, way_bytes
from adaptive_rec.embedding.peers.ownership import Ownership
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.group import part_of

COUNTED_PARTS = 8

LEAST_SAVED = 0.1
"""A table is owned whole only where that saves this share of its bytes."""

MOST_UNEVEN = 0.25
"""How much more than an even share of all rows, or of all lookups, a rank may have."""


def choose_homes(space: RowSpace, batch: Batch, ranks: int, vector_bytes: int) -> tuple[int, ...]:
    """Return the rank that owns each table whole, -1 for a table whose rows are dealt out; nothing where all are.

    Chosen from what up to 8 ranks would send for their parts of a batch."""
    dealt_T, whole_T, lookups_T = np.zeros((3, len(space.tables)))
    elsewhere = Ownership(space, 2, 0, home_T=(1,) * len(space.tables))
    for rank in range(0, ranks, -(-ranks // COUNTED_PARTS)):
        part = part_of(batch.size, rank, ranks)
        work = ClassifiedBatch(take(batch, np.arange(part.start, part.stop)), space)
        if work.one_hot or batch.reads is not None:
            return ()
        for ownership, sent_T in ((Ownership(space, ranks, rank), dealt_T), (elsewhere, whole_T)):
            owner_U = ownership.split(work.distinct_U)[0]
            counts_2FW = count_parts(work, owner_U, ownership.ranks)
            sent_T += np.minimum(*way_bytes(work, ownership, owner_U, counts_2FW, vector_bytes))
        lookups_T += space.count_by_table(np.repeat(work.distinct_U, np.diff(work.segments_U1)))
    size_T = np.array([table.rows * table.dim for table in space.tables])
    share_2T = np.stack([size_T / size_T.sum(), lookups_T / max(1, lookups_T.sum())])
    chosen = np.flatnonzero(whole_T * (ranks - 1) / ranks < (1 - LEAST_SAVED) * dealt_T)
    return _spread(share_2T, chosen[np.argsort(-share_2T[:, chosen].max(axis=0), kind="stable")].tolist(), ranks)


def _spread(share_2T: NDArray[np.float64], chosen: list[int], ranks: int) -> tuple[int, ...]:
    """Give each chosen table, the largest first, to the rank that has least; without those that would leave the ranks uneven."""
    while chosen:
        home_T, load_2W = np.full(share_2T.shape[1], -1), np.zeros((2, ranks))
        for table in chosen:
            home_T[table] = (load_2W + share_2T[:, table : table + 1]).max(axis=0).argmin()
            load_2W[:, home_T[table]] += share_2T[:, table]
        above_2W = load_2W - load_2W.mean(axis=1, keepdims=True)
        what, rank = np.unravel_index(above_2W.argmax(), above_2W.shape)
        if above_2W[what, rank] * ranks <= MOST_UNEVEN:
            return tuple(home_T.tolist())
        chosen.remove(max(np.flatnonzero(home_T == rank).tolist(), key=lambda table: share_2T[what, table]))
    return ()
