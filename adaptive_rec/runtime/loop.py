"""The runtime: one mini-batch after the other, a step each, and the boundaries between the steps."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from adaptive_rec.batch import Batch, Position
from adaptive_rec.checkpoint.run_state import RunParts
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import Config
from adaptive_rec.data.left_out import samples_between, steps_to_come
from adaptive_rec.data.raw.raw_ids import raw_ids_of
from adaptive_rec.data.source import Source
from adaptive_rec.data.tabular.follow import files_of_source
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.dense.finite import Word, step_check
from adaptive_rec.embedding.disk.kept_rows import KeptRows
from adaptive_rec.embedding.optimizer import LearningRates
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.live.telemetry import Evaluation, Event
from adaptive_rec.policy import Policy
from adaptive_rec.runtime.checkpoints import Checkpoints
from adaptive_rec.runtime.control import Control
from adaptive_rec.runtime.evaluator import Evaluator
from adaptive_rec.runtime.knob_checks import check_admit_after
from adaptive_rec.runtime.phases import Phases
from adaptive_rec.runtime.pipeline import Pipeline
from adaptive_rec.runtime.progressive import Progressive
from adaptive_rec.runtime.rollbacks import Rollbacks
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.runtime.session import Report, Session
from adaptive_rec.runtime.short_memory import OnShortMemory
from adaptive_rec.runtime.steps import TrainingSteps
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
        self.steps = TrainingSteps(
            state, dense, self.observer, self.reclassifier, self.splitting, self.finite, self.progressive
        )
        self.parts = RunParts(
            state, dense, self.observer, self.reclassifier, self.phases, self.splitting, self.finite, self.watchdog,
            self.progressive,
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

    @property
    def steps_total(self) -> int:
        """Steps the run will have made at its end; an upper bound where its policy repacks the stream."""
        return self.state.steps_total or 0

    @property
    def is_over(self) -> bool:
        """Whether all steps are made and all that the last boundary owed, and no knob is to change."""
        return self.followed is None and self.state.is_at_end and not self.state.owed and not self._overrides

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
        check_admit_after(before, after, self.state.input.raw_ids is not None)

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
                for text in self.mailbox.close("the run has ended"):
                    self.state.warn(text)
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
                            self.steps.make(work, self.phases.is_probe_step())
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
        yield from self.control.before_step()  # what a replayed run changed after its last step
        if not self.state.stop_requested or self.state.is_at_end:
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
        if self.state.rollback is None:
            yield from self.end_boundary()

    def checked(self) -> Iterator[Event]:
        yield from self.finite.events()

    def evaluated(self) -> Generator[Evaluation | Event, None, bool]:
        return (yield from self.evaluator.when_due())

    # Small things ----------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Batch]:
        """Return the rest of the stream, up to the configured number of steps."""
        return batches_left(self.state, self.source)

    def evaluate(self) -> Evaluation | None:
        """Score the present model on the held-out range. Returns None where a signal interrupted it."""
        return self.evaluator.evaluate()

    def learning_rates(self) -> LearningRates:
        return self.steps.learning_rates()

    def losses(self) -> Fetched:
        return self.store.fetch_later(self.dense.loss_sum)

    def hurry(self) -> None:
        """Stop after the step and leave out long work. Signal handlers may call it."""
        self.state.hurry()
