"""The stream in phases: what a policy that arranges it sees of it, and what happens where one phase ends and the next begins.

A policy that does not arrange has one phase, the whole stream.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.arrange import checked, take
from adaptive_rec.batch import Batch, Position
from adaptive_rec.config import Config
from adaptive_rec.data.source import Source
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import CheckpointError, TrainingError
from adaptive_rec.evaluate import evaluate
from adaptive_rec.knobs import Knobs
from adaptive_rec.placement import Migration
from adaptive_rec.policy import Outcome, Phase
from adaptive_rec.telemetry import Event

if TYPE_CHECKING:
    from adaptive_rec.runtime import Runtime


class Stream:
    """The stream from a position to the end of a run. See `policy.StreamView`."""

    def __init__(
        self,
        config: Config,
        source: Source,
        store: EmbeddingStore,
        position: Position,
        steps_done: int,
        knobs: Callable[[], Knobs],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.space = store.space
        self.batch_size = config.run.batch_size
        self.seed = config.run.seed
        self.options = config.policy
        self.knobs = knobs
        self._source = source
        self._store = store
        self._begin = position
        self._stopped = stopped
        self._steps = max(0, config.run.steps - steps_done) if config.run.steps else None
        self._samples = dict(self._cut())
        self.epochs = range(position.epoch, position.epoch + len(self._samples))

    def _cut(self) -> Iterator[tuple[int, int]]:
        """The epochs to come with the samples of each, as far as the run's steps reach in the source's order."""
        steps = self._steps
        for epoch in range(self._begin.epoch, self._source.epochs):
            samples = self._source.train_samples - (self._begin.offset if epoch == self._begin.epoch else 0)
            if steps is not None:
                samples = min(samples, steps * self.batch_size)
                steps -= -(-samples // self.batch_size)
            if samples:
                yield epoch, samples

    @property
    def end(self) -> Position:
        """Where a reader stands when all is read."""
        if not self._samples:
            return self._begin
        last = max(self._samples)
        offset = self._samples[last] + (self._begin.offset if last == self._begin.epoch else 0)
        if offset < self._source.train_samples:
            return Position(last, self._begin.seed, offset)
        return Position(last + 1, self._begin.seed, 0)

    def slots(self, pool: int) -> int:
        return self._store.device.capacities[pool]

    def samples(self, epoch: int) -> int:
        return self._samples[epoch]

    def read(self, epoch: int, batch_size: int | None = None) -> Iterator[Batch]:
        left = self._samples[epoch]
        begin = self._begin if epoch == self._begin.epoch else Position(epoch, self._begin.seed, 0)
        for batch in self._source.train_batches(begin, batch_size or self.batch_size):
            checked(batch, self.space)
            yield batch if batch.size <= left else take(batch, np.arange(left))
            left -= batch.size
            if left <= 0 or self._stopped():
                return

    def rest(self) -> Iterator[Batch]:
        left = self._steps
        for batch in self._source.train_batches(self._begin, self.batch_size) if left != 0 else ():
            yield checked(batch, self.space)
            left = left if left is None else left - 1
            if left == 0 or self._stopped():
                return


class Phases:
    """Iterate over the phases of a run: `begin`, train its `batches`, `end`. The training thread alone calls it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.measured = False
        """Whether all steps of the present phase are probe steps."""
        self.reordered = False
        """Whether the run stands within a stream that was reordered: its reader's position does not tell what was trained."""
        self.more_steps = runtime.source.epochs if runtime.policy.reorders_stream else 0
        """Steps by which the run may exceed plain training: hot and cold samples of an epoch end in a smaller batch each. At the
        run's end, how many they were; negative where samples were left out."""
        self._outcome = Outcome()
        self._told: tuple[str, int] = "", 0
        """Name and step of the phase whose rows the journal told of last."""
        self._untold: list[Migration] = []
        self._tails: list[Batch] = []

    def check_resumable(self) -> None:
        """Raise where the run cannot go on from where a checkpoint left it."""
        if self.reordered:
            raise CheckpointError(
                f"a run that reorders its stream goes on from its end only, and the checkpoint is of step "
                f"{self._runtime.step_number}, in the middle; begin anew"
            )

    def is_probe_step(self) -> bool:
        """Whether the present step skips nothing and measures movement: by dice, or as a policy that arranges says."""
        run = self._runtime
        if run.policy.exact or run.policy.arranges_stream:
            return self.measured
        return bool(run.random("probe").random() < run.knobs.probe_ratio)

    def __iter__(self) -> Iterator[Phase]:
        run, policy = self._runtime, self._runtime.policy
        if policy.arranges_stream:
            stream = self._stream()
            with run.times("arrange"):
                arranged = policy.arrange(stream)
                phase = next_phase(arranged, None)
            while phase is not None and not run.stop_requested and run.policy is policy:
                self.reordered = policy.reorders_stream
                yield phase
                with run.times("arrange"):
                    phase = None if run.stop_requested else next_phase(arranged, self._outcome)
            arranged.close()
            if phase is None and not run.stop_requested and policy.reorders_stream:
                run.position, self.reordered = stream.end, False
                self.more_steps += run.step_number - run.steps_total
            if run.stop_requested or run.policy is policy:
                return
        yield Phase("stream", run.batches())  # from the beginning, or since the run went over to such a policy

    def _stream(self) -> Stream:
        run, position, steps = self._runtime, self._runtime.position, self._runtime.step_number
        if run.policy.reorders_stream:  # of an earlier stretch it may have made a step more than plain training would
            samples = run.source.train_samples, position.offset
            epoch, part = (-(-count // run.config.run.batch_size) for count in samples)
            steps = position.epoch * epoch + part
        stream = Stream(
            run.config, run.source, run.store, position, steps, lambda: run.knobs, lambda: run.stop_requested
        )
        if run.policy.reorders_stream:
            self.more_steps = run.step_number - steps + len(stream.epochs)
        return stream

    def begin(self, phase: Phase) -> Iterator[Event]:
        """Place the rows that a phase lists; begin to measure where it is measured."""
        run = self._runtime
        if phase.note:
            yield Event(run.step_number, "arranged", phase.note, {"phase": phase.name, **phase.details})
        if phase.hot_rows is not None:
            with run.times("reclassify"):
                moved = run.reclassifier.place_listed(phase.hot_rows, phase.others_stay)
            yield from self._tell(phase, moved)
        self.measured = phase.measured
        if phase.measured:
            if not run.policy.tracks_movement:
                raise TrainingError(
                    f"tracks_movement of policy {run.policy.name} must be set where a phase is measured, is not"
                )
            run.observer.begin_measuring()

    def _tell(self, phase: Phase, moved: Migration) -> Iterator[Event]:
        """Tell of rows that moved: at once where a phase of another name begins, else of a window's together."""
        run, (name, step) = self._runtime, self._told
        if moved.moved_rows:
            self._untold.append(moved)
        if phase.name != name or run.step_number - step >= run.knobs.reclassify_every:
            yield from self.tell_rest(phase.name)

    def tell_rest(self, phase: str = "") -> Iterator[Event]:
        """Tell of rows that moved and were not told of; at a run's end under the last phase's name."""
        run = self._runtime
        if self._untold:
            self._told = phase or self._told[0], run.step_number
            run.publisher.placement()
            yield run.control.reclassified(*self._untold, phase=self._told[0])
            self._untold.clear()

    def batches(self, phase: Phase) -> Iterator[Batch]:
        """The phase's batches; those without samples are put aside for `end`. On the reader's thread."""
        for batch in phase.batches:
            if batch.size:
                yield batch
            else:
                self._tails.append(batch)

    def end(self, phase: Phase) -> None:
        """Find out what the phase came to."""
        run = self._runtime
        self.measured = False
        if run.stop_requested:
            return
        for tail in self._tails:
            run.tally.left_out(tail.skipped_samples, tail.malformed_rows)
        self._tails.clear()
        logloss = None
        if phase.evaluated:
            held_out = run.source.test_batches(run.config.eval.batch_size, run.config.policy.schedule_samples)
            with run.times("evaluate"), run.during("evaluating"):
                quality = evaluate(held_out, run.store, run.dense, lambda: run.hurried)
            logloss = None if quality is None else quality.logloss
        kept = phase.measured and run.store.monitored  # unless the run went over to a policy that keeps no record
        self._outcome = Outcome(logloss, *(_movement(run.store) if kept else ()))


def next_phase(arranged: Generator[Phase, Outcome, None], outcome: Outcome | None) -> Phase | None:
    """The next phase, None after the last one."""
    try:
        return next(arranged) if outcome is None else arranged.send(outcome)
    except StopIteration:
        return None


def _movement(store: EmbeddingStore) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """All hot rows and how far each moved since measuring began."""
    rows, moved = [], []
    for pool, row_of_slot in enumerate(store.device.row_of_slot):
        hot = row_of_slot >= 0
        rows.append(row_of_slot[hot])
        moved.append(store.movement(pool).max_abs_H[hot])
    return np.concatenate(rows), np.concatenate(moved)
