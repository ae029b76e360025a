"""Snapshots of rows at one moment, saved by another thread while training continues.

No copy is made at that moment. A row is *pending* until it is copied: by the saving thread, which passes over all rows, or by a
caller of `keep` that is about to change or move it. So each row is saved once, as it was, and memory is needed for a few shards
only: if the saving thread is behind, callers of `keep` wait for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.host import ColdTier
from adaptive_rec.kernels import keeping
from adaptive_rec.placement import RowSpace

SHARD_BYTES = 32 << 20
"""Size of a shard's rows and optimizer state."""

_SLICE_BYTES = 1 << 20
"""Size of the part that is copied at a time, while `keep` waits."""

_LOOKED_AT = 1 << 18
"""Limit of rows that are looked at in that time."""

_WAITING = 2
"""Limit of full shards that wait for the saving thread."""

Tiers = tuple[NDArray[np.int32], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]
"""A pool's slots by row (empty where all rows are read from the host tier), hot rows and their optimizer state, host rows and
their optimizer state."""


class Shard:
    """Rows of one dim with their numbers in the joint row space; distinct and ascending when it is handed out."""

    def __init__(self, lines: int, weights: NDArray[Any], state: NDArray[Any]) -> None:
        """Allocate room for this many rows like these."""
        self.row_N = np.empty(lines, np.int64)
        self.weights_ND = np.empty((lines, weights.shape[1]), weights.dtype)
        self.state_NK = np.empty((lines, state.shape[1]), state.dtype)
        self.filled = 0

    @property
    def is_full(self) -> bool:
        return self.filled == len(self.row_N)

    @property
    def arrays(self) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]:
        """Numbers, rows and optimizer state."""
        return self.row_N[: self.filled], self.weights_ND[: self.filled], self.state_NK[: self.filled]

    def sort(self) -> None:
        order = np.argsort(self.row_N[: self.filled])
        self.row_N, self.weights_ND, self.state_NK = (array[order] for array in self.arrays)


class RowSnapshot:
    """Rows of a store at one moment. The training thread calls `keep` before rows change; another one calls `shards` once."""

    def __init__(
        self,
        space: RowSpace,
        host: ColdTier,
        tiers: Callable[[int], Tiers],
        pending_R: NDArray[np.bool_],
    ) -> None:
        """`pending_R` flags the rows to be saved, and is used up. `tiers` returns where a pool's rows can be read."""
        self._space = space
        self._host = host
        self._tiers = tiers
        self.mark_R = pending_R.view(np.uint8)
        """PENDING or TAKEN for each row to be saved, else 0."""
        self._mark = [self.mark_R[pool.first_row : pool.end_row] for pool in space.pools]
        self.rows = int(np.count_nonzero(pending_R))
        self.kept_seconds = 0.0
        """Time spent in `keep`."""
        self._changing = threading.Condition()
        self._kept: dict[tuple[int, int], Shard] = {}
        """Shards that `keep` is filling, by the widths of rows and of their optimizer state."""
        self._full: deque[Shard] = deque()
        self._ended = False

    def keep(self, pool: int, rows: NDArray[np.int64]) -> None:
        """Copy the pending ones of a pool's rows, which are about to change or move. Waits where the saving thread is behind."""
        began = time.perf_counter()
        done = 0
        with self._changing:
            while done < len(rows) and not self._ended:
                kind = self._kind(pool)
                shard = self._kept.get(kind) or self._kept.setdefault(kind, self._new_shard(pool))
                done, shard.filled = keeping.keep_rows(rows, done, *self._arguments(pool, shard))
                if shard.is_full:
                    self._full.append(self._kept.pop(kind))
                    while len(self._full) > _WAITING and not self._ended:
                        self._changing.wait()
        self.kept_seconds += time.perf_counter() - began

    def shards(self) -> Iterator[Shard]:
        """Yield all pending rows, each once. A shard is valid until the next one is requested."""
        shard: Shard | None = None
        for pool, spec in enumerate(self._space.pools):
            row, step = 0, max(1, _SLICE_BYTES // self._row_bytes(pool))
            while row < spec.rows:
                if shard is not None and (shard.is_full or self._kind(pool) != _kind_of(shard)):
                    if shard.filled:
                        yield shard
                    yield from self._full_ones()
                    shard = None
                if shard is None:
                    shard = self._new_shard(pool)
                with self._changing:
                    arguments = self._arguments(pool, shard)
                    row, shard.filled = keeping.take_rows(row, min(row + _LOOKED_AT, spec.rows), step, *arguments)
                time.sleep(0)  # lets `keep` have the lock first
        if shard is not None and shard.filled:
            yield shard
        self.end()  # no row is pending
        yield from self._full_ones()
        for shard in self._kept.values():
            if shard.filled:
                shard.sort()
                yield shard

    def forget(self) -> None:
        """Remove all marks."""
        self.mark_R[:] = 0

    def end(self) -> None:
        """Stop keeping rows, and wake up callers that wait."""
        with self._changing:
            self._ended = True
            self._changing.notify_all()

    def _full_ones(self) -> Iterator[Shard]:
        while True:
            with self._changing:
                if not self._full:
                    return
                shard = self._full.popleft()
                self._changing.notify_all()
            shard.sort()
            yield shard

    def _arguments(self, pool: int, shard: Shard) -> tuple[keeping.KeptPool, keeping.ShardArrays, int]:
        kept = keeping.KeptPool(self._mark[pool], *self._tiers(pool), self._space.pools[pool].first_row)
        return kept, keeping.ShardArrays(shard.row_N, shard.weights_ND, shard.state_NK), shard.filled

    def _new_shard(self, pool: int) -> Shard:
        lines = max(1, min(self.rows, SHARD_BYTES // self._row_bytes(pool)))
        return Shard(lines, self._host.weights[pool], self._host.state[pool])

    def _row_bytes(self, pool: int) -> int:
        weights, state = self._host.weights[pool], self._host.state[pool]
        return int(weights.shape[1] * weights.itemsize + state.shape[1] * state.itemsize)

    def _kind(self, pool: int) -> tuple[int, int]:
        return self._host.weights[pool].shape[1], self._host.state[pool].shape[1]


def _kind_of(shard: Shard) -> tuple[int, int]:
    return shard.weights_ND.shape[1], shard.state_NK.shape[1]
