"""The phases of a stream: a policy that arranges the stream decides on them one by one.

For other policies the whole stream is one phase.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.data.source import Source
from adaptive_rec.data.weights import weights_of
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import CheckpointError, TrainingError
from adaptive_rec.live.telemetry import Event
from adaptive_rec.placement import Migration
from adaptive_rec.policy import ArrangingPolicy, Outcome, Phase
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.reclassify.window import Reclassifier
from adaptive_rec.runtime.evaluator import Evaluator
from adaptive_rec.runtime.events import reclassified
from adaptive_rec.runtime.parts import parts_of, whole_of
from adaptive_rec.runtime.publish import Publisher
from adaptive_rec.runtime.stream import (
    ArrangedStream,
    Decision,
    StreamStopped,
    Stretch,
    batches_left,
    give_rows,
    next_phase,
)
from adaptive_rec.saved import ANY, Saved
from adaptive_rec.state.run_state import RunState

Arranged = Generator[Phase, Outcome, None]
Work = TypeVar("Work")


class Phases:
    """The source of a run's steps: `works` iterates over all phases. The training thread alone calls it."""

    def __init__(
        self,
        state: RunState,
        source: Source,
        observer: Observer,
        reclassifier: Reclassifier,
        publisher: Publisher,
        evaluator: Evaluator,
    ) -> None:
        self._state = state
        self._source = source
        self._has_weights = weights_of(source) is not None
        self._observer = observer
        self._reclassifier = reclassifier
        self._publisher = publisher
        self._evaluator = evaluator
        # in each epoch, both hot and cold samples may end with a smaller batch
        state.exceed_by(source.epochs if state.policy.reorders_stream else 0)
        self._begun: list[Event] = []
        """Reports of phases that have begun, for the next step boundary to report."""
        self.measured = False
        """Whether all steps of the present phase are probe steps."""
        self.reordered = False
        """Whether the run is within a reordered stream, where the reader's position does not show which samples were trained."""
        self._outcome = Outcome()
        self._reported: tuple[str, int] = "", 0
        """Name and step of the phase whose moved rows the journal reported last."""
        self._unreported: list[Migration] = []
        self._tails: list[Batch] = []
        self._stretch: Stretch | None = None
        """The part of the stream that is being arranged; after a resume, the one that was when the run was saved."""
        self._decided: Decision | None = None
        """The inputs of the policy's decision on the next phase, until that phase begins."""
        self._placed = False
        """Whether the rows of the resumed phase are placed already."""
        self._trained: int | Position | None = None
        """What to leave out after a resume because it was trained before: a number of batches, or all up to a position."""

    def check_resumable(self) -> None:
        """Raise CheckpointError where the run cannot resume from where a checkpoint left it."""
        if self.reordered and self._stretch is None:
            raise CheckpointError(
                "knobs.policy must stay what it was in the middle of a stream that a policy reorders (checkpoint of step "
                f"{self._state.step}), got {self._state.policy.name}"
            )

    def leave_stretch(self) -> None:
        """Leave the stream that a policy arranges: what comes is read in its order."""
        self._stretch = self._trained = None
        self.reordered = self._placed = False

    def is_probe_step(self) -> bool:
        """Return whether the present step skips nothing and measures movement: by chance, or as the phase says."""
        state = self._state
        if state.policy.exact or state.policy.arranges_stream:
            return self.measured
        return bool(state.random("probe").random() < state.knobs.probe_ratio)

    def works(self, classified: Callable[[Iterator[Batch]], Iterator[Work]]) -> Iterator[Work]:
        """Iterate over what `classified` makes of the batches of one phase after another. Rows are placed where a phase
        begins."""
        for phase in self:
            self._begun += self._begin(phase)
            yield from classified(self._batches(phase))
            self._end(phase)

    def take_reports(self) -> list[Event]:
        """Return, once, what is to be reported of the phases that have begun."""
        reports, self._begun = self._begun, []
        return reports

    def __iter__(self) -> Iterator[Phase]:
        state, policy = self._state, self._state.policy
        on_slice = state.position.on_slice
        if (state.stopped_early and not on_slice) or (state.saved_paused and state.stop_requested):  # while it waited to resume
            return
        while not on_slice and isinstance(policy, ArrangingPolicy) and not state.stop_requested and state.policy is policy:
            stretch = self._stretch
            yield from self._arranged(policy)
            if state.stop_requested or state.policy is not policy:
                break
            self._stretch = None
            if stretch is None or not policy.reorders_stream or (stretch.steps, stretch.epochs) == self._limits:
                return
        if not (policy.arranges_stream and state.stop_requested):
            self._stretch = self._trained = None
            self._placed = False
            yield Phase("stream", batches_left(state, self._source))  # from the start, or since the policy changed

    def _arranged(self, policy: ArrangingPolicy) -> Iterator[Phase]:
        """The phases of a stretch: the resumed one, or all that is left of the stream."""
        state, again = self._state, self._stretch is not None
        self._stretch = stretch = self._stretch or self._new_stretch()
        if not policy.reorders_stream:  # it starts at the present phase, so it may end where the run now does
            stretch.set_limits(*self._limits)
        limits = state.config.model_copy(update={"run": state.config.run.model_copy(update={"steps": stretch.steps})})
        stream = ArrangedStream(
            limits, whole_of(self._source), state.store.peers.batch_space, stretch.position, stretch.steps_done,
            lambda: state.knobs, self._slots, self._stops_reading, stretch.epochs,
        )  # fmt: skip
        if policy.reorders_stream and not again:
            state.exceed_by(state.step - stretch.steps_done + len(stream.epochs))
        with state.times("arrange"):
            if policy.reorders_stream and not give_rows(stream, state.input.raw_ids, state.store):
                return
            arranged = policy.arrange(stream)
            phase = self._find_again(arranged, stream) if again else self._decide(arranged, None)
        while phase is not None and not state.stop_requested and state.policy is policy:
            self.reordered = policy.reorders_stream
            yield self._of_rank(phase)
            with state.times("arrange"):
                phase = None if state.stop_requested else self._decide(arranged, self._outcome)
        arranged.close()
        if phase is not None or state.stop_requested:
            return
        if self._trained:
            raise CheckpointError(
                "the stream must hold the batches that were trained before the run went on, it ended first"
            )
        if policy.reorders_stream:
            state.move_to(stream.end)
            self.reordered = False
            if (stretch.steps, stretch.epochs) == self._limits:
                state.end_here()

    def _stops_reading(self) -> bool:
        """Whether readers are to end at once. Those of several processes read all batches that are under way, as they are staged
        together."""
        return self._state.stop_requested and self._state.store.group.is_alone

    def _of_rank(self, phase: Phase) -> Phase:
        """Return a phase of whole batches with this process's parts of them, and its own ones of the rows that are listed."""
        rows = None if phase.hot_rows is None else self._state.store.peers.owned(phase.hot_rows)[1]
        return replace(phase, batches=parts_of(self._source, phase.batches), hot_rows=rows)

    @property
    def _limits(self) -> tuple[int, int]:
        return self._state.config.run.steps, self._source.epochs

    def _new_stretch(self) -> Stretch:
        state, position, steps_done = self._state, self._state.position, self._state.step
        if state.policy.reorders_stream:  # an earlier stretch may have made more steps than plain training would
            samples = self._source.train_samples, position.offset
            epoch, part = (-(-count // state.config.run.batch_size) for count in samples)
            steps_done = position.epoch * epoch + part
        return Stretch(
            position, steps_done, *self._limits, state.config.run.batch_size, state.config.policy.model_dump()
        )

    def _decide(self, arranged: Arranged, outcome: Outcome | None) -> Phase | None:
        self._decided = Decision(self._state.knobs, self._slots(), outcome)
        return next_phase(arranged, outcome)

    def _slots(self) -> list[int]:
        """Return how many rows of each pool may be hot, in all processes together."""
        return self._state.store.peers.capacities(self._state.budget_bytes)

    def _find_again(self, arranged: Arranged, stream: ArrangedStream) -> Phase | None:
        """Return the resumed phase. The phases before it are repeated without training, with the same decisions."""
        state, phase = self._state, None
        assert self._stretch is not None
        for decision in self._stretch.decisions:
            with suppress(StreamStopped):
                for _ in phase.batches if phase is not None else ():
                    pass
            if state.stop_requested:
                return None
            stream.decide_as(decision)
            phase = next_phase(arranged, decision.outcome)
            if phase is None:
                raise CheckpointError(
                    f"policy {state.policy.name} must arrange a stream as it did before, it has fewer phases"
                )
        stream.decide_as(None)
        return phase

    def _record(self, decided: Decision, stretch: Stretch) -> None:
        """Record the decision on the phase that begins now, to find it again after a resume."""
        state = self._state
        if state.policy.reorders_stream:
            stretch.add_phase(decided, state.step)
        else:
            stretch.start_at(state.position, replace(decided, outcome=None), state.step)
        self._decided = None

    def _begin(self, phase: Phase) -> Iterator[Event]:
        """Place the rows that a phase lists, and start to measure movement if it is measured."""
        state = self._state
        if self._decided is not None and self._stretch is not None:
            self._record(self._decided, self._stretch)
        if self._placed:
            self._placed, self.measured = False, phase.measured
            return
        if phase.note:
            yield Event(state.step, "arranged", phase.note, {"phase": phase.name, **phase.details})
        if phase.hot_rows is not None:
            with state.times("reclassify"):
                state.store.contents.finish_draws()
                moved = self._reclassifier.place_listed(phase.hot_rows, phase.others_stay)
                state.input.note_placed()
            yield from self._report(phase, moved)
        else:
            yield from self.report_moves()
        self.measured = phase.measured
        if phase.measured:
            if not state.policy.tracks_movement:
                raise TrainingError(
                    f"tracks_movement of policy {state.policy.name} must be set where a phase is measured, is not"
                )
            self._observer.begin_measuring()

    def _report(self, phase: Phase, moved: Migration) -> Iterator[Event]:
        """Report moved rows: at once where a phase of another name begins, otherwise a window's migrations together."""
        name, step = self._reported
        if moved.moved_rows:
            self._unreported.append(moved)
        if phase.name != name or self._state.step - step >= self._state.knobs.reclassify_every:
            yield from self.report_moves(phase.name)

    def report_moves(self, phase: str = "") -> Iterator[Event]:
        """Report moved rows that were not reported yet; at a run's end under the last phase's name. Ranks call it together."""
        if self._state.store.group.any_true(bool(self._unreported)):
            self._reported = phase or self._reported[0], self._state.step
            self._publisher.placement()
            yield reclassified(self._state, self._reclassifier, *self._unreported, phase=self._reported[0])
            self._unreported.clear()

    def _batches(self, phase: Phase) -> Iterator[Batch]:
        """Yield the phase's batches; those without samples are kept for `_end`. Runs on the reader's thread."""
        with suppress(StreamStopped):
            for batch in phase.batches:
                if not batch.samples_of_all_ranks:
                    self._tails.append(batch)
                elif not self._was_trained(batch):
                    self._check_weights(batch)
                    yield batch

    def _check_weights(self, batch: Batch) -> None:
        """Raise TrainingError where a policy has made a batch without the weights of its samples."""
        if self._has_weights and batch.weights_B is None:
            raise TrainingError(
                f"batches of policy {self._state.policy.name} must keep the weights of samples, weights_B, got none; "
                "adaptive_rec.policy.batches takes, joins and repacks samples with all that they have"
            )

    def _was_trained(self, batch: Batch) -> bool:
        """Whether a batch was trained before the run was saved."""
        trained = self._trained
        if isinstance(trained, int):
            self._trained = trained - 1 if trained > 1 else None
        elif trained is not None and batch.position == trained:
            self._trained = None
        return trained is not None

    def _end(self, phase: Phase) -> None:
        """Find the outcome of a phase, for the policy's next decision."""
        state = self._state
        self.measured = False
        if state.stop_requested:
            return
        if isinstance(self._trained, int):
            raise CheckpointError(f"phase {phase.name} must hold {self._trained} more batches that were trained before")
        counted = self._stretch is not None and self._stretch.ended
        for tail in () if counted else self._tails:
            state.tally.add_skipped(tail.skipped_samples, tail.malformed_rows)
        self._tails.clear()
        logloss = self._evaluator.phase_logloss() if phase.evaluated else None
        kept = phase.measured and state.store.hot.monitored  # unless the policy changed to one that keeps no record
        self._outcome = Outcome(logloss, *(_movement(state.store) if kept else ()))
        if self._stretch is not None:
            self._stretch.end()

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        going = self._stretch is not None and bool(self._stretch.decisions) and self._state.policy.arranges_stream
        nothing, (phase, step) = np.empty(0, dtype=np.int64), self._reported
        return {
            "reordered": self.reordered,
            "more_steps": self._state.more_steps,
            "stretch": self._stretch.state() if going and self._stretch is not None else None,
            "told": {"phase": phase, "step": step},
            "untold": {
                "promote": np.concatenate([nothing, *(moved.promote for moved in self._unreported)]),
                "demote": np.concatenate([nothing, *(moved.demote for moved in self._unreported)]),
            },
        }

    def set_state(self, found: Saved, placed: bool) -> None:
        """Restore the saved state, after the run's step and position. `placed` says that hot rows are in their slots."""
        self.set_order(found)
        self._state.exceed_by(found.integer("more_steps"))
        reported, unreported, stretch = found.part("told"), found.part("untold"), found.maybe("stretch")
        self._reported = reported.text("phase"), reported.integer("step")
        moved = Migration(unreported.array("promote", np.int64, ANY), unreported.array("demote", np.int64, ANY))
        self._unreported = [moved] if moved.moved_rows else []
        if stretch is not None:
            self._resume(Stretch.of(stretch, len(self._state.store.space.pools)), placed)

    def set_order(self, found: Saved) -> None:
        """Restore only whether the run was in the middle of a reordered stream."""
        self.reordered = found.flag("reordered")

    def _resume(self, stretch: Stretch, placed: bool) -> None:
        state = self._state
        for name, was, now in (
            ("run.batch_size", stretch.samples, state.config.run.batch_size),
            ("the section policy", stretch.options, state.config.policy.model_dump()),
        ):
            if was == now:
                continue
            if self.reordered:
                raise CheckpointError(f"{name} must stay in the middle of a stream that is reordered, {was}, got {now}")
            return  # the policy starts again at the reader's position
        self._stretch, self._placed = stretch, placed
        if trained := state.step - stretch.phase_began:
            self._trained = trained if state.policy.reorders_stream else state.position


def _movement(store: EmbeddingStore) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return all hot rows, those of other ranks too, and the movement of each since measuring began. Ranks call it together."""
    rows, moved = [], []
    for pool, row_of_slot in enumerate(store.hot.tier.row_of_slot):
        hot = row_of_slot >= 0
        rows.append(row_of_slot[hot])
        moved.append(store.hot.movement(pool).max_abs_H[hot])
    joint = store.peers.joint_rows(np.concatenate(rows))
    return store.group.everyone(joint), store.group.everyone(np.concatenate(moved))
