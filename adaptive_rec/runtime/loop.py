"""The runtime: one mini-batch after the other, a step each, and the boundaries between the steps."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from adaptive_rec.batch import Batch, Position
from adaptive_rec.checkpoint.run_state import RunParts
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import Config
from adaptive_rec.data.left_out import samples_between, steps_to_come
from adaptive_rec.data.source import Source
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.dense.finite import Word, step_check
from adaptive_rec.dense.quality_trend import QualityTrend
from adaptive_rec.embedding.optimizer import LearningRates
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import NotFiniteError
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.rollback import Rollback
from adaptive_rec.live.telemetry import Evaluation, Event
from adaptive_rec.policy import Policy, SkippingPolicy
from adaptive_rec.runtime.checkpoints import Checkpoints
from adaptive_rec.runtime.control import Control
from adaptive_rec.runtime.evaluator import Evaluator
from adaptive_rec.runtime.knob_checks import check_admit_after
from adaptive_rec.runtime.phases import Phases
from adaptive_rec.runtime.pipeline import Pipeline
from adaptive_rec.runtime.rollbacks import Rollbacks
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.runtime.session import Report, Session
from adaptive_rec.runtime.short_memory import OnShortMemory
from adaptive_rec.runtime.skipping_guard import NO_TRIALS, SkippingGuard, guards, put_off_trials
from adaptive_rec.runtime.steps import TrainingSteps
from adaptive_rec.runtime.stream import batches_left
from adaptive_rec.runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from adaptive_rec.embedding.disk.kept_rows import KeptRows

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
        if config.data.ids == "raw":
            self._read_keys(kept_rows)
        self.followed = state.input.followed
        """The stream's source, where it is followed."""
        self.progressive: Progressive | None = None
        if self.followed is not None:
            from adaptive_rec.runtime.progressive import Progressive

            self.progressive = Progressive(store.group, config.eval.metrics)
        self.expect_steps()
        self.evaluator = Evaluator(state, source, dense, publisher, self.progressive, options.evaluated)
        self.phases = Phases(state, source, self.observer, self.reclassifier, publisher, self.evaluator)
        self.watchdog = Watchdog(state, self.mailbox, options)
        word: Word = "id" if state.input.raw_ids is None else "row"
        self.finite = step_check(config.run.on_nan, dense, store, word, self.watchdog.of_steps)
        """The check that a step's losses and gradients are finite."""
        self.guard = SkippingGuard(state, dense, self.observer, put_off_trials(options.replayed)) if guards(store) else None
        """Says when policies that it guards may skip; None where trials cannot be made, so that they never skip."""
        observers = [self.progressive.observe] if self.progressive else []
        self.steps = TrainingSteps(state, dense, self.observer, self.splitting, self.finite, observers, self.guard)
        self.parts = RunParts(
            state, dense, self.observer, self.reclassifier, self.phases, self.splitting, self.finite, self.watchdog,
            self.progressive, self.guard,
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
        unpriced = isinstance(policy, SkippingPolicy) and policy.guards_quality and self.guard is None
        self.notices = [*options.notices, *([NO_TRIALS.format(policy.name)] if unpriced else [])]
        """Warnings that are given when the run starts."""
        self.pipeline: Pipeline | None = None
        """Prepares batches, once the run has started."""

    def _read_keys(self, kept_rows: KeptRows | None) -> None:
        """Have the run follow the raw keys of its source, and the files of the user's own that it reads."""
        from adaptive_rec.data.raw.raw_ids import raw_ids_of
        from adaptive_rec.data.tabular.follow import FollowedSource, files_of_source

        state = self.state
        if (raw_ids := raw_ids_of(self.source)) is not None:
            look_ahead = self.policy.window_batches(state.knobs)
            state.input.read_keys_of(raw_ids, kept_rows, state.knobs.admit_after, look_ahead)
        if (files := files_of_source(self.source)) is not None:
            state.input.read_files_of(files, files if isinstance(files, FollowedSource) else None)

    @property
    def steps_total(self) -> int:
        """Steps the run will have made at its end; an upper bound where its policy repacks the stream."""
        return self.state.steps_total or 0

    @property
    def is_over(self) -> bool:
        """Whether all steps are made and all that the last boundary owed, and no knob is to change."""
        ends = self.followed is None or self.state.stopped_early
        return ends and self.state.is_at_end and not (self.state.slice_is_due or self.state.owed or self._overrides)

    def expect_steps(self) -> None:
        """Set how many steps the run makes: until the end of the stream from the reader's position on, or as configured."""
        state, source, batch_size, steps = self.state, self.source, self.config.run.batch_size, self.config.run.steps
        if self.followed is not None:
            state.expect_steps(steps or None)
            return
        if state.position.on_slice:
            steps = 0
        reordered = self.policy.reorders_stream and not state.position.on_slice  # the position does not show what was trained
        begin, made = (Position(), 0) if reordered else (state.position, state.step)
        in_stream = made + steps_to_come(source, begin, batch_size)
        state.expect_steps(min(in_stream, steps or in_stream), source.epochs)

    def check_knobs(self, before: Knobs, after: Knobs) -> None:
        super().check_knobs(before, after)
        check_admit_after(before, after, self.policy, self.state.input.raw_ids is not None)

    # The loop --------------------------------------------------------------------------------------------------------

    def run(self) -> Iterator[Report]:
        """Train to the end of the stream or the configured steps. Yields the reports."""
        self.phases.check_resumable()
        self.pipeline = pipeline = self._new_pipeline()
        for text in self.notices:
            yield Event(self.step_number, "warning", text)
        self.begin()
        memory, watched = OnShortMemory(self.device), self.watchdog.watched
        with self._closing(pipeline):
            try:
                yield from watched(self._resume())
                for work in self.phases.works(partial(self._classified, pipeline)):
                    yield from watched(self._before_step(work))
                    while work is not None:
                        with memory:
                            self.steps.make(work, self.phases.is_probe_step())
                            break
                        yield from watched(self.control.give_up_memory(memory.reason))
                    yield from watched(self.wait_boundary() if work is None else self.boundary())
                    if self.state.stop_requested:
                        break
                yield from watched(self._end())
            except NotFiniteError as error:
                yield from self._leave_faulty_step(error)
            if self.state.rollback is None:
                yield from self.watchdog.at_the_end()

    @contextmanager
    def _closing(self, pipeline: Pipeline) -> Iterator[None]:
        """Close what the run has open, however it ends."""
        try:
            yield
        except BaseException:
            self.publisher.enter("failed")
            pipeline.fail()
            raise
        finally:
            self.watchdog.end()
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

    def _new_pipeline(self) -> Pipeline:
        return Pipeline(
            iter(()),
            self.store,
            lambda: self.knobs.prefetch_depth if self.policy.prefetches else 0,
            self.times,
            self.config.run.thread_budget(self.store.path.stages_ahead).classify,
        )

    def _classified(self, pipeline: Pipeline, batches: Iterator[Batch]) -> Iterator[ClassifiedBatch | None]:
        """Return batches, classified; None where data is followed and nothing came for a moment."""
        return pipeline.over(batches) if self.followed is None else pipeline.arriving(batches, WAIT_SECONDS)

    def _before_step(self, work: ClassifiedBatch | None) -> Iterator[Report]:
        """Report the phase that begins, and repeat what a replayed run did right before this step."""
        yield from self.phases.take_reports()
        if work is not None:
            yield from self.control.before_step()

    def _leave_faulty_step(self, error: NotFiniteError) -> Iterator[Report]:
        """Roll back where a rule says so, otherwise raise the error: nothing that the faulty step left may be used."""
        yield from self.watchdog.judge_fault(error)
        yield from self.control.process_commands()
        if self.state.rollback is None:
            yield from self.control.process_commands()  # what follows where the rollback was refused
            raise error

    def _end(self) -> Iterator[Report]:
        """Carry out and report what is still owed at the end of the run."""
        yield from self.phases.take_reports()
        if self.config.watch.rules and not self.state.stopped_by_command:
            yield from self.control.process_commands()  # what the watchdog has found in the last report
        if self.state.rollback is not None:
            return
        yield from self.control.before_step()  # what a replayed run changed after its last step
        if not self.state.stop_requested or self.state.is_at_end:
            yield from self.phases.report_moves()
        yield from self.evaluator.at_the_end()
        yield from self._end_followed()
        self.publisher.enter("finishing")
        yield from self.saving.written(wait=True)
        self.finite.settle()
        yield from self.last_report()
        if self.state.slice_is_due:
            yield from self._go_to_slice()

    def _go_to_slice(self) -> Iterator[Event]:
        """Go back to the best model, which goes on with the validation slice. Without a whole checkpoint of it the run ends."""
        state, best = self.state, self.state.trend.best
        assert best is not None
        if best.step == state.step:
            yield from self.saving.at_once()
        name = self.saving.whole_of_step(best.step)
        if name is None:
            text = f"the best evaluation was at step {best.step:,}, of which there is no whole checkpoint"
            yield Event(state.step, "warning", f"{text}: the validation slice is not trained on")
            return
        state.roll_back(Rollback(Command("rollback", {}), name, state.step, {}, on_slice=True))

    def begin_slice(self, trend: QualityTrend) -> None:
        """Go on with the validation slice, as the best model. `trend`: the evaluations of all passes."""
        self.state.begin_slice(trend)
        self.phases.leave_stretch()

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
        yield from self.control.process_commands()
        if self.state.rollback is None:
            yield from self.saving.while_waiting()

    def _resume(self) -> Iterator[Report]:
        """Finish the step boundary at which the run was saved, overridden knobs first."""
        self.watchdog.act_on_what_is_owed()
        self.publisher.enter("training")
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
        if self.guard is not None:
            yield from self.guard.events()

    def follow_moves(self) -> None:
        if self.guard is not None:
            self.guard.follow()

    def evaluated(self) -> Generator[Evaluation | Event, None, bool]:
        return (yield from self.evaluator.when_due())

    def best_kept(self) -> Generator[Report, None, bool]:
        state = self.state
        last = state.stop_requested or state.is_at_end  # a checkpoint follows in any case
        if self.config.eval.keeps_best and state.trend.best_step == state.step and not last:
            state.task_done("best")
            yield from self.reports.finish(wait=True)  # a run that resumes from here has reported this step
            yield from self.saving.of_the_best()
        return True

    # Small things ----------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Batch]:
        """Return the rest of the stream, up to the configured number of steps."""
        return batches_left(self.state, self.source)

    def evaluate(self) -> Evaluation | None:
        """Score the present model on the held-out range, or the next window. Returns None where a signal interrupted it."""
        return self.evaluator.score_held_out() if self.config.eval.validates else self.evaluator.evaluate()

    def learning_rates(self) -> LearningRates:
        return self.steps.learning_rates()

    def losses(self) -> Fetched:
        return self.store.hot.fetch_later(self.dense.loss_sum)

    def hurry(self) -> None:
        """Stop after the step and leave out long work. Signal handlers may call it."""
        self.state.hurry()
