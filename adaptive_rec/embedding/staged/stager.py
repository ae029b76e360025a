"""Staging: a classified batch is packed into a slot of the ring and sent to the device, integers first, then cold rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.host import ColdTier
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.staged.classified import ClassifiedOnDevice
from adaptive_rec.embedding.staged.device_bags import PIECE_LOOKUPS, BatchOnDevice
from adaptive_rec.embedding.staged.direct_reads import DirectReads
from adaptive_rec.embedding.staged.host_rows import HostRows
from adaptive_rec.embedding.staged.in_flight import Flight, Forward, PoolParts, Staged, TravellingRows, find_origins
from adaptive_rec.embedding.staged.packing import INT32, PackedArray, SlotLayout
from adaptive_rec.embedding.staged.ring import Slot, StagingRing
from adaptive_rec.embedding.staged.take_over import RoomForTable
from adaptive_rec.kernels import staging
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.crew import Crew

Origin: TypeAlias = tuple[int, tuple[Flight, Staged], NDArray[np.int32], NDArray[np.int64]]
"""Pool, earlier batch, places of the rows there and places here."""


@dataclass(frozen=True)
class RowsToSend:
    """The cold rows of a batch, and the layout of the slot that they go to."""

    layout: SlotLayout
    origins: list[Origin]
    host_rows: list[NDArray[np.int64]]
    """Rows of the host tier, for each pool."""


@dataclass(frozen=True)
class RoomForRows:
    """Places of the rows of a batch in their slot."""

    start: int
    """Where rows begin, after the numbers of those that are forwarded."""
    taken: RoomForTable
    numbers: dict[int, PackedArray]
    """Of rows that the device reads, by pool."""
    pools: dict[int, tuple[PackedArray, PackedArray]]
    """Weights and optimizer state."""
    sent_stop: int
    """Behind the rows that go up; those that the device reads come after them."""

    def of_pool(self, pool: int, slot: Slot) -> tuple[PackedArray, PackedArray, tuple[Tensor, Tensor]]:
        """Return the places of a pool's rows, and the rows on the device."""
        weights, state = self.pools[pool]
        return weights, state, (weights.device(slot), state.device(slot))


