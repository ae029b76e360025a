"""The store of a run of several processes on CPUs: vectors and gradients travel from host to host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.direct import DirectStore
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.embedding.shared.exchanging_store import ExchangingStore
from adaptive_rec.embedding.shared.requests import ExchangePlan, Requests
from adaptive_rec.embedding.shared.transport import packed, unpack_vectors
from adaptive_rec.kernels import pooling, row_update

_SUM = row_update.Hyper(lr=-1.0, eps=0.0, beta1=0.0, beta2=0.0, step=1)
"""SGD with this learning rate on rows of zeros makes each row the sum of its gradients."""


class SharedStore(ExchangingStore, DirectStore):
    """This rank's rows in host memory."""

    def _ready(self, work: ClassifiedBatch) -> None:
        self.classify(work.staged.owned)

    def _exchange_vectors(self, requests: Requests, pool: int, rounded: bool) -> NDArray[Any]:
        part = requests.pools[pool]
        vectors = packed(self._asked_vectors(requests.owned, pool, part.by_line), rounded)
        fetched = unpack_vectors(self._answer(part.by_line, vectors, len(part.lines.owner_L)), rounded)
        fetched[len(part.lines.rows) :] *= part.lines.scale_Q[:, None]
        return fetched

    def _asked_vectors(self, owned: ClassifiedBatch, pool: int, way: ExchangePlan) -> NDArray[Any]:
        """Return the vectors of a pool that are requested here."""
        asked = np.empty((len(way.asked), 1, self.space.pools[pool].dim), dtype=self.host.weights[pool].dtype)
        pooling.gather_pooled(
            way.asked, np.array([pool]), len(self.space.pools), owned.batch.offsets, owned.one_hot, owned.source_N,
            self.space.mean_F, *self.weights_of(owned, pool), asked, threads=self.threads,
        )  # fmt: skip
        return asked[:, 0]

    def gather(
        self, work: ClassifiedBatch, samples_S: NDArray[np.int64], scale_S: NDArray[np.float64], micro: MicroBatch
    ) -> None:
        requests: Requests = work.staged
        fetched = requests.fetched
        self.fill(work, samples_S, scale_S, micro, lambda pool: (fetched[pool], fetched[pool]), requests.lines.bags)

    def apply(self, work: ClassifiedBatch, update: RowUpdate) -> None:
        """Send the lines' gradients to their owners, and update this rank's rows by those that came."""
        requests: Requests = work.staged
        agreed, gradients = self._agree(work, update), []
        for pool, sent in enumerate(agreed.sent):
            summed_LD = packed(self._sum(work, update, pool), self._rounded)
            received = self.group.exchange("gradients", summed_LD[sent.line], sent.sent_W, sent.received_W)
            gradients.append(torch.from_numpy(unpack_vectors(received, self._rounded)[:, None]))
        own = RowUpdate(gradients, agreed.position_M, agreed.frozen_U, update.lr, update.step, measure=update.measure)
        super().apply(requests.owned, own)

    def _sum(self, work: ClassifiedBatch, update: RowUpdate, pool: int) -> NDArray[Any]:
        """Return the sum of the gradients of each line of a pool (L, D), over this rank's samples."""
        requests: Requests = work.staged
        lines, space = requests.pools[pool].lines, self.batch_space
        count, dim = len(lines.owner_L), space.pools[pool].dim
        if not update.gradients:
            return np.zeros((count, dim), dtype=self.host.dtype)
        gradients = update.gradients[pool].numpy()
        summed, place_L = np.zeros((count, dim), dtype=gradients.dtype), np.arange(count)
        nothing, none_L = np.empty((0, 0), dtype=gradients.dtype), np.zeros(count, np.bool_)
        row_update.update_rows(
            row_update.SGD, _SUM, lines.segments, self.gradient_places(work, update, requests.lines.bags), gradients,
            row_update.PoolRows(none_L, place_L, ~place_L, none_L.copy()),
            row_update.TierArrays(nothing, nothing, summed, np.empty((count, 0), dtype=gradients.dtype)),
            threads=self.threads,
        )  # fmt: skip
        summed[len(lines.rows) :] *= lines.scale_Q[:, None]
        return summed
