"""Batches that are classified on the device: their lists are there, in a slot, and the host knows only counts and cold rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import Batch, check_shapes, is_one_each
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.staged.ring import Slot, StagingRing
from adaptive_rec.embedding.staged.streams import Event, Streams
from adaptive_rec.kernels import classify as kernels
from adaptive_rec.kernels.batch_lists import BatchLists
from adaptive_rec.placement import RowSpace

ON_DEVICE = ("distinct_U", "segments_U1", "inverse_N", "segment_bag_N", "source_U")
"""The lists of a `ClassifiedBatch` that are on the device."""


USES_BEFORE_RECORDING = 2
"""Batches of a room before its work is recorded: where no two batches have the same number of lookups, none should be."""

Fetch: TypeAlias = "Callable[[ListsInSlot, Sequence[str]], FetchedLists]"
"""Starts to copy some lists of a batch down."""


@dataclass(eq=False)
class RoomForBatch:
    """What is made once for a slot and batches of one size: arrays in the slot, and the work that fills them."""

    inputs: tuple[NDArray[Any], ...]
    """In pinned memory: offsets, dense features, labels and ids."""
    dense_start: int
    """Where what goes up begins without offsets."""
    sent_stop: int
    """Where it ends."""
    dense_BX: Tensor
    labels_B: Tensor
    offsets: Tensor
    source_N: Tensor
    """Room for the distinct rows' sources."""
    found: BatchLists
    down_start: int
    """Where begins what comes down: the next three arrays, which lie behind each other in pinned memory."""
    counts: NDArray[np.int64]
    """Those of `found`."""
    place_counts: NDArray[np.int64]
    popular_B: NDArray[np.bool_]
    cold_start: int
    """Where the numbers of the cold rows begin, behind these."""
    cold_N1: NDArray[np.int64]
    find_places: Callable[[], object]
    """Finds where a batch's rows are."""
    find_all: Callable[[], object]
    """Finds its lists first."""
    uses: int = 0

    def packed(self, with_offsets: bool) -> tuple[NDArray[Any], ...]:
        """Return the arrays that a batch fills."""
        return self.inputs if with_offsets else (self.inputs[0][:0], *self.inputs[1:])

    def sent_from(self, with_offsets: bool) -> int:
        """Return where what goes up begins."""
        return 0 if with_offsets else self.dense_start

    def use(self) -> bool:
        """Count a batch. Returns whether the work is to be recorded now: after `USES_BEFORE_RECORDING` batches."""
        self.uses += 1
        return self.uses == USES_BEFORE_RECORDING

    def record(self, record: Callable[[Callable[[], object]], Callable[[], object]]) -> None:
        """Have the work that finds all recorded."""
        self.find_all = record(self.find_all)


@dataclass(eq=False)
class ListsInSlot:
    """The lists of a batch on the device, in a slot that they hold. They do not depend on the placement."""

    slot: Slot
    room: RoomForBatch
    sent_bytes: int
    pool_ends: NDArray[np.int64] = field(init=False)
    """Where each pool's distinct rows end, once this has come down."""
    piece_ends: NDArray[np.int64] = field(init=False)
    """End of each pool's pieces."""

    def came_down(self, pool_ends: NDArray[np.int64], piece_ends: NDArray[np.int64]) -> None:
        self.pool_ends, self.piece_ends = pool_ends, piece_ends

    @property
    def rows(self) -> int:
        return int(self.pool_ends[-1])

    def named(self, name: str) -> Tensor:
        """Return the list that a `ClassifiedBatch` has under this name."""
        rows, found = self.rows, self.room.found
        some = {
            "distinct_U": found.distinct_N[:rows],
            "segments_U1": found.segments_N1[: rows + 1],
            "inverse_N": found.inverse_N,
            "segment_bag_N": found.segment_bag_N,
            "source_U": self.room.source_N[:rows],
        }
        return some[name]


@dataclass(frozen=True)
class Places:
    """Where a batch's rows were under one version of the placement, as far as the host knows it."""

    version: int
    here: Event
    """Lists and sources are there."""
    cold_C: NDArray[np.int64]
    """The cold rows, by their numbers in the joint row space, in the order of the distinct rows."""
    ends_P: NDArray[np.int64]
    """Where those of each pool end."""
    popular_B: NDArray[np.bool_]
    hot_lookups_F: NDArray[np.int64]