class Stager:
    """Stages one batch at a time, and finds the rows that earlier batches still hold."""

    def __init__(
        self, space: RowSpace, rule: RowRule, host: ColdTier, rows: HostRows, dtype: torch.dtype, ring: StagingRing,
        crew: Crew, direct: DirectReads | None = None,
    ) -> None:  # fmt: skip
        self._space = space
        self._mean_F = torch.tensor(space.mean_F, device=ring.streams.device)
        self._host, self._rows, self._direct = host, rows, direct
        self._dtype, self._weight_type = dtype, rule.weight_type(dtype)
        self._sends_numbers = rule.rounds
        self._crew = crew
        self.ring = ring

    def stage(self, work: ClassifiedBatch, earlier: list[tuple[Flight, Staged]]) -> Staged:
        """Stage a batch. `earlier` are the batches before it that are still on their way, in order, with their slots held."""
        if isinstance(work, ClassifiedOnDevice):
            return self._stage_rows(work, earlier)
        source_of_U = np.empty(len(work.source_U), dtype=np.int32)
        host_rows = [self._split(work, pool, source_of_U) for pool in range(len(self._space.pools))]
        layout = SlotLayout()
        ints: list[NDArray[Any]] = [work.batch.offsets, work.inverse_N, work.segment_bag_N, source_of_U]
        int_parts = [layout.add(INT32, len(array)) for array in ints]
        inputs = [layout.add(self._dtype, *work.batch.dense_BX.shape), layout.add(self._dtype, work.batch.size)]
        pieces = [self._add_pieces(work, pool, layout) for pool in range(len(self._space.pools))]
        numbers = layout.add(torch.int64, len(source_of_U)) if self._sends_numbers else None
        indices_stop = layout.nbytes
        rows = RowsToSend(layout, self._find_origins(work, earlier, host_rows), host_rows)
        room = self._room(rows)
        slot = self.ring.take(layout.nbytes)
        for part, array in zip([*int_parts, *inputs], [*ints, work.batch.dense_BX, work.batch.labels_B], strict=True):
            part.pinned(slot)[:] = array
        number_U = None
        if numbers is not None:
            numbers.pinned(slot)[:] = work.distinct_U
            number_U = numbers.device(slot)
        for pool, (piece_U1, piece_P1) in enumerate(pieces):
            staging.cut_pieces(work.segments(pool), PIECE_LOOKUPS, piece_U1.pinned(slot), piece_P1.pinned(slot))
        offsets, inverse_N, bag_N, source_U = (part.device(slot) for part in int_parts)
        pools = []
        for pool, (piece_U1, piece_P1) in enumerate(pieces):
            span = work.pool_range(pool)
            parts = source_U[span], piece_U1.device(slot), piece_P1.device(slot)
            of_pool = None if number_U is None else number_U[span]
            pools.append(PoolParts(host_rows[pool], span.stop - span.start, *parts, *room.of_pool(pool, slot), of_pool))
        dense_BX, labels_B = (part.device(slot) for part in inputs)
        staged = Staged(
            work.placement_version, slot, BatchOnDevice(dense_BX, labels_B, offsets, inverse_N, source_U, self._mean_F), bag_N,
            pools, TravellingRows(work.distinct_U, source_of_U, self._crew), rows_start=room.start, stop=layout.nbytes,
            sent_bytes=layout.nbytes,
        )  # fmt: skip
        staged.sent_indices(slot.upload(0, indices_stop))
        self._send_rows(staged, rows, room, indices_stop)
        return staged

    def _stage_rows(self, work: ClassifiedOnDevice, earlier: list[tuple[Flight, Staged]]) -> Staged:
        """Stage the rows of a batch whose lists are on the device."""
        lists, places = work.lists, work.places
        assert lists is not None, "a batch is placed before it is staged"
        assert places is not None
        firsts = self._space.pool_first_row
        host_rows = [rows_C - first for rows_C, first in zip(places.cold_rows, firsts, strict=True)]
        layout = SlotLayout()
        rows = RowsToSend(layout, self._find_origins(work, earlier, host_rows), host_rows)
        room = self._room(rows)
        slot = self.ring.take(max(1, layout.nbytes))  # memory even where nothing travels: kernels take its address
        pools, first, first_piece = [], 0, 0
        for pool, (end, end_piece) in enumerate(zip(lists.pool_ends.tolist(), lists.piece_ends.tolist(), strict=True)):
            found = lists.found
            pieces = found.piece_NQ[first + pool : end + pool + 1], found.piece_start_N2[first_piece : end_piece + 1]
            parts = lists.source_N[first:end], *pieces
            number_U = found.distinct_N[first:end] if self._sends_numbers else None
            pools.append(PoolParts(host_rows[pool], end - first, *parts, *room.of_pool(pool, slot), number_U))
            first, first_piece = end, end_piece
        found = lists.found
        bags = BatchOnDevice(lists.dense_BX, lists.labels_B, lists.offsets, found.inverse_N, lists.source_N, self._mean_F)
        number_C = np.concatenate([~np.arange(len(rows_C), dtype=np.int32) for rows_C in host_rows])
        staged = Staged(
            places.version, slot, bags, found.segment_bag_N, pools,
            TravellingRows(np.concatenate(places.cold_rows), number_C, self._crew), indices_here=places.here,
            rows_start=room.start, stop=layout.nbytes, sent_bytes=layout.nbytes + lists.sent_bytes,
        )  # fmt: skip
        self._send_rows(staged, rows, room, 0)
        return staged

    def _room(self, rows: RowsToSend) -> RoomForRows:
        """Lay out room for what rows need in their slot."""
        layout = rows.layout
        taken = RoomForTable(layout, [len(to_C) for *_, to_C in rows.origins])
        direct = self._direct or ()
        read = [pool for pool, rows_C in enumerate(rows.host_rows) if pool in direct and len(rows_C)]
        numbers = {pool: layout.add(torch.int64, len(rows.host_rows[pool])) for pool in read}
        start, of_pools = layout.align(), {}
        sent_stop = start
        for pool in sorted(range(len(rows.host_rows)), key=read.__contains__):
            rows_C = rows.host_rows[pool]
            weights_CD = layout.add(self._weight_type, len(rows_C), self._space.pools[pool].dim)
            of_pools[pool] = weights_CD, layout.add(self._dtype, len(rows_C), self._host.state[pool].shape[1])
            sent_stop = sent_stop if pool in read else layout.nbytes
        return RoomForRows(start, taken, numbers, of_pools, sent_stop)

    def _send_rows(self, staged: Staged, rows: RowsToSend, room: RoomForRows, start: int) -> None:
        """Send the bytes of the slot from `start` on: rows, and which of them come from earlier batches."""
        slot = staged.slot
        if rows.origins:
            memory = [(origin.pools[pool].rows, staged.pools[pool].rows) for pool, (_, origin), *_ in rows.origins]
            taken = room.taken.write(slot, memory, [(from_C, to_C) for *_, from_C, to_C in rows.origins])
            for _, (_, origin), *_ in rows.origins:
                origin.slot.hold()
            staged.forward([Forward(pool, *origin) for pool, origin, *_ in rows.origins], taken)
        if not any(len(rows_C) for rows_C in rows.host_rows):
            return
        for pool, of_pool in enumerate(staged.pools):
            if pool in room.numbers:
                room.numbers[pool].pinned(slot)[:] = of_pool.host_rows_C
            else:
                staged.count_read(self._rows.read(pool, of_pool.host_rows_C, of_pool.pinned_rows(slot)))
        staged.sent_rows(slot.upload(start, room.sent_stop))
        if self._direct is not None and room.numbers:
            numbers = {pool: of_pool.device(slot) for pool, of_pool in room.numbers.items()}
            reads = [self._direct.reading(pool, of_pool, staged.pools[pool].rows) for pool, of_pool in numbers.items()]
            staged.sent_rows(self._direct.queued(slot.fill(lambda: [read() for read in reads])))

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
    ) -> list[Origin]:
        """Return pool, earlier batch, places of the rows there and places here, for each pair that shares rows."""
        found = []
        for pool, rows_C in enumerate(host_rows):
            first = self._space.pools[pool].first_row
            origin_C, place_C = find_origins(earlier, rows_C + first, self._crew)
            for number, origin in enumerate(earlier):
                here = np.flatnonzero(origin_C == number)
                if len(here):
                    found.append((pool, origin, place_C[here], here))
        return found
