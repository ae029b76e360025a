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
from adaptive_rec.embedding.staged.packing import INT32, PackedArray, SlotLayout, send
from adaptive_rec.embedding.staged.ring import Slot, StagingRing
from adaptive_rec.embedding.staged.streams import Event, Streams
from adaptive_rec.kernels.batch_lists import BatchLists, BatchPlaces, SpaceOnDevice
from adaptive_rec.placement import COLD, Placement, RowSpace

MOVED_ROWS = 1 << 18
"""Rows whose slots go up in one copy."""


class Classifier:
    """Finds the lists of batches, and where their rows are. Any thread may call `find` and `place`, each for its own batch."""

    def __init__(self, space: RowSpace, streams: Streams, dtype: torch.dtype) -> None:
        self._space = space
        self._streams = streams
        self._dtype = dtype
        self.ring = StagingRing(streams)
        self._moved, self._fetched = StagingRing(streams), StagingRing(streams)
        """Slots for the numbers of rows that move, and for lists that the host asks for."""
        per_pool = np.cumsum([len(pool.features) for pool in space.pools])
        numbers = (space.feature_order, space.feature_first_row, space.rows_F, per_pool)
        order_F, first_row_F, rows_F, features_Q = (torch.tensor(each, device=streams.device) for each in numbers)
        self._on_device = SpaceOnDevice(order_F, first_row_F, rows_F, features_Q, space.rows)
        self._slot_of_row = torch.full((space.rows,), int(COLD), dtype=INT32, device=streams.device)

    @property
    def rings(self) -> list[StagingRing]:
        return [self.ring, self._moved, self._fetched]

    @property
    def device_bytes(self) -> int:
        """Device memory of the slots of rows."""
        return self._slot_of_row.nbytes

    # Lists -----------------------------------------------------------------------------------------------------------

    def find(self, work: ClassifiedOnDevice) -> None:
        """Find a batch's lists, and wait for their sizes. Raises DataError where an id lies outside its table."""
        batch, space = work.batch, self._space
        lookups, pools, features = batch.lookups, len(space.pools), len(space.features)
        layout = SlotLayout()
        # What travels stands first. The numbers of cold rows come where the ids were.
        ids_N1 = layout.add(torch.int64, lookups + 1)
        offsets = layout.add(INT32, len(batch.offsets))
        dense_BX = layout.add(self._dtype, *batch.dense_BX.shape)
        labels_B = layout.add(self._dtype, batch.size)
        inputs_stop = layout.nbytes
        counts = layout.add(torch.int64, BatchLists.counts_size(pools, features))
        place_counts = layout.add(torch.int64, BatchPlaces.counts_size(pools, features))
        popular_B = layout.add(torch.bool, batch.size)
        travelling = layout.align()
        inverse_N, bag_N, distinct_N = layout.add(INT32, lookups), layout.add(INT32, lookups), layout.add(torch.int64, lookups)
        bounds = [layout.add(INT32, size) for size in (lookups + 1, lookups + pools, lookups + 2)]
        source_N = layout.add(INT32, lookups)
        slot = self.ring.take(layout.nbytes, travelling)
        try:
            ids_N1.pinned(slot)[:-1] = batch.ids_N
            for part, array in ((offsets, batch.offsets), (dense_BX, batch.dense_BX), (labels_B, batch.labels_B)):
                part.pinned(slot)[:] = array
            segments_N1, piece_NQ, piece_start_N2 = (part.device(slot) for part in bounds)
            found = BatchLists(
                inverse_N.device(slot), bag_N.device(slot), distinct_N.device(slot), segments_N1, piece_NQ, piece_start_N2,
                counts.device(slot),
            )  # fmt: skip
            ids_N, on_device = ids_N1.device(slot)[:-1], offsets.device(slot)
            here = slot.upload(0, inputs_stop)
            given = ids_N, on_device, work.one_hot, self._on_device, PIECE_LOOKUPS, found
            work_on = partial(self._streams.kernels.find_lists, *given)
            self._streams.launch_aside(work_on, here)
            self._streams.host_waits(slot.download_aside(counts.start, counts.stop))
        except BaseException:
            slot.release(self._streams.launch_aside(_nothing))  # its memory may still be in use
            raise
        known = counts.pinned(slot).copy()
        if known[0]:
            slot.release(None)
            check_ids(batch, space.tables, space.features)
        ends = known[1 : 1 + pools], known[1 + pools : 1 + 2 * pools]
        lists = ListsInSlot(
            slot, dense_BX.device(slot), labels_B.device(slot), on_device, source_N.device(slot), found, *ends,
            ids_N1, place_counts, popular_B, inputs_stop,
        )  # fmt: skip
        work.found(lists, known[1 + 2 * pools :], self.fetch)

    def place(self, work: ClassifiedOnDevice, placement: Placement, after: Event | None) -> None:
        """Find where a batch's rows are, and wait for the numbers of the cold ones. After `after` sources found before are no
        longer used."""
        if work.lists is None:
            self.find(work)
        lists = work.lists
        assert lists is not None
        version = placement.version  # first: rows that move from here on are moved again under the next version
        slot, found, pools = lists.slot, lists.found, len(self._space.pools)
        cold, counts, popular_B = lists.cold_N1, lists.place_counts, lists.popular_B
        places = BatchPlaces(
            lists.source_N[: lists.rows], cold.device(slot)[: lists.rows + 1], popular_B.device(slot), counts.device(slot)
        )
        rows = found.distinct_N[: lists.rows], found.inverse_N, lists.offsets, len(self._space.features)
        work_on = partial(self._streams.kernels.find_places, self._slot_of_row, *rows, lists.pool_ends.tolist(), places)
        here = self._streams.launch_aside(work_on, after)
        self._streams.host_waits(slot.download_aside(counts.start, popular_B.stop))
        known = counts.pinned(slot).copy()
        cold_rows = self._bring(slot, cold, int(known[pools - 1]))
        ends = [0, *known[:pools].tolist()]
        of_pools = [cold_rows[first:end] for first, end in zip(ends[:-1], ends[1:], strict=True)]
        work.placed(Places(version, here, of_pools, popular_B.pinned(slot).copy(), known[pools:]))

    def _bring(self, slot: Slot, cold: PackedArray, rows: int) -> NDArray[np.int64]:
        if not rows:
            return np.empty(0, dtype=np.int64)
        self._streams.host_waits(slot.download_aside(cold.start, cold.start + rows * cold.dtype.itemsize))
        return cold.pinned(slot)[:rows].copy()

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
            parcel = send(self._moved, [some, slot_of_row[some]])
            index, slots = parcel.arrays
            self._end(parcel.slot.release, partial(self._slot_of_row.scatter_, 0, index, slots), parcel.here)

    def move_all(self, slot_of_row: NDArray[np.int32]) -> None:
        """Take over the slots of all rows."""
        for start in range(0, len(slot_of_row), MOVED_ROWS):
            part = slot_of_row[start : start + MOVED_ROWS]
            parcel = send(self._moved, [part])
            target = self._slot_of_row[start : start + len(part)]
            self._end(parcel.slot.release, partial(target.copy_, parcel.arrays[0]), parcel.here)

    def _end(self, release: Callable[[Event], None], work: Callable[[], Tensor], here: Event) -> None:
        release(self._streams.launch_aside(work, here))


def _nothing() -> None:
    """Do nothing, for the event."""
