"""Staging: a classified batch is packed into a slot of the ring and sent to the device, integers first, then cold rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.host import ColdTier
from adaptive_rec.embedding.staged.host_rows import HostRows
from adaptive_rec.embedding.staged.in_flight import Flight, Forward, PoolParts, Staged, TravellingRows, find_origins
from adaptive_rec.embedding.staged.packing import INT32, PackedArray, SlotLayout
from adaptive_rec.embedding.staged.ring import StagingRing
from adaptive_rec.kernels import staging
from adaptive_rec.placement import RowSpace

PIECE_LOOKUPS = 64
"""Gradients that one warp of the device adds up one after the other; a longer segment is cut into pieces."""

class Stager:
    """Stages one batch at a time, and finds the rows that earlier batches still hold."""

    def __init__(
        self, space: RowSpace, host: ColdTier, rows: HostRows, dtype: torch.dtype, ring: StagingRing
    ) -> None:
        self._space = space
        self._host, self._rows = host, rows
        self._dtype = dtype
        self.ring = ring

    def stage(self, work: ClassifiedBatch, earlier: list[tuple[Flight, Staged]]) -> Staged:
        """Stage a batch. `earlier` are the batches before it that are still on their way, in order, with their slots held."""
        source_of_U = np.empty(len(work.source_U), dtype=np.int32)
        host_rows = [self._split(work, pool, source_of_U) for pool in range(len(self._space.pools))]
        layout = SlotLayout()
        ints: list[NDArray[Any]] = [work.batch.offsets, work.inverse_N, work.segment_bag_N, source_of_U]
        offsets, inverse_N, bag_N, source_U = (layout.add(INT32, len(array)) for array in ints)
        dense_BX = layout.add(self._dtype, *work.batch.dense_BX.shape)
        labels_B = layout.add(self._dtype, work.batch.size)
        pieces = [self._add_pieces(work, pool, layout) for pool in range(len(self._space.pools))]
        indices_stop = layout.nbytes
        origins = self._find_origins(work, earlier, host_rows)
        forward_parts = [(layout.add(INT32, len(to_C)), layout.add(INT32, len(to_C))) for *_, to_C in origins]
        rows_start = layout.align()
        pools = []
        for pool, rows_C in enumerate(host_rows):
            weights_CD = layout.add(self._dtype, len(rows_C), self._space.pools[pool].dim)
            state_CK = layout.add(self._dtype, len(rows_C), self._host.state[pool].shape[1])
            pools.append(PoolParts(rows_C, pieces[pool][0], pieces[pool][1], weights_CD, state_CK))
        staged = Staged(
            work.placement_version, self.ring.take(layout.nbytes), offsets, inverse_N, bag_N, source_U, dense_BX,
            labels_B, pools, TravellingRows(work.distinct_U, source_of_U), rows_start=rows_start, stop=layout.nbytes,
        )  # fmt: skip
        self._fill_indices(staged, work, ints)
        staged.sent_indices(staged.slot.upload(0, indices_stop))
        for (pool, (flight, origin), from_C, to_C), parts in zip(origins, forward_parts, strict=True):
            origin.slot.hold()
            staged.forwards.append(Forward(pool, flight, origin, *parts))
            parts[0].pinned(staged.slot)[:] = from_C
            parts[1].pinned(staged.slot)[:] = to_C
        if any(len(rows_C) for rows_C in host_rows):
            for pool, of_pool in enumerate(pools):
                staged.count_read(self._rows.read(pool, of_pool.host_rows_C, of_pool.pinned_rows(staged.slot)))
            staged.sent_rows(staged.slot.upload(indices_stop, layout.nbytes))
        return staged

    def _split(self, work: ClassifiedBatch, pool: int, source_of_U: NDArray[np.int32]) -> NDArray[np.int64]:
        """Number the cold rows of a pool. Returns their rows in the host tier."""
        span = work.pool_range(pool)
        host_rows_C = np.empty(span.stop - span.start, dtype=np.int64)
        cold = staging.split_sources(work.source_U[span], source_of_U[span], host_rows_C)
        return host_rows_C[:cold]

    def _add_pieces(self, work: ClassifiedBatch, pool: int, layout: SlotLayout) -> tuple[PackedArray, PackedArray]:
        segments_U1 = work.segments(pool)
        pieces = staging.count_pieces(segments_U1, PIECE_LOOKUPS)
        return layout.add(INT32, len(segments_U1)), layout.add(INT32, pieces + 1)

    def _find_origins(
        self, work: ClassifiedBatch, earlier: list[tuple[Flight, Staged]], host_rows: list[NDArray[np.int64]]
    ) -> list[tuple[int, tuple[Flight, Staged], NDArray[np.int32], NDArray[np.int64]]]:
        """Return pool, earlier batch, places of the rows there and places here, for each pair that shares rows."""
        found = []
        for pool, rows_C in enumerate(host_rows):
            first = self._space.pools[pool].first_row
            origin_C, place_C = find_origins(earlier, rows_C + first)
            for number, origin in enumerate(earlier):
                here = np.flatnonzero(origin_C == number)
                if len(here):
                    found.append((pool, origin, place_C[here], here))
        return found

    def _fill_indices(self, staged: Staged, work: ClassifiedBatch, ints: list[NDArray[Any]]) -> None:
        slot = staged.slot
        for part, array in zip((staged.offsets, staged.inverse_N, staged.bag_N, staged.source_U), ints, strict=True):
            part.pinned(slot)[:] = array
        staged.dense_BX.pinned(slot)[:] = work.batch.dense_BX
        staged.labels_B.pinned(slot)[:] = work.batch.labels_B
        for pool, parts in enumerate(staged.pools):
            piece_U1, piece_P1 = parts.piece_U1.pinned(slot), parts.piece_P1.pinned(slot)
            staging.cut_pieces(work.segments(pool), PIECE_LOOKUPS, piece_U1, piece_P1)
