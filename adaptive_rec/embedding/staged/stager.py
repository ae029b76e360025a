"""Staging: a classified batch is packed into a slot of the ring and sent to the device, integers first, then cold rows.

A worker does it beside a training thread that needs the interpreter all the time. Each call of a kernel, of torch and of the
driver gives up the interpreter's lock and waits for it again, so a batch takes few of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.cold.home import ColdHome
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.staged.classified import ClassifiedOnDevice
from adaptive_rec.embedding.staged.device_bags import PIECE_LOOKUPS, BatchOnDevice
from adaptive_rec.embedding.staged.direct_rows import DirectRows
from adaptive_rec.embedding.staged.in_flight import Flight, Forward, PoolParts, Staged
from adaptive_rec.embedding.staged.packing import PackedArray, SlotLayout
from adaptive_rec.embedding.staged.ring import Slot, StagingRing
from adaptive_rec.embedding.staged.streams import Event
from adaptive_rec.embedding.staged.take_over import RoomForTable
from adaptive_rec.embedding.staged.travelling import TravellingRows
from adaptive_rec.kernels import staging
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.crew import Crew

_NO_ROWS = np.empty(0, dtype=np.int64)

LEAST_APART = 1 << 20
"""Bytes of rows that popular samples should not wait for: all else goes up before so many. Fewer cost less than a second copy."""


@dataclass(frozen=True)
class RoomForRows:
    """The cold rows of a batch, and their places in its slot."""

    cold: TravellingRows
    origins: list[tuple[int, tuple[Flight, Staged]]]
    """Pool and earlier batch, for each line of the table."""
    table: RoomForTable | None
    """Of the rows that earlier batches hold."""
    indices_stop: int
    """Where all that is no row ends."""
    start: int
    """Where rows begin, after the table."""
    numbers: dict[int, PackedArray]
    """Of rows that the device reads, by pool."""
    pools: dict[int, tuple[PackedArray, PackedArray]]
    """Weights and optimizer state."""
    sent_stop: int
    """Behind the rows that go up; those that the device reads come after them."""
    stop: int


@dataclass(frozen=True)
class ListsHere:
    """The lists of a batch's rows on the device, pool by pool."""

    bag_N: Tensor
    source_U: Tensor
    piece_NQ: Tensor
    """Where the pieces of each row begin, counted within the pool, and where those of each pool end: p places behind in pool p.
    """
    piece_start: Tensor
    """Where the bags of each piece begin, and where those of the last one end."""
    number_U: Tensor | None
    ends: list[int]
    """Where each pool's rows end."""
    piece_ends: list[int]


