"""The store of a device run: hot rows stay on the device, a batch's distinct cold rows travel there and back once.

Cold rows are gathered ahead of the step, by a worker, into pinned memory and copied up on their own stream; their
gradients come down on another and a second worker applies them to the host tier. A row gathered ahead may be updated by
an earlier batch before its own batch runs, so every update leaves its rows in a log, and `_refresh` fetches the rows of a
staged batch that were written after its gather began. So prefetching to any depth reads what plain steps would read.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch, expand_ranges
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.store import NUMPY_DTYPE, EmbeddingStore, RowUpdate
from adaptive_rec.embedding.streams import Streams, Upload
from adaptive_rec.kernels import cpu
from adaptive_rec.placement import RowSpace

_PENDING_LIMIT = 32
"""Host updates that may be under way."""

_LOG_LIMIT = 128
"""Updates whose rows are remembered: more than the deepest prefetch and the updates under way."""


@dataclass
class _StagedPool:
    """One pool's part of a batch on the device. `rows_UD` holds all its distinct rows, hot and cold, once filled."""

    cold_U: NDArray[np.int64]
    """Places of the cold rows among the pool's distinct rows."""
    host_rows: NDArray[np.int64]
    """Their rows in the host tier."""
    pinned_CD: Tensor
    upload: Upload


@dataclass
class _Staged:
    placement_version: int
    seen_writes: int
    """Host updates that were complete when the gather began."""
    pools: list[_StagedPool]
    travelled_bytes: int = 0
    rows_UD: list[Tensor] | None = None
    """Filled with hot rows first, with cold ones once they have arrived."""
    cold_filled: bool = False


