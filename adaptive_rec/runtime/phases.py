"""The stream in phases: what happens where one phase of a policy that arranges it ends and the next begins.

A policy that does not arrange has one phase, the whole stream.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.dense.evaluate import evaluate
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import CheckpointError, TrainingError
from adaptive_rec.live.telemetry import Event
from adaptive_rec.placement import Migration
from adaptive_rec.policy import ArrangingPolicy, Outcome, Phase
from adaptive_rec.runtime.stream import ArrangedStream, Decision, Stretch, next_phase
from adaptive_rec.saved import ANY, Saved

if TYPE_CHECKING:
    from adaptive_rec.runtime.loop import Runtime

Arranged = Generator[Phase, Outcome, None]


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
        self._stretch: Stretch | None = None
        """What is trained under a policy that arranges; after a restart, what is gone on with."""
        self._decided: Decision | None = None
        """By which the present phase was decided on, until it begins."""
        self._placed = False
        """Whether the phase that is gone on with has its rows."""
        self._trained: int | Position | None = None
        """Batches that were trained before the run went on and come again: so many, or up to a position."""

    def check_resumable(self) -> None:
        """Raise where the run cannot go on from where a checkpoint left it."""
        if self.reordered and self._stretch is None:
            raise CheckpointError(
                "a run in the middle of a stream that its policy reorders goes on under that policy only; the checkpoint is "
                f"of step {self._runtime.step_number}, the policy {self._runtime.policy.name} is another"
            )

    def is_probe_step(self) -> bool:
        """Whether the present step skips nothing and measures movement: by dice, or as a policy that arranges says."""
        run = self._runtime
        if run.policy.exact or run.policy.arranges_stream:
            return self.measured
        return bool(run.random("probe").random() < run.knobs.probe_ratio)

    def __iter__(self) -> Iterator[Phase]:
        run, policy = self._runtime, self._runtime.policy
        if run.was_paused and run.stop_requested:  # while it waited to go on
            return
        while isinstance(policy, ArrangingPolicy) and not run.stop_requested and run.policy is policy:
            stretch = self._stretch
            yield from self._arranged(policy)
            if run.stop_requested or run.policy is not policy:
                break
            self._stretch = None
            if stretch is None or not policy.reorders_stream or (stretch.steps, stretch.epochs) == self._limits:
                return
        if not (policy.arranges_stream and run.stop_requested):
            self._stretch = self._trained = None
            self._placed = False
            yield Phase("stream", run.batches())  # from the beginning, or since the run went over to such a policy

    def _arranged(self, policy: ArrangingPolicy) -> Iterator[Phase]:
        """The phases of a stretch: the one that is gone on with, or all that is left."""
        run, again = self._runtime, self._stretch is not None
        self._stretch = stretch = self._stretch or self._new_stretch()
        if not policy.reorders_stream:  # begun anew at the present phase, so it may end where the run now does
            stretch.steps, stretch.epochs = self._limits
        limits = run.config.model_copy(update={"run": run.config.run.model_copy(update={"steps": stretch.steps})})
        stream = ArrangedStream(
            limits, run.source, run.store, stretch.position, stretch.steps_done, lambda: run.knobs,
            lambda: run.stop_requested, stretch.epochs,
        )  # fmt: skip
        if policy.reorders_stream and not again:
            self.more_steps = run.step_number - stretch.steps_done + len(stream.epochs)
        with run.times("arrange"):
            arranged = policy.arrange(stream)
            phase = self._find_again(arranged, stream) if again else self._decide(arranged, None)
        while phase is not None and not run.stop_requested and run.policy is policy:
            self.reordered = policy.reorders_stream
            yield phase
            with run.times("arrange"):
                phase = None if run.stop_requested else self._decide(arranged, self._outcome)
        arranged.close()
        if phase is not None or run.stop_requested:
            return
        if self._trained:
            raise CheckpointError(
                "the stream must hold the batches that were trained before the run went on, it ended first"
            )
        if policy.reorders_stream:
            run.position, self.reordered = stream.end, False
            if (stretch.steps, stretch.epochs) == self._limits:
                self.more_steps += run.step_number - run.steps_total

    @property
    def _limits(self) -> tuple[int, int]:
        return self._runtime.config.run.steps, self._runtime.source.epochs

    def _new_stretch(self) -> Stretch:
        run, position, steps_done = self._runtime, self._runtime.position, self._runtime.step_number
        if run.policy.reorders_stream:  # of an earlier stretch it may have made a step more than plain training would
            samples = run.source.train_samples, position.offset
            epoch, part = (-(-count // run.config.run.batch_size) for count in samples)
            steps_done = position.epoch * epoch + part
        return Stretch(position, steps_done, *self._limits, run.config.run.batch_size, run.config.policy.model_dump())

    def _decide(self, arranged: Arranged, outcome: Outcome | None) -> Phase | None:
        run = self._runtime
        self._decided = Decision(run.knobs, list(run.store.device.capacities), outcome)
        return next_phase(arranged, outcome)

    def _find_again(self, arranged: Arranged, stream: ArrangedStream) -> Phase | None:
        """Let the phases pass that are over, as they were decided on, up to the one that is gone on with."""
        run, phase = self._runtime, None
        assert self._stretch is not None
        for decision in self._stretch.decisions:
            for _ in phase.batches if phase is not None else ():
                if run.stop_requested:
                    return None
            stream.told = decision
            phase = next_phase(arranged, decision.outcome)
            if phase is None:
                raise CheckpointError(
                    f"policy {run.policy.name} must arrange a stream as it did before, it has fewer phases"
                )
        stream.told = None
        return phase

    def _note_down(self, decided: Decision, stretch: Stretch) -> None:
        """A phase begins: what it takes to find it again."""
        run = self._runtime
        if run.policy.reorders_stream:
            stretch.decisions.append(decided)
        else:
            stretch.position, stretch.steps_done = run.position, run.step_number
            stretch.decisions = [replace(decided, outcome=None)]
        stretch.phase_began, stretch.ended, self._decided = run.step_number, False, None

    def begin(self, phase: Phase) -> Iterator[Event]:
        """Place the rows that a phase lists; begin to measure where it is measured."""
        run = self._runtime
        if self._decided is not None and self._stretch is not None:
            self._note_down(self._decided, self._stretch)
        if self._placed:
            self._placed, self.measured = False, phase.measured
            return
        if phase.note:
            yield Event(run.step_number, "arranged", phase.note, {"phase": phase.name, **phase.details})
        if phase.hot_rows is not None:
            with run.times("reclassify"):
                moved = run.reclassifier.place_listed(phase.hot_rows, phase.others_stay)
            yield from self._tell(phase, moved)
        else:
            yield from self.tell_rest()
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
            if not batch.size:
                self._tails.append(batch)
            elif not self._was_trained(batch):
                yield batch

    def _was_trained(self, batch: Batch) -> bool:
        """Whether a batch was trained before the run went on."""
        trained = self._trained
        if isinstance(trained, int):
            self._trained = trained - 1 if trained > 1 else None
        elif trained is not None and batch.position == trained:
            self._trained = None
        return trained is not None

    def end(self, phase: Phase) -> None:
        """Find out what the phase came to."""
        run = self._runtime
        self.measured = False
        if run.stop_requested:
            return
        if isinstance(self._trained, int):
            raise CheckpointError(f"phase {phase.name} must hold {self._trained} more batches that were trained before")
        counted = self._stretch is not None and self._stretch.ended
        for tail in () if counted else self._tails:
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
        if self._stretch is not None:
            self._stretch.ended = True

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        going = self._stretch is not None and bool(self._stretch.decisions) and self._runtime.policy.arranges_stream
        nothing, (phase, step) = np.empty(0, dtype=np.int64), self._told
        return {
            "reordered": self.reordered,
            "more_steps": self.more_steps,
            "stretch": self._stretch.state() if going and self._stretch is not None else None,
            "told": {"phase": phase, "step": step},
            "untold": {
                "promote": np.concatenate([nothing, *(moved.promote for moved in self._untold)]),
                "demote": np.concatenate([nothing, *(moved.demote for moved in self._untold)]),
            },
        }

    def set_state(self, found: Saved, placed: bool) -> None:
        """Step and position of the run are known. `placed` says that hot rows are where they were."""
        self.reordered, self.more_steps = found.flag("reordered"), found.integer("more_steps")
        told, untold, stretch = found.part("told"), found.part("untold"), found.maybe("stretch")
        self._told = told.text("phase"), told.integer("step")
        moved = Migration(untold.array("promote", np.int64, ANY), untold.array("demote", np.int64, ANY))
        self._untold = [moved] if moved.moved_rows else []
        if stretch is not None:
            self._go_on_with(Stretch.of(stretch, len(self._runtime.store.space.pools)), placed)

    def _go_on_with(self, stretch: Stretch, placed: bool) -> None:
        run = self._runtime
        for name, was, now in (
            ("run.batch_size", stretch.samples, run.config.run.batch_size),
            ("the section policy", stretch.options, run.config.policy.model_dump()),
        ):
            if was == now:
                continue
            if self.reordered:
                raise CheckpointError(f"{name} must stay in the middle of a stream that is reordered, {was}, got {now}")
            return  # the policy begins anew where the reader stands
        self._stretch, self._placed = stretch, placed
        if trained := run.step_number - stretch.phase_began:
            self._trained = trained if run.policy.reorders_stream else run.position


def _movement(store: EmbeddingStore) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """All hot rows and how far each moved since measuring began."""
    rows, moved = [], []
    for pool, row_of_slot in enumerate(store.device.row_of_slot):
        hot = row_of_slot >= 0
        rows.append(row_of_slot[hot])
        moved.append(store.movement(pool).max_abs_H[hot])
    return np.concatenate(rows), np.concatenate(moved)
