"""The store of a device run: hot rows stay on the device, a batch's distinct cold rows travel there and back once.

A worker stages batches ahead: it packs each into a slot of pinned memory and sends it up, first the integers that say what
is where, then the cold rows with their optimizer state. The step updates hot and cold rows alike on the device; then the
cold ones go down again and a second worker puts them in their places. Rows that an earlier batch on its way still holds
are forwarded on the device (see `in_flight.py`), so the training thread waits for nobody.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.homing import Homing
from adaptive_rec.embedding.in_flight import Flight, InFlight, Staged
from adaptive_rec.embedding.moves import SlotMoves
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.packing import Parcel, send
from adaptive_rec.embedding.ring import StagingRing
from adaptive_rec.embedding.stager import RowCopier, Stager
from adaptive_rec.embedding.store import EmbeddingStore, Fetched, RowUpdate
from adaptive_rec.embedding.streams import Streams
from adaptive_rec.kernels import staging
from adaptive_rec.micro_batch import MicroBatch
from adaptive_rec.placement import RowSpace
from adaptive_rec.tracking.delta import Metric


class StagedStore(EmbeddingStore):
    """See the module's text. `stage` runs on the caller's worker, rows are put in their places by this store's own."""

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
        self.streams = streams
        super().__init__(space, rule, seed, dtype, streams.device, budget_bytes, monitored)
        self.ring = StagingRing(streams)
        self.notes = StagingRing(streams, urgent=True)
        """Slots for the small things that a step tells the device."""
        self._copier = RowCopier(max(1, min(8, len(os.sched_getaffinity(0)) // 4)))
        self._stager = Stager(space, self.host, dtype, self.ring, self._copier)
        self._aside = Stager(space, self.host, dtype, StagingRing(streams), self._copier)
        """For batches that are not trained, which may be larger: their slots are their own."""
        self._moves = SlotMoves(self, streams, self._copier)
        self._in_flight = InFlight()
        self._homing = Homing(streams, self.host, self._copier, self._in_flight)
        self._column_F = torch.tensor(space.column_of_feature, dtype=torch.int32, device=self.torch_device)
        self._mean_F = torch.tensor(space.mean_F, device=self.torch_device)
        self._features = [
            torch.tensor(pool.features, dtype=torch.int32, device=self.torch_device) for pool in space.pools
        ]

    @property
    def peak_bytes(self) -> int:
        return self.streams.peak_bytes()

    @property
    def staging_bytes(self) -> int:
        return sum(ring.device_bytes for ring in (self.ring, self.notes, self._aside.ring, self._moves.ring))

    # Ahead of the step -----------------------------------------------------------------------------------------------

    def stage(self, work: ClassifiedBatch) -> None:
        work.staged = flight = Flight(work)
        self._in_flight.add(flight)
        with suppress(torch.OutOfMemoryError):  # the step tries again, where something can be done about it
            for other in self._in_flight.before(flight):
                with other.lock:
                    if not other.taken and not other.is_staged(self.placement.version):
                        self._stage(other)  # rows have moved since
            with flight.lock:
                self._stage(flight)

    def _stage(self, flight: Flight) -> None:
        """Stage a flight whose lock is held. It stays unstaged where the placement changes meanwhile."""
        self._in_flight.drop(flight, self.streams.compute_event() if flight.taken else None)
        self.classify(flight.work)
        earlier = self._in_flight.hold_before(flight)
        if earlier is None:
            return
        try:
            flight.staged = self._stager.stage(flight.work, earlier)
        finally:
            for _, staged in earlier:
                staged.slot.release(None)

    def drop_ahead(self) -> None:
        self._in_flight.drop_ahead()

    def free_memory(self) -> None:
        for flight in self._in_flight.ahead():
            with flight.lock:
                self._in_flight.drop(flight, None)
        self.settle()
        self.ring.close()

    # The step --------------------------------------------------------------------------------------------------------

    def take(self, work: ClassifiedBatch) -> None:
        if work.staged is None:
            work.staged = Flight(work)
            self._in_flight.add(work.staged)
        flight: Flight = work.staged
        with flight.lock:
            flight.taken = True
            with suppress(torch.OutOfMemoryError):  # comes again when the step wants it
                if not flight.is_staged(self.placement.version):
                    self._stage(flight)

    def _staged(self, work: ClassifiedBatch) -> Staged:
        """What the device has of a batch; one that is no step's, an evaluation's, is staged here and now."""
        if work.staged is None:
            self.settle()
            self.classify(work)
            work.staged = Flight(work, taken=True)
            work.staged.staged = self._aside.stage(work, [])
        flight: Flight = work.staged
        if flight.staged is None:
            self._stage(flight)
        staged = flight.staged
        assert staged is not None, "the placement does not change while a step begins"
        if not staged.counted:
            staged.counted = True
            self.traffic.host_to_device_bytes += staged.stop
        return staged

    def gather(
        self, work: ClassifiedBatch, samples_S: NDArray[np.int64], scale_S: NDArray[np.float64], micro: MicroBatch
    ) -> None:
        staged = self._staged(work)
        self.streams.compute_waits(staged.indices_here)
        if not work.popular_B[samples_S].all():
            self._rows_ready(staged)
        padding = len(micro.labels_S) - len(samples_S)
        told = send(
            self.notes,
            [
                np.pad(samples_S, (0, padding), constant_values=-1).astype(np.int32),
                np.pad(samples_S, (0, padding)).astype(np.int32),
                np.pad(scale_S, (0, padding)).astype(self.host.dtype),
            ],
        )
        samples, lines, scale = self._receive(told)
        kernels, features = self.streams.kernels, len(self.space.features)
        dense_BX, labels_B = staged.on_device(staged.dense_BX), staged.on_device(staged.labels_B)
        where = [staged.on_device(part) for part in (staged.offsets, staged.inverse_N, staged.source_U)]
        pools = [
            (of_pool, hot_HD, staged.on_device(parts.weights_CD), pooled_STD)
            for of_pool, hot_HD, parts, pooled_STD in zip(
                self._features, self.device.weights, staged.pools, micro.pooled, strict=True
            )
        ]

        def fill() -> None:
            torch.index_select(dense_BX, 0, lines, out=micro.dense_SX)
            torch.index_select(labels_B, 0, lines, out=micro.labels_S)
            micro.scale_S.copy_(scale)
            for of_pool, *tiers, pooled_STD in pools:
                kernels.gather_pooled(samples, of_pool, features, *where, self._mean_F, *tiers, pooled_STD)

        self.streams.launch(fill)
        told.slot.release(self.streams.compute_event())

    def _receive(self, told: Parcel) -> list[Tensor]:
        """What the step tells the device, for computation from now on."""
        self.traffic.host_to_device_bytes += told.nbytes
        self.streams.compute_waits(told.here)
        return told.arrays

    def _rows_ready(self, staged: Staged) -> None:
        """Have the computation wait for a batch's cold rows, and take over those that earlier batches hold."""
        if staged.rows_here is None or staged.rows_ready:
            return
        staged.rows_ready = True
        self.streams.compute_waits(staged.rows_here)

        copies = []
        for one in staged.forwards:
            mine, theirs = staged.pools[one.pool], one.origin.pools[one.pool]
            from_C, to_C = staged.on_device(one.from_C), staged.on_device(one.to_C)
            for source, target in ((theirs.weights_CD, mine.weights_CD), (theirs.state_CK, mine.state_CK)):
                copies.append((one.origin.on_device(source), from_C, staged.on_device(target), to_C))

        def forward() -> None:
            for copy in copies:
                self.streams.kernels.copy_rows(*copy)

        if copies:
            self.streams.launch(forward)
            staged.release_forwards(self.streams.compute_event())

    def apply(self, work: ClassifiedBatch, update: RowUpdate) -> None:
        staged = self._staged(work)
        self._rows_ready(staged)
        touched_U = self._touched(work, update)
        active_U = touched_U if update.frozen_U is None else touched_U & ~update.frozen_U
        rule = self.rule
        correction = math.sqrt(1 - rule.beta2**update.step) / (1 - rule.beta1**update.step)
        hyper = np.array([update.lr, rule.eps, rule.beta1, rule.beta2, correction], dtype=np.float64)
        told = send(self.notes, [update.position_B.astype(np.int32), active_U, hyper])
        position_B, active, hyper_5 = self._receive(told)
        for pool in range(len(self.space.pools)):
            self._launch_update(work, staged, update, pool, position_B, active, hyper_5)
            span = work.pool_range(pool)
            self.count_updates(int(np.count_nonzero(active_U[span])), touched_U[span], work.source_U[span])
        told.slot.release(self.streams.compute_event())
        self._fly_home(work, staged, changed=True)

    def _touched(self, work: ClassifiedBatch, update: RowUpdate) -> NDArray[np.bool_]:
        touched_U = np.ones(len(work.source_U), dtype=np.bool_)
        if (update.position_B < 0).any():
            features = len(self.space.features)
            staging.touched_rows(work.segments_U1, work.segment_bag_N, features, update.position_B, touched_U)
        return touched_U

    def _launch_update(
        self,
        work: ClassifiedBatch,
        staged: Staged,
        update: RowUpdate,
        pool: int,
        position_B: Tensor,
        active_U: Tensor,
        hyper_5: Tensor,
    ) -> None:
        span, parts, on_device = work.pool_range(pool), staged.pools[pool], staged.on_device
        gradients, kernels = update.gradients[pool], self.streams.kernels
        bags = [on_device(parts.piece_P1), on_device(staged.bag_N)]
        of_bags = [len(self.space.features), on_device(staged.offsets), self._column_F, self._mean_F, position_B]
        rows = [on_device(parts.piece_U1), on_device(staged.source_U)[span], active_U[span]]
        tiers = [self.device.weights[pool], self.device.state[pool]]
        tiers += [on_device(parts.weights_CD), on_device(parts.state_CK)]
        monitor = self.device.monitors[pool] if update.measure and self.monitored else None
        record = (None, None) if monitor is None else (monitor.movement_HD, monitor.touches_H)

        def step() -> None:
            partial_PD = gradients.new_empty((len(bags[0]) - 1, gradients.shape[2]))
            kernels.sum_pieces(*bags, *of_bags, gradients, partial_PD)
            kernels.apply_rows(self.rule.code, hyper_5, rows[0], partial_PD, rows[1], rows[2], *tiers, *record)

        self.streams.launch(step)

    def release(self, work: ClassifiedBatch) -> None:
        staged = self._staged(work)
        self._rows_ready(staged)  # later batches may take rows over
        self._fly_home(work, staged, changed=False)

    def _fly_home(self, work: ClassifiedBatch, staged: Staged, changed: bool) -> None:
        """The batch's cold rows go back to the host tier, if there are any and they changed."""
        flight, work.staged = work.staged, None
        if changed and staged.rows_here is not None:
            self.traffic.device_to_host_bytes += staged.stop - staged.rows_start
            self._homing.bring(flight, staged)
        else:
            self._in_flight.end(flight)
            staged.slot.release(self.streams.compute_event())

    def settle(self) -> None:
        self._homing.settle()
        self.streams.host_waits(self.streams.compute_event())

    def close(self) -> None:
        self.drop_ahead()
        self.settle()
        self._homing.close()
        self._copier.close()

    # What lies on the device -----------------------------------------------------------------------------------------

    def launch(self, work: Any) -> None:
        self.streams.launch(work)

    def fetch_later(self, tensor: Tensor) -> Fetched:
        return self._moves.fetch_later(tensor)

    def movement(self, pool: int, metric: Metric) -> NDArray[Any]:
        monitor, weights = self.device.monitors[pool], self.device.weights[pool]
        moved_H = torch.empty(len(weights), dtype=self.dtype, device=weights.device)
        self.streams.launch(
            lambda: self.streams.kernels.movement(metric, monitor.movement_HD, monitor.touches_H, weights, moved_H)
        )
        return self.fetch(moved_H)

    def _bring_home(self, pool: int, slots: NDArray[np.int64], host_rows: NDArray[np.int64]) -> None:
        self._moves.down(pool, slots, (self.host.weights[pool], self.host.state[pool]), host_rows)
        if self.monitored:
            self._moves.forget(pool, slots)

    def _send_up(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        self._moves.up(pool, host_rows, slots)

    def _read_slots(self, pool: int, slots: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        weights = np.empty((len(slots), self.space.pools[pool].dim), dtype=self.host.dtype)
        state = np.empty((len(slots), self.host.state[pool].shape[1]), dtype=self.host.dtype)
        self._moves.down(pool, slots, (weights, state), np.arange(len(slots)))
        return weights, state
