"""The lines of batches on a device: their numbers are sent ahead, their vectors are pooled there, and their gradients summed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.peers.lines import PoolLines, lines_read
from adaptive_rec.embedding.peers.requests import Requests, SentLines
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.embedding.staged.device_bags import PIECE_LOOKUPS, BatchOnDevice, DeviceBags
from adaptive_rec.embedding.staged.packing import Parcel, send
from adaptive_rec.embedding.staged.ring import StagingRing
from adaptive_rec.embedding.staged.streams import Streams
from adaptive_rec.kernels import row_update, staging
from adaptive_rec.placement import RowSpace

_SUM = (-1.0, 0.0, 0.0, 0.0, 1.0)
"""SGD with learning rate -1 on rows of zeros makes each row the sum of its gradients; see `apply_rows`."""


@dataclass(frozen=True)
class PoolOnDevice:
    """One pool's part of a batch on the device."""

    asked: Tensor
    """The samples of `Requests.owned` that are requested here, rank after rank."""
    factor: Tensor
    """Factor of each vector that comes, in their order; empty where all are 1."""
    bag_N: Tensor
    piece_U1: Tensor
    piece_P1: Tensor
    """The bags that read each line, in pieces."""


@dataclass(frozen=True)
class LinesOnDevice:
    """A batch's lines on the device."""

    parcel: Parcel
    batch: BatchOnDevice
    """Bags read vectors in the order in which they come, owner after owner."""
    pools: list[PoolOnDevice]