class Stager:
    """Stages one batch at a time, and finds the rows that earlier batches still hold."""

    travels = True
    """Whether cold rows travel."""

    def __init__(
        self, space: RowSpace, rule: RowRule, cold: ColdHome, dtype: torch.dtype, ring: StagingRing, crew: Crew,
        direct: DirectRows | None = None,
    ) -> None:  # fmt: skip
        self._space = space
        self._mean_F = torch.tensor(space.mean_F, device=ring.streams.device)
        self._cold, self._direct = cold, direct
        self._dtype, self._weight_type = dtype, rule.weight_type(dtype)
        self._sends_numbers = rule.rounds
        self._crew = crew
        self.ring = ring

    def stage(self, work: ClassifiedBatch, earlier: list[tuple[Flight, Staged]]) -> Staged:
        """Stage a batch. `earlier` are the batches before it that are still on their way, in order, with their slots held."""
        if isinstance(work, ClassifiedOnDevice):
            return self._stage_rows(work, earlier)
        batch, (source_U, cold) = work.batch, self._split(work)
        lookups, rows, pools = len(work.inverse_N), len(source_U), len(self._space.pools)
        most_pieces = rows + lookups // PIECE_LOOKUPS
        layout = SlotLayout()
        numbers = layout.add_numbers([len(batch.offsets), lookups, lookups, rows, rows + pools, most_pieces + 1])
        dense_BX, labels_B = layout.add(self._dtype, *batch.dense_BX.shape), layout.add(self._dtype, batch.size)
        number_U = layout.add(torch.int64, rows) if self._sends_numbers else None
        room = self._room(layout, cold, earlier)
        slot = self.ring.take(layout.nbytes)
        piece_ends = np.empty(pools, dtype=np.int64)
        staging.pack_batch(
            batch.offsets, work.inverse_N, work.segment_bag_N, source_U, work.segments_U1, work.distinct_U, work.pool_ends,
            batch.dense_BX, batch.labels_B, PIECE_LOOKUPS, _NO_ROWS if number_U is None else number_U.pinned(slot),
            dense_BX.pinned(slot), labels_B.pinned(slot), piece_ends, *numbers.pinned(slot),
        )  # fmt: skip
        offsets, inverse_N, bag_N, sources, *pieces = numbers.device(slot, int(piece_ends[-1]) + 1)
        dice = None if number_U is None else number_U.device(slot)
        lists = ListsHere(bag_N, sources, pieces[0], pieces[1], dice, work.pool_ends.tolist(), piece_ends.tolist())
        inputs = dense_BX.device(slot), labels_B.device(slot)
        bags = BatchOnDevice(*inputs, offsets, inverse_N, sources, self._mean_F)
        staged = self._staged(work.placement_version, slot, bags, lists, room)
        self._send(staged, room)
        return staged

    def _stage_rows(self, work: ClassifiedOnDevice, earlier: list[tuple[Flight, Staged]]) -> Staged:
        """Stage the rows of a batch whose lists are on the device."""
        lists, places = work.lists, work.places
        assert lists is not None, "a batch is placed before it is staged"
        assert places is not None
        batch = lists.room
        found, host_row_C = batch.found, places.cold_C
        if len(self._space.pools) > 1:
            rows_P = np.diff(places.ends_P, prepend=0)
            host_row_C = host_row_C - np.repeat(self._space.pool_first_row, rows_P)
        cold = TravellingRows(places.cold_C, host_row_C, places.ends_P, self._crew, self.travels)
        layout = SlotLayout()
        room = self._room(layout, cold, earlier)
        slot = self.ring.take(max(1, layout.nbytes))  # memory even where nothing travels: kernels take its address
        here = ListsHere(
            found.segment_bag_N, batch.source_N, found.piece_NQ, found.piece_start_N2,
            found.distinct_N if self._sends_numbers else None, lists.pool_ends.tolist(), lists.piece_ends.tolist(),
        )  # fmt: skip
        bags = BatchOnDevice(
            batch.dense_BX, batch.labels_B, batch.offsets, found.inverse_N, batch.source_N, self._mean_F
        )
        staged = self._staged(places.version, slot, bags, here, room, places.here, lists.sent_bytes)
        self._send(staged, room)
        return staged

    def _split(self, work: ClassifiedBatch) -> tuple[NDArray[np.int32], TravellingRows]:
        """Number the cold rows of each pool. Returns the sources of the distinct rows, and the cold ones."""
        rows = len(work.source_U)
        source_U, ends_P = np.empty(rows, dtype=np.int32), np.empty(len(self._space.pools), dtype=np.int64)
        row_C, host_row_C = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
        staging.split_sources(work.distinct_U, work.source_U, work.pool_ends, source_U, row_C, host_row_C, ends_P)
        count = ends_P[-1]
        return source_U, TravellingRows(row_C[:count], host_row_C[:count], ends_P, self._crew, self.travels)

    def _room(self, layout: SlotLayout, cold: TravellingRows, earlier: list[tuple[Flight, Staged]]) -> RoomForRows:
        """Find the rows that earlier batches hold, and lay out room for what rows need in their slot, behind all else."""
        indices_stop = layout.nbytes
        taken = cold.find([staged.travelling for _, staged in earlier])
        origins = [] if taken is None else [(pool, earlier[number]) for pool, number, _ in taken.lines]
        table = None if taken is None else RoomForTable(layout, taken)
        direct = self._direct or ()
        read = [pool for pool, rows_C in enumerate(cold.host_rows) if pool in direct and len(rows_C)]
        numbers = {pool: layout.add(torch.int64, len(cold.host_rows[pool])) for pool in read}
        start, pools = layout.align(), {}
        sent_stop = start
        for pool in sorted(range(len(cold.host_rows)), key=read.__contains__):
            rows = len(cold.host_rows[pool])
            weights_CD = layout.add(self._weight_type, rows, self._space.pools[pool].dim)
            pools[pool] = weights_CD, layout.add(self._dtype, rows, self._cold.arrays(pool)[1].shape[1])
            sent_stop = sent_stop if pool in read else layout.nbytes
        return RoomForRows(cold, origins, table, indices_stop, start, numbers, pools, sent_stop, layout.nbytes)

    def _staged(
        self, version: int, slot: Slot, bags: BatchOnDevice, lists: ListsHere, room: RoomForRows,
        here: Event = None, sent_bytes: int = 0,
    ) -> Staged:  # fmt: skip
        """Make views of all arrays. `here`: the event of lists that are on the device already; `sent_bytes`: went up for them."""
        pools, first, first_piece = list[PoolParts](), 0, 0
        for pool, (end, end_piece) in enumerate(zip(lists.ends, lists.piece_ends, strict=True)):
            pools.append(
                PoolParts(
                    room.cold.host_rows[pool], end - first, _part(lists.source_U, first, end),
                    _part(lists.piece_NQ, first + pool, end + pool + 1), _part(lists.piece_start, first_piece, end_piece + 1),
                    *self._rows_in(room, pool, slot),
                    None if lists.number_U is None else _part(lists.number_U, first, end),
                    room.numbers[pool].device(slot) if pool in room.numbers else None,
                )
            )  # fmt: skip
            first, first_piece = end, end_piece
        return Staged(
            version, slot, bags, lists.bag_N, pools, room.cold, indices_here=here, rows_start=room.start,
            copied_stop=room.sent_stop, stop=room.stop, sent_bytes=room.stop + sent_bytes,
        )  # fmt: skip

    def _rows_in(
        self, room: RoomForRows, pool: int, slot: Slot
    ) -> tuple[tuple[PackedArray, PackedArray] | None, tuple[Tensor, Tensor]]:
        """Return the places of a pool's rows and optimizer state in a slot, if they are there, and as the device reaches them."""
        weights_CD, state_CK = room.pools[pool]
        return room.pools[pool], (weights_CD.device(slot), state_CK.device(slot))

    def _send(self, staged: Staged, room: RoomForRows) -> None:
        """Send what was packed, and the cold rows with what says which of them come from earlier batches."""
        slot, start = staged.slot, 0
        if room.sent_stop - room.indices_stop >= LEAST_APART and room.indices_stop:
            staged.sent_indices(slot.upload(0, room.indices_stop))
            start = room.indices_stop
        self._take_over(staged, room)
        travel = self.travels and len(room.cold.row_C) > 0
        if travel:
            for pool, of_pool in enumerate(staged.pools):
                if pool in room.numbers:
                    room.numbers[pool].pinned(slot)[:] = of_pool.host_rows_C
                elif len(of_pool.host_rows_C):
                    staged.count_read(self._cold.read(pool, of_pool.host_rows_C, of_pool.pinned_rows(slot)))
        elif staged.indices_here is not None:
            return
        here = slot.upload(start, room.sent_stop)
        if staged.indices_here is None:
            staged.sent_indices(here)
        if travel:
            staged.sent_rows(here)
        if self._direct is not None and room.numbers:
            staged.sent_rows(self._direct.queued(slot.fill(self._direct.reading(staged.direct_pools()))))

    def _take_over(self, staged: Staged, room: RoomForRows) -> None:
        """Write which rows come from earlier batches, and hold their slots."""
        if room.table is None:
            return
        memory = [(origin.pools[pool].rows, staged.pools[pool].rows) for pool, (_, origin) in room.origins]
        taken = room.table.write(staged.slot, memory)
        for _, (_, origin) in room.origins:
            origin.slot.hold()
        staged.forward([Forward(pool, *origin) for pool, origin in room.origins], taken)


def _part(tensor: Tensor, first: int, end: int) -> Tensor:
    return tensor if first == 0 and end == tensor.shape[0] else tensor[first:end]
