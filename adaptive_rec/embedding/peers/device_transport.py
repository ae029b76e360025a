"""The transport of several processes with a device each: vectors and gradients travel from device to device.

Sizes of all messages are known to the hosts ahead of the step, so these only queue.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.peers.device_lines import DeviceLines
from adaptive_rec.embedding.peers.requests import Requests
from adaptive_rec.embedding.peers.transport import Agreement, Transport
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.embedding.staged.link import Link
from adaptive_rec.embedding.staged.path import StagedPath
from adaptive_rec.errors import MemoryPlanError, first_line


class DeviceTransport(Transport):
    """Vectors that the device pools and sums."""

    is_late = True

    def __init__(self, index: RowIndex, path: StagedPath, lines: DeviceLines, link: Link, dtype: torch.dtype) -> None:
        """`index`, `path`: those of this rank's rows."""
        self._index, self._path, self._lines, self._dtype = index, path, lines, dtype
        self.link = link

    def stage(self, work: ClassifiedBatch) -> None:
        requests: Requests = work.staged
        try:
            self._path.stage(requests.owned)
            self._index.traffic.add_bytes(to_device=self._lines.stage(work, aside=False))
        except torch.OutOfMemoryError as error:
            rule = "the device's memory must hold the batches ahead; lower knobs.prefetch_depth or hot_budget_bytes"
            raise MemoryPlanError(f"{rule}: {first_line(error)}") from error

    def make_ready(self, work: ClassifiedBatch) -> None:
        requests: Requests = work.staged
        if requests.on_device is None:  # a batch that is not trained
            self._lines.stage(work, aside=True)
        self._path.make_ready(requests.owned)
        self._path.streams.compute_waits(requests.on_device.parcel.here)

    def fetch(self, requests: Requests, pool: int, rounded: bool) -> Tensor:
        way, on_device = requests.pools[pool].by_line, requests.on_device.pools[pool]
        vectors = torch.empty(
            (len(way.asked), 1, self._index.space.pools[pool].dim), dtype=self._dtype, device=self._path.streams.device
        )
        self._path.pool_samples(requests.owned, pool, on_device.asked, vectors)
        found = self._exchange("rows", vectors[:, 0], way.received_W, way.sent_W, rounded)
        self._lines.scale(found, on_device.factor)
        return found

    def _exchange(
        self, kind: str, vectors: Tensor, sent_W: NDArray[np.int64], received_W: NDArray[np.int64], rounded: bool
    ) -> Tensor:
        """Queue an exchange of vectors as they are, or rounded to bfloat16 on their way."""
        if not rounded:
            return self.link.exchange(kind, vectors, sent_W, received_W)
        halves = torch.empty_like(vectors, dtype=torch.bfloat16)
        self._path.streams.launch(lambda: halves.copy_(vectors))
        come = self.link.exchange(kind, halves, sent_W, received_W)
        found = torch.empty_like(come, dtype=vectors.dtype)
        self._path.streams.launch(lambda: found.copy_(come))
        return found

    def gather(
        self, work: ClassifiedBatch, samples_S: NDArray[np.int64], scale_S: NDArray[np.float64], micro: MicroBatch
    ) -> None:
        self._index.traffic.add_bytes(to_device=self._lines.gather(work.staged, samples_S, scale_S, micro))

    def exchange_gradients(
        self, work: ClassifiedBatch, update: RowUpdate, agreed: Agreement, rounded: bool
    ) -> list[Tensor]:
        requests: Requests = work.staged
        summed, gradients = self._lines.sum(requests, update, agreed.sent), []
        for of_pool, sent in zip(summed, agreed.sent, strict=True):
            found = self._exchange("gradients", of_pool, sent.sent_W, sent.received_W, rounded)
            gradients.append(found[:, None])
        self._lines.release(requests)
        return gradients

    def release(self, requests: Requests) -> None:
        self._lines.release(requests)
