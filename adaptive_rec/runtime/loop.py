"""The runtime: one mini-batch after the other through the verbs of a step, in order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.checkpoint.flatten import Copies
from adaptive_rec.checkpoint.writing import Last
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.dense.evaluate import Evaluation, evaluate
from adaptive_rec.dense.finite import step_check
from adaptive_rec.embedding.optimizer import schedule
from adaptive_rec.embedding.records import Fetched, RowUpdate
from adaptive_rec.embedding.staged.device_step import TOO_SMALL
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import MemoryPlanError, first_line, is_out_of_memory
from adaptive_rec.live.telemetry import Event
from adaptive_rec.policy import BatchView, Policy, StepPlan, plan_step
from adaptive_rec.runtime.checkpoints import Checkpoints
from adaptive_rec.runtime.phases import Phases
from adaptive_rec.runtime.pipeline import Pipeline
from adaptive_rec.runtime.session import Report as Report
from adaptive_rec.runtime.session import Session


class Runtime(Session):
    """One training run over a source: iterate over `run`."""

    def __init__(self, config: Config, source: Source, policy: Policy, store: EmbeddingStore, dense: DensePart) -> None:
        super().__init__(config, policy, store)
        self.source = source
        self.dense = dense
        self.saving: Checkpoints = Checkpoints(self)
        self.checkpoints: Path | None = None
        """Folder for checkpoints; without one none can be asked for."""
        self.saved: Last | None = None
        """The newest checkpoint that this run wrote or goes on from."""
        self.copies = Copies()
        """Of its small arrays, for the next one."""
        self.pipeline: Pipeline | None = None
        """What makes batches ready, once the run has begun."""
        self.finite = step_check(config.run.on_nan, dense, store)
        """Whether a step's losses and gradients are numbers."""
        self.phases = Phases(self)
        self.position = Position(seed=config.run.seed)
        self.told: dict[str, Any] = {}
        """Knobs that are to be others than the ones a run goes on with."""
        self._guarded: list[tuple[Fetched, NDArray[np.int64]]] = []
        """Losses of the present step, and which lines are the guard's: a step that is begun again must not count twice."""
        self.notices: list[str] = []
        """What the user is to be told when the run begins."""
        self.hurried = False
        """A signal came: what takes long and can be left out is left out."""

    # The loop --------------------------------------------------------------------------------------------------------

    def run(self) -> Iterator[Report]:
        """Train to the end of the stream or the configured steps; yield what there is to report."""
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
            self.enter("training")
            yield from self._go_on()
            for phase in self.phases:
                yield from self.phases.begin(phase)
                for work in pipeline.over(self.phases.batches(phase)):
                    yield from self.step_within_memory(work)
                    yield from self.boundary()
                    if self.stop_requested:
                        break
                self.phases.end(phase)
            yield from self.phases.tell_rest()
            self.enter("finishing")
            yield from self.saving.written(wait=True)
            self.finite.settle()
            yield from self.last_report()
        except BaseException:
            self.enter("failed")
            raise
        finally:
            self.mailbox.close("the run has ended")
            self.saving.close()
            pipeline.close()
            self.observer.close()
            self.store.close()

    def step(self, work: ClassifiedBatch) -> None:
        """One mini-batch: plan, gather and execute, update, observe. Loading and classifying came before."""
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
        self.position, self.step_number = work.batch.position, self.step_number + 1

    def step_within_memory(self, work: ClassifiedBatch) -> Iterator[Report]:
        """A step. Where the device's memory is too small for it, the hot budget is made smaller first."""
        yield from self.control.before_step()
        while True:
            try:
                return self.step(work)
            except RuntimeError as error:  # before anything was updated
                on_device = self.device.type != "cpu" and is_out_of_memory(error)
                if not (on_device or isinstance(error, torch.OutOfMemoryError)):
                    raise
                reason = first_line(error)
            yield from self.control.give_up_memory(reason)

    def _go_on(self) -> Iterator[Report]:
        """What was still to come between two steps when the run was saved; knobs that are others now come first."""
        if self.told:
            yield self.control.change_at_start(self.told)
        yield from self.control.go_on()
        if self.window_due:
            yield from self.end_boundary()

    def checked(self) -> Iterator[Event]:
        yield from self.finite.events()

    def evaluated(self) -> Iterator[Evaluation]:
        every = self.config.eval.interval(self.steps_total)
        if every and self.step_number % every == 0:
            with self.recorder.paused(), self.during("evaluating"):
                evaluation = self.evaluate()
            if evaluation:
                yield evaluation

    # The verbs -------------------------------------------------------------------------------------------------------

    def plan(self, work: ClassifiedBatch, probe: bool) -> StepPlan:
        split = self.policy.tracks_popularity and self.splitting.at(self.step_number)
        stale_U = self.observer.stale_rows(work)
        view = BatchView(self.step_number, split, self.knobs, work, stale_U, self.random("plan"))
        return plan_step(self.policy, view, probe)

    def execute(self, work: ClassifiedBatch, plan: StepPlan) -> NDArray[np.int64]:
        """Forward and backward of every micro-batch; all read the same parameters. Returns each sample's line in the
        gradients, -1 for a sample that was skipped."""
        self.dense.begin_step()
        self._guarded.clear()
        position_B = np.full(work.batch.size, -1, dtype=np.int64)
        trained = 0
        for samples in plan.micro_batches:
            weight_S = np.ones(len(samples)) if plan.weight_B is None else plan.weight_B[samples]
            with self.times("gather"):
                micro = self.dense.inputs(len(samples))
                self.store.gather(work, samples, weight_S / work.batch.size, micro)
            with self.times("execute"):
                self.dense.run(micro)
            if plan.guard_B is not None and plan.guard_B[samples].any():
                losses_S = self.store.fetch_later(self.dense.losses_S)
                self._guarded.append((losses_S, np.flatnonzero(plan.guard_B[samples])))
            position_B[samples] = np.arange(trained, trained + len(samples))
            trained += len(samples)
        return position_B

    def update(self, work: ClassifiedBatch, plan: StepPlan, position_B: NDArray[np.int64], probe: bool) -> None:
        """One update of each distinct row, and one dense step. Where their numbers forbid it the batch is left out."""
        if not plan.micro_batches:
            self.store.release(work)
            return
        if not self.finite.passes(work, position_B, self.step_number + 1):
            self.store.release(work)
            self._guarded.clear()
            position_B[:] = -1
            return
        factor = schedule(self.config.optimizer, self.step_number)
        lr = self.config.optimizer.embedding_lr * factor
        gradients, number = self.dense.gradients(), self.step_number + 1
        self.store.apply(work, RowUpdate(gradients, position_B, plan.frozen_U, lr, number, measure=probe))
        try:
            self.dense.step(factor)
        except RuntimeError as error:  # rows are updated by now: the step cannot be made again
            if not is_out_of_memory(error):
                raise
            raise MemoryPlanError(f"{TOO_SMALL}: {first_line(error)}") from error

    def observe(self, work: ClassifiedBatch, probe: bool) -> None:
        if self.policy.tracks_popularity:
            self.observer.count_lookups(self.step_number, work, self.knobs)
        if probe and self.policy.tracks_movement:
            self.observer.keep_popular_samples(work)
        for losses_S, lines in self._guarded:
            self.reclassifier.guard.add(losses_S, lines)

    # Small things ----------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Batch]:
        """The stream from where the run stands, cut at the configured number of steps."""
        stream = self.source.train_batches(self.position, self.config.run.batch_size)
        steps = self.config.run.steps
        return islice(stream, max(0, steps - self.step_number)) if steps else stream

    def evaluate(self) -> Evaluation | None:
        """Score the model as it stands on the held-out range. None where a signal left no time for it."""
        held_out = self.source.test_batches(self.config.eval.batch_size, self.config.eval.max_samples)
        quality = evaluate(held_out, self.store, self.dense, lambda: self.hurried)
        if quality is None:
            return None
        self.last_evaluation = Evaluation(self.step_number, quality)
        return self.last_evaluation

    def losses(self) -> Fetched:
        return self.store.fetch_later(self.dense.loss_sum)

    def hurry(self) -> None:
        """Stop after the step and leave out what takes long: a signal came. May be called from a signal handler."""
        self.stop_requested = self.hurried = True

    @property
    def steps_total(self) -> int:
        """Steps this run will have made at its end; where its policy repacks the stream, at the most."""
        in_stream = self.source.epochs * -(-self.source.train_samples // self.config.run.batch_size)
        return max(self.step_number, min(in_stream, self.config.run.steps or in_stream) + self.phases.more_steps)