class StagedStore(EmbeddingStore):
    """See the module's text. Workers: `stage` runs on the caller's worker, host updates on this store's own."""

    def __init__(
        self,
        space: RowSpace,
        rule: RowRule,
        seed: int,
        dtype: torch.dtype,
        streams: Streams,
        budget_bytes: int,
        monitored: bool,
    ) -> None:
        super().__init__(space, rule, seed, dtype, streams.device, budget_bytes, monitored)
        self.streams = streams
        self._writer: ThreadPoolExecutor | None = None
        self._pending: deque[Future[None]] = deque()
        self._writes = 0
        self._log: deque[tuple[int, list[NDArray[np.int64]]]] = deque(maxlen=_LOG_LIMIT)
        """(number of the write, the rows it wrote in each pool)."""

    # Ahead of the step -----------------------------------------------------------------------------------------------

    def stage(self, work: ClassifiedBatch) -> None:
        seen = self._writes
        staged = _Staged(work.placement_version, seen, [])
        for pool in range(len(self.space.pools)):
            source_U = work.source_U[work.pool_range(pool)]
            cold_U = np.flatnonzero(source_U < 0)
            host_rows = ~source_U[cold_U]
            pinned_CD, upload = self._send(pool, host_rows)
            staged.pools.append(_StagedPool(cold_U, host_rows, pinned_CD, upload))
            staged.travelled_bytes += pinned_CD.nbytes
        work.staged = staged

    def _send(self, pool: int, host_rows: NDArray[np.int64]) -> tuple[Tensor, Upload]:
        """Gather rows of the host tier into pinned memory and queue their copy to the device."""
        pinned_CD = self.streams.pinned(len(host_rows), self.space.pools[pool].dim, dtype=self.dtype)
        # mode="clip" writes straight into `out`; the rows are known to be in range.
        np.take(self.host.weights[pool], host_rows, axis=0, out=pinned_CD.numpy(), mode="clip")
        return pinned_CD, self.streams.upload(pinned_CD)

    # The step --------------------------------------------------------------------------------------------------------

    def gather(self, work: ClassifiedBatch, samples_S: NDArray[np.int64], popular: bool) -> list[Tensor]:
        staged = self._current(work)
        if not popular and not staged.cold_filled:
            self._refresh(staged)
            self._fill_cold(staged)
        assert staged.rows_UD is not None
        features = len(self.space.features)
        pooled = []
        for pool, spec in enumerate(self.space.pools):
            bags = (samples_S[:, None] * features + spec.features[None, :]).reshape(-1)
            starts = work.batch.offsets[bags]
            lengths = work.batch.offsets[bags + 1] - starts
            lookups = expand_ranges(starts, lengths)
            index = torch.from_numpy(work.inverse_N[lookups] - work.pool_range(pool).start).to(self.streams.device)
            rows = staged.rows_UD[pool].index_select(0, index)
            out = _segment_sum(rows, lengths, self.streams.device)
            out_STD = out.view(len(samples_S), len(spec.features), spec.dim)
            if self.space.mean_F[spec.features].any():
                out_STD = out_STD / self._divisors(pool, lengths).view(len(samples_S), len(spec.features), 1)
            pooled.append(out_STD.detach().requires_grad_(torch.is_grad_enabled()))
        return pooled

    def _current(self, work: ClassifiedBatch) -> _Staged:
        """The batch's rows on the device: staged again if the placement changed since, hot part filled."""
        staged: _Staged | None = work.staged
        if staged is None or staged.placement_version != self.placement.version:
            self.traffic.host_to_device_bytes += staged.travelled_bytes if staged else 0
            self.settle()
            self.stage(work)
            staged = work.staged
            assert staged is not None
        if staged.rows_UD is None:
            self.traffic.host_to_device_bytes += staged.travelled_bytes
            staged.rows_UD = []
            for pool, spec in enumerate(self.space.pools):
                source_U = work.source_U[work.pool_range(pool)]
                rows_UD = torch.empty((len(source_U), spec.dim), dtype=self.dtype, device=self.streams.device)
                hot_U = np.flatnonzero(source_U >= 0)
                hot = self.device.weights[pool].index_select(0, self._index(source_U[hot_U]))
                staged.rows_UD.append(rows_UD.index_copy_(0, self._index(hot_U), hot))
        return staged

    def _refresh(self, staged: _Staged) -> None:
        """Fetch again the staged rows that were written since their gather began (write-back before read)."""
        self.settle()
        assert not self._log or self._log[0][0] <= staged.seen_writes + 1, "the log must reach back to the gather"
        since = [written for number, written in self._log if number > staged.seen_writes]
        for pool, part in enumerate(staged.pools if since else []):
            places = np.flatnonzero(np.isin(part.host_rows, np.concatenate([written[pool] for written in since])))
            if len(places):
                _, upload = self._send(pool, part.host_rows[places])
                fresh_CD = self.streams.arrived(upload)
                self.streams.arrived(part.upload).index_copy_(0, self._index(places), fresh_CD)
                self.traffic.host_to_device_bytes += fresh_CD.nbytes
        staged.seen_writes = self._writes

    def _fill_cold(self, staged: _Staged) -> None:
        assert staged.rows_UD is not None
        for rows_UD, part in zip(staged.rows_UD, staged.pools, strict=True):
            rows_UD.index_copy_(0, self._index(part.cold_U), self.streams.arrived(part.upload))
        staged.cold_filled = True

    def apply(self, work: ClassifiedBatch, update: RowUpdate) -> None:
        staged: _Staged = work.staged
        travelling = []
        for pool in range(len(self.space.pools)):
            span = work.pool_range(pool)
            source_U = work.source_U[span]
            grad_UD, touched_U = self._sum_segments(work, update, pool)
            active_U = touched_U if update.frozen_U is None else touched_U & ~update.frozen_U[span]
            with self.observed(pool, source_U, active_U, update.measure):
                self._apply_hot(pool, source_U, grad_UD, active_U, update)
            part = staged.pools[pool]
            active_C = active_U[part.cold_U]
            home_CD = self.streams.pinned(len(part.cold_U), grad_UD.shape[1], dtype=self.dtype)
            event = self.streams.download(home_CD, grad_UD.index_select(0, self._index(part.cold_U)))
            self.traffic.device_to_host_bytes += home_CD.nbytes
            travelling.append((part.host_rows, active_C, home_CD, event))
            self.count_updates(int(np.count_nonzero(active_U)), touched_U, source_U)
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="host-update")
        self._pending.append(self._writer.submit(self._write_back, travelling, update))
        if len(self._pending) > _PENDING_LIMIT:
            self._pending.popleft().result()
        work.staged = None

    def _sum_segments(self, work: ClassifiedBatch, update: RowUpdate, pool: int) -> tuple[Tensor, NDArray[np.bool_]]:
        """Gradient of every distinct row of a pool; segments keep their order, so the sum is deterministic."""
        span = work.pool_range(pool)
        bounds = work.segments_U1[span.start : span.stop + 1]
        bags = work.segment_bag_N[bounds[0] : bounds[-1]].astype(np.int64)
        sample, feature = np.divmod(bags, len(self.space.features))
        line = update.position_B[sample]
        trained = line >= 0
        lengths = np.add.reduceat(trained, bounds[:-1] - bounds[0], dtype=np.int64) if len(bags) else bounds[:0]
        gradients = update.gradients[pool]
        place = line * gradients.shape[1] + self.space.column_of_feature[feature]
        grads = gradients.reshape(-1, gradients.shape[2]).index_select(0, self._index(place[trained]))
        if self.space.mean_F[self.space.pools[pool].features].any():
            bag_lengths = work.batch.offsets[bags + 1] - work.batch.offsets[bags]
            divisor = np.where(self.space.mean_F[feature], bag_lengths, 1)[trained]
            grads = grads / torch.from_numpy(divisor).to(self.streams.device, self.dtype)[:, None]
        return _segment_sum(grads, lengths, self.streams.device), lengths > 0

    def _apply_hot(
        self, pool: int, source_U: NDArray[np.int64], grad_UD: Tensor, active_U: NDArray[np.bool_], update: RowUpdate
    ) -> None:
        chosen = np.flatnonzero(active_U & (source_U >= 0))
        slots = self._index(source_U[chosen])
        weights = self.device.weights[pool].index_select(0, slots)
        state = self.device.state[pool].index_select(0, slots)
        self.rule.apply(update.lr, update.step, weights, state, grad_UD.index_select(0, self._index(chosen)))
        self.device.weights[pool].index_copy_(0, slots, weights)
        self.device.state[pool].index_copy_(0, slots, state)

    def _write_back(
        self, travelling: list[tuple[NDArray[np.int64], NDArray[np.bool_], Tensor, object]], update: RowUpdate
    ) -> None:
        """Apply the gradients of cold rows to the host tier, once they have come down (on the writer's thread)."""
        written = []
        for pool, (rows, active, grad_CD, event) in enumerate(travelling):
            self.streams.host_waits(event)
            none = np.empty((0, grad_CD.shape[1]), dtype=NUMPY_DTYPE[self.dtype])
            no_state = np.empty((0, self.host.state[pool].shape[1]), dtype=none.dtype)
            cpu.apply_rows(
                self.rule.code, update.lr, self.rule.eps, self.rule.beta1, self.rule.beta2, update.step,
                ~rows, grad_CD.numpy(), active, none, no_state, self.host.weights[pool], self.host.state[pool],
            )  # fmt: skip
            written.append(rows[active])
        self._log.append((self._writes + 1, written))
        self._writes += 1

    def settle(self) -> None:
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        self.settle()
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None

    def _index(self, places: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(places, dtype=np.int64)).to(self.streams.device)

    def _divisors(self, pool: int, lengths: NDArray[np.int64]) -> Tensor:
        features = self.space.pools[pool].features
        mean = np.tile(self.space.mean_F[features], len(lengths) // len(features))
        return torch.from_numpy(np.where(mean, np.maximum(lengths, 1), 1)).to(self.streams.device, self.dtype)


def _segment_sum(rows: Tensor, lengths: NDArray[np.int64], device: torch.device) -> Tensor:
    """Sum consecutive rows, `lengths` of them at a time; an empty segment is zero."""
    if len(rows) == 0 or np.all(lengths == 1):
        return rows if len(rows) == len(lengths) else rows.new_zeros((len(lengths), rows.shape[1]))
    return torch.segment_reduce(
        rows, "sum", lengths=torch.from_numpy(lengths).to(device), axis=0, unsafe=True, initial=0
    )
