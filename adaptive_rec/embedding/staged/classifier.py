"""Classifying on the device: ids go up as they are, lists are found there, and counts and the numbers of cold rows come down.

All of it is work of the streams' side queue, so slots of rows that move change between two batches, never within one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import Batch, check_ids
from adaptive_rec.embedding.staged.classified import ClassifiedOnDevice, FetchedLists, ListsInSlot, Places, RoomForBatch
from adaptive_rec.embedding.staged.device_bags import PIECE_LOOKUPS
from adaptive_rec.embedding.staged.packing import ALIGNMENT, INT32, SlotLayout, send
from adaptive_rec.embedding.staged.ring import Slot, StagingRing
from adaptive_rec.embedding.staged.streams import Event, Streams
from adaptive_rec.kernels import staging
from adaptive_rec.kernels.batch_lists import BatchLists, BatchPlaces, SpaceOnDevice
from adaptive_rec.placement import COLD, Placement, RowSpace

MOVED_ROWS = 1 << 18
"""Rows whose slots go up in one copy."""


RECORDING_BYTES = 256
"""Device memory for each lookup that must be free for a recording: what it takes for itself, and as much again to be safe."""


class _Layout:
    """Places of the arrays of a batch in a slot."""

    def __init__(self, batch: Batch, space: RowSpace, dtype: torch.dtype) -> None:
        lookups, pools, features = batch.lookups, len(space.pools), len(space.features)
        layout = SlotLayout()
        # What travels stands first, and what comes down at its end: the numbers of cold rows come where the ids were.
        inputs = [
            layout.add(INT32, len(batch.offsets)), layout.add(dtype, *batch.dense_BX.shape), layout.add(dtype, batch.size)
        ]  # fmt: skip
        self.down = [
            layout.add(torch.int64, BatchLists.counts_size(pools, features)),
            layout.add(torch.int64, BatchPlaces.counts_size(pools, features)),
            layout.add(torch.bool, batch.size),
        ]
        """Counts of lists and of places, and which samples are popular."""
        self.sent = [*inputs, layout.add(torch.int64, lookups + 1)]
        """Offsets, dense features, labels and ids."""
        self.travelling = layout.align()
        self.stays = [
            layout.add(INT32, lookups), layout.add(INT32, lookups), layout.add(torch.int64, lookups),
            *(layout.add(INT32, size) for size in (lookups + 1, lookups + pools, lookups + 2, lookups)),
        ]  # fmt: skip
        """Lists, in the order of `BatchLists` but for its counts, and the sources of rows."""
        self.nbytes = layout.nbytes


class Classifier:
    """Finds the lists of batches, and where their rows are. Any thread may call `place`, for a batch of its own."""

    def __init__(self, space: RowSpace, streams: Streams, dtype: torch.dtype, in_place: bool = False) -> None:
        """`in_place`: the source of a cold row is its place in the host tier."""
        self._space = space
        self._streams = streams
        self._dtype = dtype
        self.ring = StagingRing(streams)
        self._fetched = StagingRing(streams)
        """Slots for lists that the host asks for."""
        self.moved = StagingRing(streams, at_least=2)
        """Slots for the numbers of rows that move. They are there from the start: a move that has begun must not fail."""
        self.moved.reserve(12 * min(MOVED_ROWS, space.rows) + 2 * ALIGNMENT)
        self._to_record: deque[RoomForBatch] = deque()
        self._layouts: dict[Hashable, _Layout] = {}
        self._expected_cold = 0
        """Cold rows whose numbers come down without being asked for: a quarter more than those of the last batch."""
        per_pool = np.cumsum([len(pool.features) for pool in space.pools])
        numbers = (space.feature_order, space.feature_first_row, space.rows_F, per_pool)
        order_F, first_row_F, rows_F, features_Q = (torch.tensor(each, device=streams.device) for each in numbers)
        self._on_device = SpaceOnDevice(order_F, first_row_F, rows_F, features_Q, space.rows)
        self._slot_of_row = torch.full((space.rows,), int(COLD), dtype=INT32, device=streams.device)
        """Of a cold row the complement of its place in the host tier, where sources are such places."""
        self._in_place = in_place
        for pool in space.pools if in_place else ():
            of_pool = self._slot_of_row[pool.first_row : pool.end_row]
            torch.arange(-1, -1 - pool.rows, -1, dtype=INT32, out=of_pool)

    @property
    def rings(self) -> list[StagingRing]:
        return [self.ring, self.moved, self._fetched]

    @property
    def device_bytes(self) -> int:
        """Device memory of the slots of rows."""
        return self._slot_of_row.nbytes

    # Lists -----------------------------------------------------------------------------------------------------------

    def place(self, work: ClassifiedOnDevice, placement: Placement, after: Event | None) -> None:
        """Find a batch's lists, unless it has them, and where its rows are, and wait for what the host knows of it. After `after`
        sources found before are no longer used. Raises DataError where an id lies outside its table."""
        version = placement.version  # first: rows that move from here on are moved again under the next version
        lists = work.lists
        if lists is not None:
            here = self._streams.launch_aside(lists.room.find_places, after)
            self._come_down(work, lists, version, here)
            return
        lists = self._packed(work)
        slot, room = lists.slot, lists.room
        try:
            sent = slot.upload(room.sent_stop - lists.sent_bytes, room.sent_stop)
            slot.holds(room)
            here = self._streams.launch_aside(room.find_all, sent)
            self._come_down(work, lists, version, here)
            if room.use():
                self._to_record.append(room)
        except BaseException:
            slot.release(self._streams.launch_aside(_nothing))  # its memory may still be in use
            raise

    def _packed(self, work: ClassifiedOnDevice) -> ListsInSlot:
        """Fill a slot with what travels, and return it with room for a batch's lists."""
        batch = work.batch
        key = batch.size, batch.lookups, batch.dense_BX.shape[1], work.one_hot
        layout = self._layouts.get(key)
        if layout is None:
            layout = _Layout(batch, self._space, self._dtype)
            self._layouts = {key: layout}  # the last one: as a rule all batches are alike
        slot = self.ring.take(layout.nbytes, layout.travelling)
        try:
            room = slot.kept(key, lambda: self._room(slot, layout, work.one_hot))
            # The offsets of all one-hot batches of a room are the same: they stay until another room's batch is there.
            send_offsets = not (work.one_hot and slot.contents is room)
            slot.holds(None)
            staging.pack_inputs(batch.offsets, batch.dense_BX, batch.labels_B, batch.ids_N, *room.packed(send_offsets))
        except BaseException:
            slot.release(None)
            raise
        return ListsInSlot(slot, room, room.sent_stop - room.sent_from(send_offsets))

    def _room(self, slot: Slot, layout: _Layout, one_hot: bool) -> RoomForBatch:
        """Make views of a slot, and the work on it."""
        kernels, space = self._streams.kernels, self._on_device
        offsets, dense_BX, labels_B, ids_N1 = (part.device(slot) for part in layout.sent)
        *lists, source_N = (part.device(slot) for part in layout.stays)
        counts, place_counts, popular_B = (part.device(slot) for part in layout.down)
        inverse_N, bag_N, distinct_N, segments_N1, piece_NQ, piece_start_N2 = lists
        found = BatchLists(inverse_N, bag_N, distinct_N, segments_N1, piece_NQ, piece_start_N2, counts)
        places = BatchPlaces(source_N, ids_N1, popular_B, place_counts)

        def find_places() -> None:
            kernels.find_places(self._slot_of_row, found, offsets, len(self._space.features), places, self._in_place)

        def find_all() -> None:
            kernels.find_lists(ids_N1[:-1], offsets, one_hot, space, PIECE_LOOKUPS, found)
            find_places()

        *inputs, ids = (part.pinned(slot) for part in layout.sent)
        known, placed, popular = (part.pinned(slot) for part in layout.down)
        return RoomForBatch(
            (*inputs, ids[:-1]), layout.sent[1].start, layout.travelling, dense_BX, labels_B, offsets, source_N, found,
            layout.down[0].start, known, placed, popular, layout.sent[-1].start, ids, find_places, find_all,
        )  # fmt: skip

    def _come_down(self, work: ClassifiedOnDevice, lists: ListsInSlot, version: int, here: Event) -> None:
        """Wait for what the host knows of a batch: counts, which samples are popular, and the numbers of cold rows."""
        slot, room, pools = lists.slot, lists.room, len(self._space.pools)
        cold_N1, start = room.cold_N1, room.cold_start
        size, expected = cold_N1.itemsize, min(self._expected_cold, work.batch.lookups)
        self._streams.host_waits(slot.download_aside(room.down_start, start + expected * size))
        known, placed = room.counts.copy(), room.place_counts.copy()
        if known[0]:
            check_ids(work.batch, self._space.tables, self._space.features)
        rows = int(placed[pools - 1])
        if rows > expected:
            self._streams.host_waits(slot.download_aside(start + expected * size, start + rows * size))
        slot.came_down()
        self._expected_cold = rows + rows // 4
        if work.lists is None:
            lists.came_down(known[1 : 1 + pools], known[1 + pools : 1 + 2 * pools])
            work.found(lists, known[1 + 2 * pools :], self.fetch)
        popular_B = room.popular_B.copy()
        work.placed(Places(version, here, cold_N1[:rows].copy(), placed[:pools], popular_B, placed[pools:]))

    def record(self) -> None:
        """Record work that comes again and again. On the training thread, as nobody may wait for the whole device meanwhile."""
        while self._to_record:
            room = self._to_record.popleft()
            if self._streams.free_bytes() >= RECORDING_BYTES * len(room.cold_N1):  # a recording that finds none ends the run
                room.record(self._streams.record_aside)

    def forget_recordings(self) -> None:
        """Record nothing of what was used so far: its memory is to be freed."""
        self._to_record.clear()

    # Lists that the host asks for ------------------------------------------------------------------------------------

    def fetch(self, lists: ListsInSlot, names: Sequence[str]) -> FetchedLists:
        """Start to copy some lists of a batch down, which hold their slot."""
        lists.slot.hold()
        try:
            fetched = FetchedLists(self._streams, self._fetched, {name: lists.named(name) for name in names})
        except BaseException:
            lists.slot.release(None)
            raise
        lists.slot.release(fetched.here)
        return fetched

    # Rows that move --------------------------------------------------------------------------------------------------

    def move(self, rows: NDArray[np.int64], slot_of_row: NDArray[np.int32]) -> None:
        """Take over the slots of some rows from `slot_of_row`, for batches placed from now on."""
        for start in range(0, len(rows), MOVED_ROWS):
            some = rows[start : start + MOVED_ROWS]
            parcel = send(self.moved, [some, self._sources(some, slot_of_row[some])])
            index, slots = parcel.arrays
            self._end(parcel.slot.release, partial(self._slot_of_row.scatter_, 0, index, slots), parcel.here)

    def _sources(self, rows: NDArray[np.int64], slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return what stands for the slots of some rows on the device."""
        if not self._in_place:
            return slots
        pool_first_row = np.asarray(self._space.pool_first_row)
        first_row = pool_first_row[np.searchsorted(pool_first_row, rows, side="right") - 1]
        return np.where(slots < 0, ~(rows - first_row), slots).astype(np.int32)

    def _end(self, release: Callable[[Event], None], work: Callable[[], Tensor], here: Event) -> None:
        release(self._streams.launch_aside(work, here))


def _nothing() -> None:
    """Do nothing, for the event."""