class DeviceLines(DeviceBags):
    """Queues work on lines."""

    def __init__(self, space: RowSpace, streams: Streams, dtype: torch.dtype) -> None:
        super().__init__(space, streams)
        self._dtype = dtype
        self._numbers: Any = torch.empty(0, dtype=dtype).numpy().dtype
        self.ring, self.aside = StagingRing(streams), StagingRing(streams)
        """Slots for batches ahead, and for batches that are not trained."""
        self._hyper_5 = torch.tensor(_SUM, dtype=torch.float64, device=streams.device)
        self._nothing = [self._empty(0, pool.dim) for pool in space.pools]

    @property
    def rings(self) -> list[StagingRing]:
        return [self.ring, self.aside, self.notes]

    def stage(self, work: ClassifiedBatch, aside: bool) -> int:
        """Send a batch's inputs and the numbers of its lines up. Returns their bytes."""
        requests: Requests = work.staged
        lines, dense_BX = requests.lines, work.batch.dense_BX.astype(self._numbers)
        arrived = [_places(each.by_line.place) for each in requests.pools]
        arrays: list[NDArray[Any]] = [
            dense_BX, work.batch.labels_B.astype(self._numbers), lines.bags.offsets, lines_read(work, lines),
            np.concatenate(arrived), lines.bags.mean_F,
        ]  # fmt: skip
        for pool, each in enumerate(requests.pools):
            factor_L = factors(each.lines, self._numbers)
            arrays += [each.by_line.asked, factor_L[each.by_line.place] if len(factor_L) else factor_L]
            arrays += _pieces(lines.pools[pool])
        parcel = send(self.aside if aside else self.ring, [_narrow(array) for array in arrays])
        batch, of_pools = parcel.arrays[:6], parcel.arrays[6:]
        pools = [PoolOnDevice(*of_pools[start : start + 5]) for start in range(0, len(of_pools), 5)]
        requests.put_on_device(LinesOnDevice(parcel, BatchOnDevice(*batch), pools))
        return parcel.nbytes

    def release(self, requests: Requests) -> None:
        """End the use of a batch's lines."""
        on_device: LinesOnDevice = requests.on_device
        requests.put_on_device(None)
        on_device.parcel.slot.release(self._streams.compute_event())

    def scale(self, vectors: Tensor, factor: Tensor) -> None:
        """Multiply each vector by its factor."""
        if len(factor):
            self._streams.launch(lambda: vectors.mul_(factor[:, None]))

    def gather(
        self, requests: Requests, samples_S: NDArray[np.int64], scale_S: NDArray[np.float64], micro: MicroBatch
    ) -> int:
        """Fill a micro-batch from the vectors that have come. Returns the bytes sent."""
        rows = list(zip(requests.fetched, self._nothing, strict=True))
        return self._fill(requests.on_device.batch, rows, samples_S, scale_S, micro)

    def sum(self, requests: Requests, update: RowUpdate, sent: list[SentLines]) -> list[Tensor]:
        """Return the sums of the gradients of each pool's lines that are sent, over this rank's samples, in the order in which
        they are sent."""
        counts = [len(each.owner_L) for each in requests.lines.pools]
        place_L, active_L = np.zeros(sum(counts), dtype=np.int32), np.zeros(sum(counts), dtype=np.bool_)
        notes, first, spans = [], 0, []
        for count, lines, of_pool in zip(counts, requests.lines.pools, sent, strict=True):
            place_L[first + of_pool.line] = np.arange(len(of_pool.line))
            active_L[first + of_pool.line] = True
            factor_L = factors(lines, self._numbers)
            notes.append(factor_L[of_pool.line] if len(factor_L) else factor_L)
            spans.append(slice(first, first + count))
            first += count
        parcel = self._send([update.position_B.astype(np.int32), place_L, active_L, *notes])
        position_B, place, active, *factor = parcel.arrays
        summed = []
        for pool, span in enumerate(spans):
            summed.append(self._empty(len(sent[pool].line), self._space.pools[pool].dim))
            self._streams.launch(summed[pool].zero_)
            if update.gradients:
                where = [place[span], active[span]]
                self._sum_pool(requests.on_device, pool, update.gradients[pool], position_B, where, summed[pool])
                self.scale(summed[pool], factor[pool])
        parcel.slot.release(self._streams.compute_event())
        return summed

    def _sum_pool(
        self, lines: LinesOnDevice, pool: int, gradients: Tensor, position_B: Tensor, where: list[Tensor], summed: Tensor
    ) -> None:
        parts, batch, kernels = lines.pools[pool], lines.batch, self._streams.kernels
        partial_PD, none = self._empty(len(parts.piece_P1) - 1, summed.shape[1]), self._nothing[pool]
        bags = (len(self._space.features), batch.offsets, self._column_F, batch.mean_F, position_B)
        tiers = (summed, summed[:, :0], none, none[:, :0])

        def add_up() -> None:
            kernels.sum_pieces(parts.piece_P1, parts.bag_N, *bags, gradients, partial_PD)
            kernels.apply_rows(row_update.SGD, self._hyper_5, parts.piece_U1, partial_PD, *where, *tiers, None, None)

        self._streams.launch(add_up)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._streams.device)


def factors(lines: PoolLines, dtype: Any) -> NDArray[Any]:
    """Return the factor of each line (L) in its bag; nothing where all are 1, as those of rows are."""
    parts = len(lines.scale_Q)
    return np.concatenate([np.ones(len(lines.rows)), lines.scale_Q]).astype(dtype) if parts else np.empty(0, dtype)


def _places(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each line stands in an order of all lines."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place


def _pieces(lines: PoolLines) -> list[NDArray[np.int32]]:
    """Return the bags that read each line of a pool, and their pieces; see `cut_pieces`."""
    first, segments_U1, segment_bag_N = lines.segments
    segments_L1 = segments_U1[first : first + len(lines.owner_L) + 1]
    bag_N, ends = segment_bag_N[segments_L1[0] : segments_L1[-1]], segments_L1 - segments_L1[0]
    piece_U1 = np.empty(len(ends), dtype=np.int32)
    piece_P1 = np.empty(staging.count_pieces(ends, PIECE_LOOKUPS) + 1, dtype=np.int32)
    staging.cut_pieces(ends, PIECE_LOOKUPS, piece_U1, piece_P1)
    return [bag_N, piece_U1, piece_P1]


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers in 32 bits, as kernels take them, and all else as it is."""
    return array.astype(np.int32) if array.dtype.kind == "i" else array
