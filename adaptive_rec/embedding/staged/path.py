"""The path of a device run: hot rows stay on the device, a batch's distinct cold rows travel there and back once.

A worker stages batches ahead: it packs each into a slot of pinned memory and sends it up, first the integers, then the cold rows
with their optimizer state. The step updates hot and cold rows on the device; then the cold rows go down, and a second worker
writes them back. Rows that an earlier batch still holds are forwarded on the device (see `in_flight.py`), so the training thread
does not wait for them.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import Batch, all_samples, trains_all
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.cold.home import ColdHome
from adaptive_rec.embedding.device import TierRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.path.row_path import Lookups, RowPath
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.embedding.staged.classified import ClassifiedOnDevice, TrainedLists
from adaptive_rec.embedding.staged.classifier import Classifier
from adaptive_rec.embedding.staged.device_hot import DeviceHotRows
from adaptive_rec.embedding.staged.device_step import DeviceStep
from adaptive_rec.embedding.staged.direct_rows import DirectRows
from adaptive_rec.embedding.staged.in_flight import Flight, InFlight, Staged
from adaptive_rec.embedding.staged.ring import StagingRing
from adaptive_rec.embedding.staged.stager import Stager
from adaptive_rec.embedding.staged.streams import Event, Streams
from adaptive_rec.embedding.staged.write_back import WriteBack
from adaptive_rec.errors import first_line
from adaptive_rec.kernels import staging
from adaptive_rec.kernels.jit import usable_threads
from adaptive_rec.placement import Migration
from adaptive_rec.system.crew import Crew


class StagedPath(RowPath):
    """Batches are staged by the caller's worker, and written back by a worker of this path's own."""

    stages_ahead = updates_once = True
    in_place = False
    """Whether cold rows stay in host memory, see `in_place.py`."""
    _hot: DeviceHotRows

    def __init__(
        self, index: RowIndex, rules: Sequence[RowRule], hot: DeviceHotRows, cold: ColdHome, seed: int, streams: Streams,
        crew: Crew, classifies: bool = False, direct: DirectRows | None = None, complaint: str = "",
    ) -> None:  # fmt: skip
        """`crew`: threads that copy rows. `classifies`: the device classifies batches. `direct`: cold rows that the device reads
        and writes in host memory by itself. `complaint`: a first warning."""
        super().__init__(index, rules, hot, cold)
        self.streams, self._crew = streams, crew
        self.threads = usable_threads(crew.size)
        self.counting_threads = crew.size
        self._classifier = Classifier(index.space, streams, hot.dtype, self.in_place) if classifies else None
        self._trained = TrainedLists(streams)
        self.ring = StagingRing(streams, in_order=True)
        self._beside: list[StagingRing] = []
        self.direct = direct
        self._in_flight = InFlight()
        self._homing = WriteBack(streams, cold, self.direct, self._in_flight, crew, index.flagging_in)
        self._step = DeviceStep(index.space, rules[0], seed, streams, hot.overflow_P)
        self._twin_step: DeviceStep | None = None
        """Queues the work of a trial's twins, once there was one."""
        self._seed = seed
        self._stager = self._make_stager(self.ring)
        self._aside = self._make_stager(StagingRing(streams, in_order=True))
        """For batches that are not trained, which may be larger."""
        self._complaints: list[str] = [complaint] if complaint else []
        self._complained = False
        self._step_first = False
        """Whether a step was short of memory: until it is made, no batch is sent ahead."""

    def _make_stager(self, ring: StagingRing) -> Stager:
        return Stager(self._index.space, self._rules[0], self._cold, self._hot.dtype, ring, self._crew, self.direct)

    @property
    def peak_bytes(self) -> int:
        return self.streams.peak_bytes()

    def add_rings(self, rings: list[StagingRing]) -> None:
        """Count, and free, the memory of these rings with that of this path's own."""
        self._beside += rings

    @property
    def rings(self) -> list[StagingRing]:
        """Rings for batches ahead, for batches that are not trained, for notes, and for rows that change tier."""
        own = [self.ring, self._aside.ring, self._step.notes, self._hot.moves.ring]
        twins = [] if self._twin_step is None else [self._twin_step.notes]
        return [*own, *twins, *self._beside, *(() if self._classifier is None else self._classifier.rings)]

    @property
    def staging_bytes(self) -> int:
        return sum(ring.device_bytes for ring in self.rings)

    @property
    def classifies(self) -> bool:
        """Whether the device classifies batches."""
        return self._classifier is not None

    # Ahead of the step -----------------------------------------------------------------------------------------------

    def classified(self, batch: Batch, threads: int = 1) -> ClassifiedBatch:
        if self._classifier is None or not batch.lookups or batch.reads is not None:
            return super().classified(batch, threads)
        work = ClassifiedOnDevice(batch, self._index.space)
        if not self._step_first:
            with suppress(torch.OutOfMemoryError):  # raised again when the step needs the batch
                self._classifier.place(work, self._index.placement, None)
        return work

    def stage(self, work: ClassifiedBatch) -> None:
        flight = Flight(work)
        work.attach(flight)
        self._in_flight.add(flight)
        if self._step_first:
            return
        try:
            for other in self._in_flight.before(flight):
                with other.lock:
                    if not other.taken and not other.is_staged(self._index.placement.version):
                        self._stage(other)  # rows have moved since
            with flight.lock:
                self._stage(flight)
        except torch.OutOfMemoryError as error:  # the step tries again, and can free memory
            if not self._complained:
                self._complained = True
                rule = "batches cannot be sent ahead, the device's memory is too small for so many"
                self._complaints.append(f"{rule}; lower knobs.prefetch_depth or hot_budget_bytes: {first_line(error)}")

    def complaints(self) -> list[str]:
        found, self._complaints = self._complaints, []
        return found

    def _stage(self, flight: Flight) -> None:
        """Stage a flight, with its lock held. It stays unstaged where the placement changes meanwhile."""
        computed = self.streams.compute_event() if flight.taken else None
        self._in_flight.drop(flight, computed)
        if isinstance(flight.work, ClassifiedOnDevice):
            assert self._classifier is not None, "batches are classified as their store does it"
            if flight.work.placement_version != self._index.placement.version:
                self._classifier.place(flight.work, self._index.placement, computed)
        else:
            self.classify(flight.work)
        earlier = self._hold_before(flight)
        if earlier is None:
            return
        try:
            flight.hold(self._stager.stage(flight.work, earlier))
        finally:
            for _, staged in earlier:
                staged.slot.release(None)
        if flight.staged is not None:
            self._cold.count_read(flight.staged.rows_read, again=flight.taken)

    def _hold_before(self, flight: Flight) -> list[tuple[Flight, Staged]] | None:
        """Return the flights that may have a flight's rows, with their slots held. None where the placement is just changing."""
        return self._in_flight.hold_before(flight)

    def drop_ahead(self) -> None:
        _drop_lists(self._in_flight.drop_ahead(), None)

    def free_memory(self) -> None:
        self._step_first = True
        for flight in self._in_flight.ahead():
            with flight.lock:
                self._in_flight.drop(flight, None)
                if isinstance(flight.work, ClassifiedOnDevice):
                    flight.work.drop_lists(None)
        self._trained.forget()
        if self._classifier is not None:
            self._classifier.forget_recordings()
        self.settle()
        self._step.free_memory()
        if self._twin_step is not None:
            self._twin_step.free_memory()
        reserved = [self._hot.moves.ring] if self._classifier is None else [self._hot.moves.ring, self._classifier.moved]
        for ring in self.rings:
            if ring not in reserved:
                ring.close()
        gc.collect()  # frees what the failed step's traceback refers to
        self.streams.trim()

    # The step --------------------------------------------------------------------------------------------------------

    def take(self, work: ClassifiedBatch) -> None:
        if self._classifier is not None:
            self._classifier.record()
        self._trained.forget()
        if work.staged is None:
            unstaged = Flight(work, taken=True)
            work.attach(unstaged)
            self._in_flight.add_now(unstaged)
        flight: Flight = work.staged
        with flight.lock:
            flight.begin()
            try:
                if not flight.is_staged(self._index.placement.version):
                    self._stage(flight)
            except torch.OutOfMemoryError:  # else raised again when the step needs the batch
                if isinstance(work, ClassifiedOnDevice):
                    raise

    def _staged(self, work: ClassifiedBatch) -> Staged:
        """Return a batch's staged arrays. A batch that is not trained, as in an evaluation, is staged now."""
        if work.staged is None:
            self.settle()
            self.classify(work)
            work.attach(Flight(work, self._aside.stage(work, []), taken=True))
        flight: Flight = work.staged
        if not flight.taken:
            self.take(work)
        if flight.staged is None:
            self._stage(flight)
        staged = flight.staged
        assert staged is not None, "the placement does not change while a step starts"
        self._index.traffic.add_bytes(to_device=staged.count_once())
        return staged

    def gather(
        self, work: ClassifiedBatch, samples_S: NDArray[np.int64], scale_S: NDArray[np.float64], micro: MicroBatch
    ) -> None:
        staged = self._staged(work)
        self._indices_ready(staged)
        if samples_S is all_samples(work.batch.size) or not work.popular_B[samples_S].all():
            self._rows_ready(staged)
        self._index.traffic.add_bytes(to_device=self._step.gather(staged, self._hot.tier, samples_S, scale_S, micro))

    def pool_samples(self, work: ClassifiedBatch, pool: int, samples: Tensor, vectors: Tensor) -> None:
        """Queue the pooling of some samples of a batch that is ready (`make_ready`), into vectors (S, T, D) of one pool."""
        self._step.pool_bags(self._staged(work), self._hot.tier, pool, samples, vectors)

    def make_ready(self, work: ClassifiedBatch) -> None:
        """Have computation wait for all of a batch."""
        staged = self._staged(work)
        self.streams.compute_waits(staged.indices_here)
        self._rows_ready(staged)

    def _rows_ready(self, staged: Staged) -> None:
        """Have computation wait for a batch's cold rows, and forward those that earlier batches hold."""
        if staged.use_rows():
            if staged.rows_here is staged.indices_here:  # all went up together
                self._indices_ready(staged)
            else:
                self.streams.compute_waits(staged.rows_here)
            self._step.take_rows_over(staged)

    def _indices_ready(self, staged: Staged) -> None:
        """Have computation wait for everything but a batch's rows."""
        if staged.use_indices():
            self.streams.compute_waits(staged.indices_here)

    def apply(self, work: ClassifiedBatch, update: RowUpdate) -> None:
        staged = self._staged(work)
        self._indices_ready(staged)  # the batch may not have been gathered
        self._rows_ready(staged)
        measured = update.measure and self._hot.monitored
        # Without a frozen row and a skipped sample, every row is updated: no list is needed for that.
        touched_U = active_U = None
        skips = not trains_all(update.position_B) and update.position_B.min(initial=0) < 0
        if update.frozen_U is not None or skips:
            touched_U = self._touched(work, update)
            active_U = touched_U if update.frozen_U is None else touched_U & ~update.frozen_U
        sent = self._step.update(staged, self._hot.tier, self._hot.changed_H, update, active_U, measured)
        self._index.traffic.add_bytes(to_device=sent)
        changed: list[NDArray[np.bool_]] | None = None if active_U is None else []
        first = 0
        for parts in staged.pools:
            span, cold = slice(first, first + parts.distinct), len(parts.host_rows_C)
            touched = active = parts.distinct
            first = span.stop
            if changed is not None and touched_U is not None and active_U is not None:
                changed.append(active_U[span][work.source_U[span] < 0])
                touched, active, cold = (int(np.count_nonzero(each)) for each in (touched_U[span], active_U[span], changed[-1]))
            self._index.traffic.add_updates(touched, active, active - cold)
        self._fly_home(work, staged, True, changed)

    def _touched(self, work: ClassifiedBatch, update: RowUpdate) -> NDArray[np.bool_]:
        touched_U = np.ones(len(work.source_U), dtype=np.bool_)
        if (update.position_B < 0).any():
            features = len(self._index.space.features)
            staging.touched_rows(work.segments_U1, work.segment_bag_N, features, update.position_B, touched_U)
        return touched_U

    def gather_beside(
        self, work: ClassifiedBatch, scale_B: NDArray[np.float64], micro: MicroBatch, twin: TierRows
    ) -> None:
        staged = self._staged(work)
        self._indices_ready(staged)
        self._rows_ready(staged)
        sent = self._for_twins().gather(staged, twin, all_samples(work.batch.size), scale_B, micro)
        self._index.traffic.add_bytes(to_device=sent)

    def update_beside(self, work: ClassifiedBatch, update: RowUpdate, twin: TierRows) -> bool:
        active_U = self._touched(work, update) & work.hot_U
        if update.frozen_U is not None:
            active_U &= ~update.frozen_U
        step = self._for_twins()
        sent = step.update(self._staged(work), twin, self._hot.changed_H, update, active_U, monitored=False)
        self._index.traffic.add_bytes(to_device=sent)
        return True

    def _for_twins(self) -> DeviceStep:
        """Return what queues the work of twins, with flags of its own for rows that are too large: those are no fault of the
        run."""
        if self._twin_step is None:
            overflow_P = torch.zeros_like(self._hot.overflow_P)
            self._twin_step = DeviceStep(self._index.space, self._rules[0], self._seed, self.streams, overflow_P)
        return self._twin_step

    def release(self, work: ClassifiedBatch) -> None:
        flight: Flight | None = work.staged
        if flight is not None:
            with flight.lock:  # the worker may be staging it again
                flight.begin()
        if flight is None or flight.staged is None:  # there was no memory for it, or its step never started
            self._step_first = False
            if flight is not None:
                self._in_flight.end(flight)
            self._trained.keep(work)
            work.attach(None)
            return
        staged = self._staged(work)
        self._rows_ready(staged)  # later batches may take rows over
        self._fly_home(work, staged, False, None)

    def _fly_home(
        self, work: ClassifiedBatch, staged: Staged, updated: bool, changed: list[NDArray[np.bool_]] | None
    ) -> None:
        """End a batch: send its cold rows back to the host tier, if it has any and its step updates some. `changed` has for each
        pool which of them; None: all."""
        self._step_first = False
        flight: Flight = work.staged
        self._trained.keep(work)
        work.attach(None)
        computed = self.streams.compute_event()
        staged.release_forwards(computed)
        if updated and staged.rows_here is not None:
            self._index.traffic.add_bytes(to_host=staged.stop - staged.rows_start)
            self._homing.bring(flight, staged, changed, computed)
        else:
            self._in_flight.end(flight)
            staged.slot.release(computed)

    def counted(self, work: ClassifiedBatch) -> Lookups:
        if isinstance(work, ClassifiedOnDevice):
            return work.lookups_later()
        return super().counted(work)

    def end_migration(self, migration: Migration) -> None:
        if self._classifier is not None:
            self._classifier.move(np.concatenate([migration.demote, migration.promote]), self._index.slot_of_row)

    def settle(self) -> None:
        self._homing.settle()
        self._hot.moves.settle()
        self.streams.host_waits(self.streams.compute_event())

    def close(self) -> None:
        self.drop_ahead()
        self._trained.forget()
        try:
            self.settle()
        finally:
            computed = self.streams.compute_event()
            _drop_lists(self._in_flight.end_all(computed), computed)  # a step may have been interrupted
            self._homing.close()
            if self.direct is not None:
                self.direct.close()
        self._crew.close()


def _drop_lists(batches: list[ClassifiedBatch], event: Event | None) -> None:
    """Give the slots of batches back that the device classified. After `event` their memory is no longer used."""
    for work in batches:
        if isinstance(work, ClassifiedOnDevice):
            work.drop_lists(event)
