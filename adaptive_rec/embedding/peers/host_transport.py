"""The transport of several processes on CPUs: vectors and gradients travel from host to host, as they
are, or rounded to bfloat16, which halves their bytes and is not exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.path.cpu import CpuPath
from adaptive_rec.embedding.peers.requests import ExchangePlan, Requests
from adaptive_rec.embedding.peers.transport import Agreement, Transport, answer
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.kernels import pooling, row_update
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.group import Group

_SUM = row_update.Hyper(lr=-1.0, eps=0.0, beta1=0.0, beta2=0.0, step=1)
"""SGD with this learning rate on rows of zeros makes each row the sum of its gradients."""


class HostTransport(Transport):
    """Vectors that kernels pool in host memory."""

    def __init__(self, group: Group, space: RowSpace, index: RowIndex, path: CpuPath, dtype: torch.dtype) -> None:
        """`space`: the row space of all ranks; `index`, `path`: those of this rank's rows."""
        self._group, self._space, self._own_space, self._path = group, space, index.space, path
        self._dtype: Any = torch.empty(0, dtype=dtype).numpy().dtype

    def stage(self, work: ClassifiedBatch) -> None:
        self._path.stage(work.staged.owned)

    def fetch(self, requests: Requests, pool: int, rounded: bool) -> NDArray[Any]:
        part = requests.pools[pool]
        vectors = packed(self._asked_vectors(requests.owned, pool, part.by_line), rounded)
        fetched = unpack_vectors(answer(self._group, part.by_line, vectors, len(part.lines.owner_L)), rounded)
        fetched[len(part.lines.rows) :] *= part.lines.scale_Q[:, None]
        return fetched

    def _asked_vectors(self, owned: ClassifiedBatch, pool: int, way: ExchangePlan) -> NDArray[Any]:
        """Return the vectors of a pool that are requested here."""
        asked = np.empty((len(way.asked), 1, self._own_space.pools[pool].dim), dtype=self._dtype)
        pooling.gather_pooled(
            way.asked, np.array([pool]), len(self._own_space.pools), owned.batch.offsets, owned.one_hot, owned.source_N,
            self._own_space.mean_F, *self._path.weights_of(owned, pool), asked, threads=self._path.threads,
        )  # fmt: skip
        return asked[:, 0]

    def gather(
        self, work: ClassifiedBatch, samples_S: NDArray[np.int64], scale_S: NDArray[np.float64], micro: MicroBatch
    ) -> None:
        requests: Requests = work.staged
        fetched = requests.fetched
        self._path.fill(work, samples_S, scale_S, micro, lambda pool: (fetched[pool], fetched[pool]), requests.lines.bags)

    def exchange_gradients(
        self, work: ClassifiedBatch, update: RowUpdate, agreed: Agreement, rounded: bool
    ) -> list[Tensor]:
        gradients = []
        for pool, sent in enumerate(agreed.sent):
            summed_LD = packed(self._sum(work, update, pool), rounded)
            received = self._group.exchange("gradients", summed_LD[sent.line], sent.sent_W, sent.received_W)
            gradients.append(torch.from_numpy(unpack_vectors(received, rounded)[:, None]))
        return gradients

    def _sum(self, work: ClassifiedBatch, update: RowUpdate, pool: int) -> NDArray[Any]:
        """Return the sum of the gradients of each line of a pool (L, D), over this rank's samples."""
        requests: Requests = work.staged
        lines, space = requests.pools[pool].lines, self._space
        count, dim = len(lines.owner_L), space.pools[pool].dim
        if not update.gradients:
            return np.zeros((count, dim), dtype=self._dtype)
        gradients = update.gradients[pool].numpy()
        summed, place_L = np.zeros((count, dim), dtype=gradients.dtype), np.arange(count)
        nothing, none_L = np.empty((0, 0), dtype=gradients.dtype), np.zeros(count, np.bool_)
        row_update.update_rows(
            row_update.SGD, _SUM, lines.segments, self._path.gradient_places(work, update, requests.lines.bags), gradients,
            row_update.PoolRows(none_L, place_L, ~place_L, none_L.copy()),
            row_update.TierArrays(nothing, nothing, summed, np.empty((count, 0), dtype=gradients.dtype)),
            threads=self._path.threads,
        )  # fmt: skip
        summed[len(lines.rows) :] *= lines.scale_Q[:, None]
        return summed


def packed(vectors: NDArray[Any], rounded: bool) -> NDArray[Any]:
    """Return vectors as they are sent. Rounding is to the nearest number."""
    if not rounded:
        return vectors
    patterns: NDArray[Any] = torch.from_numpy(np.ascontiguousarray(vectors)).bfloat16().view(torch.int16).numpy()
    return patterns


def unpack_vectors(sent: NDArray[Any], rounded: bool) -> NDArray[Any]:
    """Return vectors that were sent, in float32 where they were rounded."""
    if not rounded:
        return sent
    vectors: NDArray[Any] = torch.from_numpy(sent).view(torch.bfloat16).float().numpy()
    return vectors
