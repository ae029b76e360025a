"""Classifying on the device: ids go up as they are, lists are found there, and counts and the numbers of cold rows come down.

All of it is work of the streams' side queue, so slots of rows that move change between two batches, never within one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import check_ids
from adaptive_rec.embedding.staged.classified import ClassifiedOnDevice, FetchedLists, ListsInSlot, Places
from adaptive_rec.embedding.staged.device_bags import PIECE_LOOKUPS
from adaptive_rec.embedding.staged.packing import ALIGNMENT, INT32, SlotLayout, send
from adaptive_rec.embedding.staged.ring import StagingRing
from adaptive_rec.embedding.staged.streams import Event, Streams
from adaptive_rec.kernels.batch_lists import BatchLists, BatchPlaces, SpaceOnDevice
from adaptive_rec.placement import COLD, Placement, RowSpace

MOVED_ROWS = 1 << 18
"""Rows whose slots go up in one copy."""


class Classifier:
    """Finds the lists of batches, and where their rows are. Any thread may call `place`, for a batch of its own."""

    def __init__(self, space: RowSpace, streams: Streams, dtype: torch.dtype) -> None:
        self._space = space
        self._streams = streams
        self._dtype = dtype
        self.ring = StagingRing(streams)
        self._fetched = StagingRing(streams)
        """Slots for lists that the host asks for."""
        self.moved = StagingRing(streams, at_least=2)
        """Slots for the numbers of rows that move. They are there from the start: a move that has begun must not fail."""
        self.moved.reserve(12 * min(MOVED_ROWS, space.rows) + 2 * ALIGNMENT)
        self._expected_cold = 0
        """Cold rows whose numbers come down without being asked for: a quarter more than those of the last batch."""
        per_pool = np.cumsum([len(pool.features) for pool in space.pools])
        numbers = (space.feature_order, space.feature_first_row, space.rows_F, per_pool)
        order_F, first_row_F, rows_F, features_Q = (torch.tensor(each, device=streams.device) for each in numbers)
        self._on_device = SpaceOnDevice(order_F, first_row_F, rows_F, features_Q, space.rows)
        self._slot_of_row = torch.full((space.rows,), int(COLD), dtype=INT32, device=streams.device)

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
            here = self._streams.launch_aside(self._placing(lists), after)
            self._come_down(work, lists, version, here)
            return
        lists, find = self._send(work)
        try:
            place = self._placing(lists)
            here = self._streams.launch_aside(lambda: (find(), place()), lists.slot.upload(0, lists.sent_bytes))
            self._come_down(work, lists, version, here)
        except BaseException:
            lists.slot.release(self._streams.launch_aside(_nothing))  # its memory may still be in use
            raise

    def _send(self, work: ClassifiedOnDevice) -> tuple[ListsInSlot, Callable[[], None]]:
        """Fill a slot with what travels. Returns room for its lists, and the work that fills it once all is there."""
        batch, space = work.batch, self._space
        lookups, pools, features = batch.lookups, len(space.pools), len(space.features)
        layout = SlotLayout()
        # What travels stands first, and what comes down at its end: the numbers of cold rows come where the ids were.
        offsets = layout.add(INT32, len(batch.offsets))
        dense_BX = layout.add(self._dtype, *batch.dense_BX.shape)
        labels_B = layout.add(self._dtype, batch.size)
        counts = layout.add(torch.int64, BatchLists.counts_size(pools, features))
        place_counts = layout.add(torch.int64, BatchPlaces.counts_size(pools, features))
        popular_B = layout.add(torch.bool, batch.size)
        ids_N1 = layout.add(torch.int64, lookups + 1)
        travelling = layout.align()
        inverse_N, bag_N, distinct_N = layout.add(INT32, lookups), layout.add(INT32, lookups), layout.add(torch.int64, lookups)
        bounds = [layout.add(INT32, size) for size in (lookups + 1, lookups + pools, lookups + 2)]
        source_N = layout.add(INT32, lookups)
        slot = self.ring.take(layout.nbytes, travelling)
        try:
            ids_N1.pinned(slot)[:-1] = batch.ids_N
            for part, array in ((offsets, batch.offsets), (dense_BX, batch.dense_BX), (labels_B, batch.labels_B)):
                part.pinned(slot)[:] = array
        except BaseException:
            slot.release(None)
            raise
        segments_N1, piece_NQ, piece_start_N2 = (part.device(slot) for part in bounds)
        found = BatchLists(
            inverse_N.device(slot), bag_N.device(slot), distinct_N.device(slot), segments_N1, piece_NQ, piece_start_N2,
            counts.device(slot),
        )  # fmt: skip
        lists = ListsInSlot(
            slot, dense_BX.device(slot), labels_B.device(slot), offsets.device(slot), source_N.device(slot), found, counts,
            place_counts, popular_B, ids_N1, travelling,
        )  # fmt: skip
        given = ids_N1.device(slot)[:-1], lists.offsets, work.one_hot, self._on_device, PIECE_LOOKUPS, found
        return lists, partial(self._streams.kernels.find_lists, *given)

    def _placing(self, lists: ListsInSlot) -> Callable[[], None]:
        """Return the work that finds where a batch's rows are."""
        slot = lists.slot
        places = BatchPlaces(
            lists.source_N, lists.cold_N1.device(slot), lists.popular_B.device(slot), lists.place_counts.device(slot)
        )
        features = len(self._space.features)
        return partial(
            self._streams.kernels.find_places, self._slot_of_row, lists.found, lists.offsets, features, places
        )

    def _come_down(self, work: ClassifiedOnDevice, lists: ListsInSlot, version: int, here: Event) -> None:
        """Wait for what the host knows of a batch: counts, which samples are popular, and the numbers of cold rows."""
        slot, cold, pools = lists.slot, lists.cold_N1, len(self._space.pools)
        size, expected = cold.dtype.itemsize, min(self._expected_cold, work.batch.lookups)
        self._streams.host_waits(slot.download_aside(lists.counts.start, cold.start + expected * size))
        known, placed = lists.counts.pinned(slot).copy(), lists.place_counts.pinned(slot).copy()
        if known[0]:
            check_ids(work.batch, self._space.tables, self._space.features)
        rows = int(placed[pools - 1])
        if rows > expected:
            self._streams.host_waits(slot.download_aside(cold.start + expected * size, cold.start + rows * size))
        self._expected_cold = rows + rows // 4
        if work.lists is None:
            lists.came_down(known[1 : 1 + pools], known[1 + pools : 1 + 2 * pools])
            work.found(lists, known[1 + 2 * pools :], self.fetch)
        cold_rows, ends = cold.pinned(slot)[:rows].copy(), [0, *placed[:pools].tolist()]
        of_pools = [cold_rows[first:end] for first, end in zip(ends[:-1], ends[1:], strict=True)]
        work.placed(Places(version, here, of_pools, lists.popular_B.pinned(slot).copy(), placed[pools:]))

    # Lists that the host asks for ------------------------------------------------------------------------------------

    def fetch(self, lists: ListsInSlot, names: Sequence[str]) -> FetchedLists:
        """Start to copy some lists of a batch down, which hold their slot."""
        lists.slot.hold()
        fetched = FetchedLists(self._streams, self._fetched, {name: lists.named(name) for name in names})
        lists.slot.release(fetched.here)
        return fetched

    # Rows that move --------------------------------------------------------------------------------------------------

    def move(self, rows: NDArray[np.int64], slot_of_row: NDArray[np.int32]) -> None:
        """Take over the slots of some rows from `slot_of_row`, for batches placed from now on."""
        for start in range(0, len(rows), MOVED_ROWS):
            some = rows[start : start + MOVED_ROWS]
            parcel = send(self.moved, [some, slot_of_row[some]])
            index, slots = parcel.arrays
            self._end(parcel.slot.release, partial(self._slot_of_row.scatter_, 0, index, slots), parcel.here)

    def move_all(self, slot_of_row: NDArray[np.int32]) -> None:
        """Take over the slots of all rows."""
        for start in range(0, len(slot_of_row), MOVED_ROWS):
            part = slot_of_row[start : start + MOVED_ROWS]
            parcel = send(self.moved, [part])
            target = self._slot_of_row[start : start + len(part)]
            self._end(parcel.slot.release, partial(target.copy_, parcel.arrays[0]), parcel.here)

    def _end(self, release: Callable[[Event], None], work: Callable[[], Tensor], here: Event) -> None:
        release(self._streams.launch_aside(work, here))


def _nothing() -> None:
    """Do nothing, for the event."""
