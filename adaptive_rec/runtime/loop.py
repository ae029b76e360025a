"""The runtime: one mini-batch after the other through the verbs of a step, in order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.checkpoint.run_state import RunParts
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.knobs import KnobError, Knobs
from adaptive_rec.config.tree import Config
from adaptive_rec.data.left_out import samples_between, steps_to_come
from adaptive_rec.data.raw.raw_ids import raw_ids_of
from adaptive_rec.data.source import Source
from adaptive_rec.data.tabular.follow import files_of_source
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.dense.finite import Word, step_check
from adaptive_rec.embedding.disk.kept_rows import KeptRows
from adaptive_rec.embedding.optimizer import LearningRates, learning_rates
from adaptive_rec.embedding.records import Fetched, RowUpdate
from adaptive_rec.embedding.staged.device_step import TOO_SMALL
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import MemoryPlanError, first_line, is_out_of_memory
from adaptive_rec.live.telemetry import Evaluation, Event
from adaptive_rec.policy import BatchView, Policy, StepPlan
from adaptive_rec.policy.skipping import plan_step
from adaptive_rec.runtime.checkpoints import Checkpoints
from adaptive_rec.runtime.control import Control
from adaptive_rec.runtime.evaluator import Evaluator
from adaptive_rec.runtime.phases import Phases
from adaptive_rec.runtime.pipeline import Pipeline
from adaptive_rec.runtime.progressive import Progressive
from adaptive_rec.runtime.rollbacks import Rollbacks
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.runtime.session import Report as Report
from adaptive_rec.runtime.session import Session
from adaptive_rec.runtime.short_memory import OnShortMemory
from adaptive_rec.runtime.stream import batches_left
from adaptive_rec.runtime.watchdog import Watchdog

WAIT_SECONDS = 0.25
"""Time between two looks at commands and signals while data that is followed does not come."""


class Runtime(Session):
    """One training run over a source: iterate over `run`."""

    def __init__(
        self,
        config: Config,
        source: Source,
        policy: Policy,
        store: EmbeddingStore,
        dense: DensePart,
        options: RunOptions | None = None,
        kept_rows: KeptRows | None = None,
    ) -> None:
        """`kept_rows`: where rows of raw ids are kept that have left."""
        options = options or RunOptions()
        self.dense = dense
        replaying = options.replayed is not None
        super().__init__(config, policy, store, replaying=replaying, times=options.times, mailbox=options.mailbox)
        self.source = source
        state, publisher = self.state, self.publisher
        if (raw_ids := raw_ids_of(source)) is not None:
            state.input.read_keys_of(raw_ids, kept_rows, state.knobs.admit_after)
        if (files := files_of_source(source)) is not None:
            state.input.read_files_of(files)
        self.followed = state.input.followed
        """The stream's source, where it is followed."""
        self.progressive = None if self.followed is None else Progressive()
        self.expect_steps()
        self.evaluator = Evaluator(state, source, dense, publisher, self.progressive)
        self.phases = Phases(state, source, self.observer, self.reclassifier, publisher, self.evaluator)
        self.watchdog = Watchdog(state, self.mailbox, options)
        word: Word = "id" if state.input.raw_ids is None else "row"
        self.finite = step_check(config.run.on_nan, dense, store, word, self.watchdog.of_steps)
        """The check that a step's losses and gradients are finite."""
        self.parts = RunParts(
            state, dense, self.observer, self.reclassifier, self.phases, self.splitting, self.finite, self.watchdog
        )
        """What checkpoints save and restore."""
        self.saving: Checkpoints = Checkpoints(self.parts, options.checkpoints, publisher, options.journal)
        self.control = Control(
            state,
            self.reclassifier,
            self.splitting,
            self.mailbox,
            publisher,
            self.reports,
            self.saving,
            Rollbacks(state, options.checkpoints, self.check_knobs, replaying),
            options.replayed,
        )
        self._overrides = options.overrides
        self._rollback = options.rollback
        self.notices = options.notices
        """Warnings that are given when the run starts."""
        self.pipeline: Pipeline | None = None
        """Prepares batches, once the run has started."""
        self._guarded: list[tuple[Fetched, NDArray[np.int64]]] = []
        """Losses of this step and the lines of its guard samples, held back until it has succeeded: it may be repeated."""

    @property
    def steps_total(self) -> int:
        """Steps the run will have made at its end; an upper bound where its policy repacks the stream."""
        return self.state.steps_total or 0

    def expect_steps(self) -> None:
        """Set how many steps the run makes: until the end of the stream from the reader's position on, or as configured."""
        state, source, batch_size, steps = self.state, self.source, self.config.run.batch_size, self.config.run.steps
        if self.followed is not None:
            state.expect_steps(steps or None)
            return
        reordered = self.policy.reorders_stream  # then the position does not show which samples were trained
        begin, made = (Position(), 0) if reordered else (state.position, state.step)
        in_stream = made + steps_to_come(source, begin, batch_size)
        state.expect_steps(min(in_stream, steps or in_stream), source.epochs)

    def check_knobs(self, before: Knobs, after: Knobs) -> None:
        super().check_knobs(before, after)
        if self.state.input.raw_ids is None and after.admit_after != before.admit_after:
            rule = f"must be {before.admit_after}, as the ids of this run are rows (data.ids), got {after.admit_after}"
            raise KnobError(f"knobs.admit_after {rule}", [("admit_after", rule)])

    # The loop --------------------------------------------------------------------------------------------------------

    def run(self) -> Iterator[Report]:
        """Train to the end of the stream or the configured steps. Yields the reports."""
        self.phases.check_resumable()
        self.pipeline = pipeline = Pipeline(
            iter(()),
            self.store,
            lambda: self.knobs.prefetch_depth if self.policy.prefetches else 0,
            self.times,
            self.config.run.thread_budget(self.store.stages_ahead).classify,
        )
        for text in self.notices:
            yield Event(self.step_number, "warning", text)
        self.begin()
        try:
            yield from self.watchdog.over(self._train(pipeline), self.control.obey)
        except BaseException:
            self.publisher.enter("failed")
            pipeline.fail()
            raise
        finally:
            if self.state.rollback is None:
                self.mailbox.close("the run has ended")
            self.saving.close()
            if self.followed is not None:
                self.followed.stop()
            pipeline.close()
            self.observer.close()
            self.store.close()
            if self.state.input.kept_rows is not None:
                self.state.input.kept_rows.close()

    def _train(self, pipeline: Pipeline) -> Iterator[Report]:
        memory = OnShortMemory(self.device)
        self.publisher.enter("training")
        yield from self._resume()
        for phase in self.phases:
            yield from self.phases.begin(phase)
            for work in self._works(pipeline, self.phases.batches(phase)):
                if work is None:
                    yield from self.wait_boundary()
                else:
                    yield from self.control.before_step()
                    while True:
                        with memory:
                            self.step(work)
                            break
                        yield from self.control.give_up_memory(memory.reason)
                    yield from self.boundary()
                if self.state.stop_requested:
                    break
            self.phases.end(phase)
        if self.config.watch.rules and not self.state.stop_requested:
            yield from self.control.obey()  # what the watchdog has found in the last report
        if self.state.rollback is None:
            yield from self._end()

    def _works(self, pipeline: Pipeline, batches: Iterator[Batch]) -> Iterator[ClassifiedBatch | None]:
        """Return the batches of a phase, classified; None where data is followed and nothing came for a moment."""
        return pipeline.over(batches) if self.followed is None else pipeline.arriving(batches, WAIT_SECONDS)

    def _end(self) -> Iterator[Report]:
        """Report what is still to be reported at the end of the run."""
        yield from self.phases.report_moves()
        yield from self._end_followed()
        self.publisher.enter("finishing")
        yield from self.saving.written(wait=True)
        self.finite.settle()
        yield from self.last_report()

    def _end_followed(self) -> Iterator[Event]:
        """Count malformed rows behind the last row of a stream that is followed, and say what was not read."""
        if self.followed is None:
            return
        left_out = self.followed.end(self.state.position)
        self.tally.add_skipped(0, left_out if self.store.group.rank == 0 else 0)  # every rank reads the input
        if text := self.followed.unread():
            yield Event(self.step_number, "warning", text)

    def wait_boundary(self) -> Iterator[Report]:
        """Carry out commands and save while no data comes."""
        self.publisher.pulse()
        yield from self.reports.finish(wait=False)
        for text in self.state.take_warnings():
            yield Event(self.step_number, "warning", text)
        yield from self.control.obey()
        if self.state.rollback is None:
            yield from self.saving.while_waiting()

    def step(self, work: ClassifiedBatch) -> None:
        """Train one loaded and classified mini-batch: plan, gather and execute, update, observe."""
        self.store.finish_draws()
        if self.store.on_disk:
            with self.times("disk"):
                self.store.await_rows(work)
        with self.times("classify"):
            self.store.take(work)
        probe = self.phases.is_probe_step()
        with self.times("plan"):
            plan = self.plan(work, probe)
        position_B = self.execute(work, plan)
        with self.times("update"):
            self.update(work, plan, position_B, probe)
        with self.times("observe"):
            self.observe(work, probe and bool((position_B >= 0).any()))
        self.tally.add(work, position_B)
        self.state.step_done(work.batch.position)

    def _resume(self) -> Iterator[Report]:
        """Finish the step boundary at which the run was saved, overridden knobs first."""
        if self._rollback is not None:
            end = self._rollback.skip_to
            samples = 0 if end is None else samples_between(self.source, self.state.position, end)
            yield from self.control.go_on_after(self._rollback, samples)
            self.expect_steps()
        elif self._overrides:
            yield self.control.override_at_start(self._overrides)
        yield from self.control.resume_paused()
        yield from self.control.go_on_replaying()
        if self.state.window_due and self.state.rollback is None:
            yield from self.end_boundary()

    def checked(self) -> Iterator[Event]:
        yield from self.finite.events()

    def evaluated(self) -> Iterator[Evaluation | Event]:
        yield from self.evaluator.when_due()

    # The verbs -------------------------------------------------------------------------------------------------------

    def plan(self, work: ClassifiedBatch, probe: bool) -> StepPlan:
        split = self.policy.tracks_popularity and self.splitting.at(self.step_number)
        stale_U = self.observer.stale.of(work)
        view = BatchView(self.step_number, split, self.knobs, work, stale_U, self.state.random("plan"))
        return plan_step(self.policy, view, probe)

    def execute(self, work: ClassifiedBatch, plan: StepPlan) -> NDArray[np.int64]:
        """Run forward and backward of every micro-batch; all read the same parameters. Returns each sample's line in the
        gradients, -1 for a skipped sample."""
        self.dense.begin_step()
        self._guarded.clear()
        if self.progressive is not None:
            self.progressive.begin_step()
        position_B = np.full(work.batch.size, -1, dtype=np.int64)
        trained = 0
        for samples in plan.micro_batches:
            weight_S = np.ones(len(samples)) if plan.weight_B is None else plan.weight_B[samples]
            with self.times("gather"):
                micro = self.dense.inputs(len(samples))
                self.store.gather(work, samples, weight_S / work.batch.samples_of_all_ranks, micro)
            with self.times("execute"):
                self.dense.run(micro)
            if plan.guard_B is not None and plan.guard_B[samples].any():
                losses_S = self.store.fetch_later(self.dense.losses_S)
                self._guarded.append((losses_S, np.flatnonzero(plan.guard_B[samples])))
            if self.progressive is not None:
                self.progressive.add(self.store.fetch_later(self.dense.losses_S), work.batch.labels_B[samples])
            position_B[samples] = np.arange(trained, trained + len(samples))
            trained += len(samples)
        return position_B

    def update(self, work: ClassifiedBatch, plan: StepPlan, position_B: NDArray[np.int64], probe: bool) -> None:
        """Update each distinct row once and make one dense step, or leave the batch out where its gradients are not finite."""
        if not plan.micro_batches and self.store.group.is_alone:
            self.store.release(work)
            return
        if not self.finite.passes(work, position_B, self.step_number + 1):
            self.store.release(work)
            self._guarded.clear()
            if self.progressive is not None:
                self.progressive.begin_step()
            position_B[:] = -1
            return
        knobs, number, rates = self.knobs, self.step_number + 1, self.learning_rates()
        gradients = self.dense.gradients()
        self.dense.share()
        if knobs.clip_norm:
            self.dense.clip(knobs.clip_norm, gradients)
        skips = not (probe or self.policy.exact)
        lr = rates.embedding
        self.store.apply(work, RowUpdate(gradients, position_B, plan.frozen_U, lr, number, measure=probe, skips=skips))
        try:
            self.dense.step(rates.factor)
        except RuntimeError as error:  # rows are updated by now, so the step cannot be repeated
            if not is_out_of_memory(error):
                raise
            raise MemoryPlanError(f"{TOO_SMALL}: {first_line(error)}") from error

    def observe(self, work: ClassifiedBatch, probe: bool) -> None:
        if self.policy.tracks_popularity:
            self.observer.count_lookups(self.step_number, self.store.counted(work), self.knobs)
        if probe and self.policy.tracks_movement:
            self.observer.keep_popular_samples(work)
        if self.progressive is not None:
            self.progressive.end_step()
        for losses_S, lines in self._guarded:
            self.reclassifier.guard.add(losses_S, lines)

    # Small things ----------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Batch]:
        """Return the rest of the stream, up to the configured number of steps."""
        return batches_left(self.state, self.source)

    def evaluate(self) -> Evaluation | None:
        """Score the present model on the held-out range. Returns None where a signal interrupted it."""
        return self.evaluator.evaluate()

    def learning_rates(self) -> LearningRates:
        return learning_rates(self.config.optimizer, self.knobs, self.step_number)

    def losses(self) -> Fetched:
        return self.store.fetch_later(self.dense.loss_sum)

    def hurry(self) -> None:
        """Stop after the step and leave out long work. Signal handlers may call it."""
        self.state.hurry()
