"""The store of a run of several processes with a device each: vectors and gradients travel from device to device.

This rank's rows are a `StagedStore`: what is requested of it is a batch of its own rows, which is staged ahead, gathered and
updated like any batch. Sizes of all messages are known to the hosts ahead of the step, so these only queue.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.records import Fetched, MicroBatch, RowUpdate
from adaptive_rec.embedding.shared.device_lines import DeviceLines
from adaptive_rec.embedding.shared.exchanging_store import ExchangingStore
from adaptive_rec.embedding.shared.requests import Requests
from adaptive_rec.embedding.staged.ring import StagingRing
from adaptive_rec.embedding.staged.staged_store import StagedStore
from adaptive_rec.embedding.staged.streams import Streams
from adaptive_rec.errors import MemoryPlanError, first_line
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.group import Group


class SharedDeviceStore(ExchangingStore, StagedStore):
    """This rank's rows in host and device memory."""

    def __init__(
        self, group: Group, space: RowSpace, rule: RowRule, seed: int, dtype: torch.dtype, streams: Streams,
        *arguments: Any, **named: Any,
    ) -> None:  # fmt: skip
        self.link = streams.link(group)
        self._lines = DeviceLines(space, streams, dtype)
        super().__init__(group, space, rule, seed, dtype, streams, *arguments, **named)

    @property
    def rings(self) -> list[StagingRing]:
        return [*super().rings, *self._lines.rings]

    def stage(self, work: ClassifiedBatch) -> None:
        super().stage(work)
        requests: Requests = work.staged
        try:
            StagedStore.stage(self, requests.owned)
            self.traffic.add_bytes(to_device=self._lines.stage(work, aside=False))
        except torch.OutOfMemoryError as error:
            rule = "the device's memory must hold the batches ahead; lower knobs.prefetch_depth or hot_budget_bytes"
            raise MemoryPlanError(f"{rule}: {first_line(error)}") from error

    def take(self, work: ClassifiedBatch) -> None:
        requests: Requests = work.staged
        StagedStore.take(self, requests.owned)
        super().take(work)

    def _ready(self, work: ClassifiedBatch) -> None:
        requests: Requests = work.staged
        if requests.on_device is None:  # a batch that is not trained
            self._lines.stage(work, aside=True)
        staged = self._staged(requests.owned)
        self.streams.compute_waits(staged.indices_here)
        self._rows_ready(staged)
        self.streams.compute_waits(requests.on_device.parcel.here)

    def _exchange_vectors(self, requests: Requests, pool: int, rounded: bool) -> Tensor:
        way, on_device = requests.pools[pool].by_line, requests.on_device.pools[pool]
        vectors = torch.empty(
            (len(way.asked), 1, self.space.pools[pool].dim), dtype=self.dtype, device=self.streams.device
        )
        self._step.pool_bags(self._staged(requests.owned), self.device, pool, on_device.asked, vectors)
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
        self.streams.launch(lambda: halves.copy_(vectors))
        come = self.link.exchange(kind, halves, sent_W, received_W)
        found = torch.empty_like(come, dtype=vectors.dtype)
        self.streams.launch(lambda: found.copy_(come))
        return found

    def gather(
        self, work: ClassifiedBatch, samples_S: NDArray[np.int64], scale_S: NDArray[np.float64], micro: MicroBatch
    ) -> None:
        self.traffic.add_bytes(to_device=self._lines.gather(work.staged, samples_S, scale_S, micro))

    def apply(self, work: ClassifiedBatch, update: RowUpdate) -> None:
        """Send the lines' gradients to their owners, and update this rank's rows by those that come."""
        requests: Requests = work.staged
        agreed = self._agree(work, update)
        summed, gradients = self._lines.sum(requests, update, agreed.sent), []
        for of_pool, sent in zip(summed, agreed.sent, strict=True):
            found = self._exchange("gradients", of_pool, sent.sent_W, sent.received_W, self._rounded)
            gradients.append(found[:, None])
        self._lines.release(requests)
        own = RowUpdate(gradients, agreed.position_M, agreed.frozen_U, update.lr, update.step, measure=update.measure)
        super().apply(requests.owned, own)

    def release(self, work: ClassifiedBatch) -> None:
        requests: Requests = work.staged
        self._lines.release(requests)
        super().release(requests.owned)

    def has_arrived(self, fetched: Fetched) -> bool:
        return self.group.all_true(fetched.is_here())
