"""Bags on the device: the inputs of a batch that was sent there, and the micro-batches that are filled from it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.embedding.records import MicroBatch
from adaptive_rec.embedding.staged.packing import NUMPY_TYPES, Parcel, send
from adaptive_rec.embedding.staged.ring import StagingRing
from adaptive_rec.embedding.staged.streams import Streams
from adaptive_rec.placement import RowSpace

NOTES = 12
"""Slots for notes. A step sends up to three, so the host is at most about four steps ahead, even where no row travels."""

PIECE_LOOKUPS = 64
"""Gradients that one warp of the device adds up one after the other; a longer segment is cut into pieces."""


@dataclass(frozen=True)
class BatchOnDevice:
    """A batch's arrays on the device: its inputs, and what its bags read."""

    dense_BX: Tensor
    labels_B: Tensor
    offsets: Tensor
    inverse_N: Tensor
    source_U: Tensor
    """Where each thing is that bags read: an index of the first array of a pool, or the complement of one of the second."""
    mean_F: Tensor


@dataclass(frozen=True)
class _Kept:
    """Small arrays that stay on the device, and what they were made of."""

    given: list[NDArray[Any]]
    """Nobody changes them: the same arrays have the same numbers."""
    given_bytes: list[bytes]
    """To compare arrays would let another thread have the interpreter each time."""
    parcel: Parcel


class DeviceBags:
    """Queues work on the bags of a row space. These calls make views of slots at once: when the work runs, a slot may be another
    batch's."""

    def __init__(self, space: RowSpace, streams: Streams) -> None:
        self._space = space
        self._streams = streams
        self.notes = StagingRing(streams, urgent=True, at_least=NOTES)
        """Slots for the small arrays of a step."""
        self._kept: dict[tuple[str, int], _Kept] = {}
        self._column_F = torch.tensor(space.column_of_feature, dtype=torch.int32, device=streams.device)
        self._mean_F = torch.tensor(space.mean_F, device=streams.device)
        self._features = [torch.tensor(pool.features, dtype=torch.int32, device=streams.device) for pool in space.pools]

    def _send(self, arrays: list[NDArray[Any]]) -> Parcel:
        parcel = send(self.notes, arrays)
        self._streams.compute_waits(parcel.here)
        return parcel

    def _keep(
        self, kind: str, given: list[NDArray[Any]], make: Callable[[], list[NDArray[Any]]] | None = None
    ) -> tuple[list[Tensor], int]:
        """Return small arrays on the device, and the bytes sent. They stay there, and go up again only where they have changed
        since the last call of this kind. `make` makes them of what is given; None: they are given."""
        key = (kind, len(given[0]))
        kept = self._kept.get(key)
        if kept is not None and all(map(operator.is_, kept.given, given)):
            return kept.parcel.arrays, 0
        given_bytes = [array.tobytes() for array in given]
        if kept is not None and kept.given_bytes == given_bytes:
            return kept.parcel.arrays, 0
        parcel = self._send(given if make is None else make())
        self._kept[key] = _Kept(given, given_bytes, parcel)
        if kept is not None:
            kept.parcel.slot.release(self._streams.compute_event())
        return parcel.arrays, parcel.nbytes

    def _fill(
        self, batch: BatchOnDevice, rows: list[tuple[Tensor, Tensor]], samples_S: NDArray[np.int64],
        scale_S: NDArray[np.float64], micro: MicroBatch,
    ) -> int:  # fmt: skip
        """Fill a micro-batch; lines after the samples are padding, with zero vectors and scale 0. `rows`: the two arrays of each
        pool. Returns the bytes sent."""
        padded = len(micro.labels_S)

        def pad() -> list[NDArray[Any]]:
            # Padding takes the dense features of sample 0: finite numbers, whose loss does not count.
            padding = (0, padded - len(samples_S))
            scales = np.pad(scale_S, padding).astype(NUMPY_TYPES[micro.scale_S.dtype])
            return [np.pad(samples_S, padding, constant_values=-1).astype(np.int32), scales]

        (samples, scale), nbytes = self._keep(f"samples of {padded}", [samples_S, scale_S], pad)

        def fill() -> None:
            lines = (samples, batch.dense_BX, batch.labels_B, scale)
            self._streams.kernels.fill_lines(*lines, micro.dense_SX, micro.labels_S, micro.scale_S)
            for pool, of_pool in enumerate(rows):
                self._pool(pool, batch, of_pool, samples, micro.pooled[pool])

        self._streams.launch(fill)
        return nbytes

    def _pool(
        self, pool: int, batch: BatchOnDevice, rows: tuple[Tensor, Tensor], samples: Tensor, pooled_STD: Tensor
    ) -> None:
        """Pool the bags of some samples. Part of queued work."""
        reads = (batch.offsets, batch.inverse_N, batch.source_U, batch.mean_F)
        kernels, features = self._streams.kernels, len(self._space.features)
        kernels.gather_pooled(samples, self._features[pool], features, *reads, *rows, pooled_STD)