class FetchedLists:
    """Lists of a batch on their way to the host. Any thread may read them, one at a time."""

    def __init__(self, streams: Streams, ring: StagingRing, lists: dict[str, Tensor]) -> None:
        self._streams = streams
        self._kept = lists
        self._slot = ring.take(0, sum(each.nbytes for each in lists.values()))
        self.here = self._slot.bring_aside(list(lists.values()))
        self._arrays: dict[str, NDArray[np.int64]] | None = None

    def array(self, name: str) -> NDArray[np.int64]:
        """Wait for a list and return it."""
        if self._arrays is None:
            self._streams.host_waits(self.here)
            self._slot.came_down()
            self._arrays, start = {}, 0
            for each, tensor in self._kept.items():
                stop = start + tensor.nbytes
                found = self._slot.bytes_pinned[start:stop].view(str(tensor.dtype).removeprefix("torch."))
                self._arrays[each], start = found.astype(np.int64), stop
            self._slot.release(None)
            self._kept = {}
        return self._arrays[name]


class LookupsOnDevice:
    """The lookups of a batch that the tracker counts; its thread fetches them. The lists stay until then."""

    def __init__(self, lists: ListsInSlot, fetch: Fetch) -> None:
        self._lists, self._fetch = lists, fetch
        self._fetched: FetchedLists | None = None
        lists.slot.hold()

    def _array(self, name: str) -> NDArray[np.int64]:
        if self._fetched is None:
            self._fetched = self._fetch(self._lists, ("distinct_U", "segments_U1", "source_U"))
            self._lists.slot.release(None)  # the copies hold it
        return self._fetched.array(name)

    @property
    def distinct_U(self) -> NDArray[np.int64]:
        return self._array("distinct_U")

    @property
    def segments_U1(self) -> NDArray[np.int64]:
        return self._array("segments_U1")

    @property
    def source_U(self) -> NDArray[np.int64]:
        return self._array("source_U")


class ClassifiedOnDevice(ClassifiedBatch):
    """A batch that the device classifies (`classifier.Classifier`): `place` sets what the host knows of it.

    Where the host reads a list all the same, it is fetched, and kept. A cold row's source is then ``~c``, c its place among the
    cold rows of its pool, or in the host tier where rows stay there.
    """

    def __init__(self, batch: Batch, space: RowSpace) -> None:
        self.batch = batch
        self.space = space
        self.one_hot = is_one_each(batch.offsets) or kernels.is_one_hot(batch.offsets, batch.lookups)
        rising = self.one_hot or kernels.rises(batch.offsets, batch.lookups)
        check_shapes(batch, len(space.features), rising)
        self.placement_version = -1
        self.staged: Any = None
        self.lists: ListsInSlot | None = None
        self.places: Places | None = None
        self._fetch: Fetch

    def found(self, lists: ListsInSlot, lookups_F: NDArray[np.int64], fetch: Fetch) -> None:
        """Set the lists."""
        self.lists, self.lookups_F, self._fetch = lists, lookups_F, fetch
        self.pool_ends = lists.pool_ends

    def placed(self, places: Places) -> None:
        self.places, self.placement_version = places, places.version
        self.popular_B, self.hot_lookups_F = places.popular_B, places.hot_lookups_F
        self.__dict__.pop("source_U", None)

    def lookups_later(self) -> LookupsOnDevice:
        """Return the lookups for the tracker, whose thread waits for them."""
        assert self.lists is not None, "lists stay until the next batch is taken"
        return LookupsOnDevice(self.lists, self._fetch)

    def drop_lists(self, event: Event | None) -> None:
        """Give the slot back. After `event` its memory is no longer used."""
        lists, self.lists = self.lists, None
        self.places, self.placement_version = None, -1
        if lists is not None:
            lists.slot.release(event)

    def __getattr__(self, name: str) -> Any:
        """Fetch a list that the host does not have yet. Python calls this for names that are not set."""
        lists: ListsInSlot | None = self.__dict__.get("lists")
        if name not in ON_DEVICE or lists is None:
            raise AttributeError(name)
        narrow = name in ("inverse_N", "segment_bag_N")
        array = self._fetch(lists, [name]).array(name).astype(np.int32 if narrow else np.int64, copy=False)
        self.__dict__[name] = array
        return array


class TrainedLists:
    """The lists of the last batch that the device classified and trained. They stay until the next one is taken, as the tracker
    may ask for them."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._last: tuple[ClassifiedOnDevice, Event] | None = None

    def keep(self, work: ClassifiedBatch) -> None:
        """Keep the lists of a batch that ends, if it has any on the device, and forget those before."""
        if isinstance(work, ClassifiedOnDevice):
            self.forget()
            self._last = work, self._streams.compute_event()

    def forget(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            work, event = last
            work.drop_lists(event)
