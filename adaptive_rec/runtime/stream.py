"""A policy's view of the stream it arranges, and the decisions that a resumed run needs to arrange it again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptive_rec.batch import Batch, Position, take
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source, saved_position
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import CheckpointError
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import Outcome, Phase
from adaptive_rec.policy.batches import check_against_space
from adaptive_rec.saved import ANY, Saved, parts_by_number
from adaptive_rec.state.run_state import RunState
from adaptive_rec.state.saved_run import read_knobs

if TYPE_CHECKING:
    from adaptive_rec.data.raw.raw_ids import RawIds


@dataclass(frozen=True)
class Decision:
    """The inputs of a policy's decision on a phase: knobs, slots and the outcome of the phase before."""

    knobs: Knobs
    slots: list[int]
    outcome: Outcome | None
    """The outcome of the phase before; None at first."""

    def state(self, before: Decision | None) -> dict[str, Any]:
        """Knobs are saved only where they differ from those of the decision before."""
        outcome = self.outcome
        return {
            "knobs": self.knobs.model_dump() if before is None or self.knobs != before.knobs else None,
            "slots": np.array(self.slots, dtype=np.int64),
            "outcome": outcome
            and {
                "loss": {"logloss": outcome.logloss} if outcome.logloss is not None else None,
                "rows": outcome.rows,
                "movement": outcome.movement,
            },
        }

    @staticmethod
    def of(found: Saved, before: Decision | None, pools: int) -> Decision:
        values, outcome = found.maybe("knobs"), found.maybe("outcome")
        if values is None and before is None:
            raise CheckpointError("knobs of the first phase must be there, are not")
        knobs = read_knobs(values) if values is not None else before.knobs  # type: ignore[union-attr]
        slots = found.array("slots", np.int64, pools).tolist()
        if outcome is None:
            return Decision(knobs, slots, None)
        loss, rows = outcome.maybe("loss"), outcome.array("rows", np.int64, ANY)
        movement = outcome.array("movement", np.float64, len(rows))
        return Decision(knobs, slots, Outcome(None if loss is None else loss.number("logloss"), rows, movement))


@dataclass
class Stretch:
    """A stretch of the stream that a policy arranges, and how far it was trained, for a run that resumes in its middle."""

    position: Position
    """The reader's position at its start; where the source's order is kept, at the start of the present phase."""
    steps_done: int
    """Steps that plain training makes up to that position."""
    steps: int
    """`run.steps` when it started."""
    epochs: int
    samples: int
    """Samples of a batch."""
    options: Mapping[str, Any]
    """The section `policy` of the configuration."""
    decisions: list[Decision] = field(default_factory=list)
    """One for each phase that has started."""
    phase_began: int = 0
    """Step at which the present phase started."""
    ended: bool = False
    """Whether the present phase has ended and its skipped samples are counted: a signal came before the next phase."""

    def add_phase(self, decision: Decision, step: int) -> None:
        """Add a phase that begins now."""
        self.decisions.append(decision)
        self.phase_began, self.ended = step, False

    def start_at(self, position: Position, decision: Decision, step: int) -> None:
        """Move the start to a phase that begins now; earlier phases need not be found again."""
        self.position, self.steps_done, self.decisions = position, step, [decision]
        self.phase_began, self.ended = step, False

    def set_limits(self, steps: int, epochs: int) -> None:
        """Set the end of the stretch to that of the run."""
        self.steps, self.epochs = steps, epochs

    def end(self) -> None:
        """End the present phase."""
        self.ended = True

    def state(self) -> dict[str, Any]:
        before = [None, *self.decisions]
        return {
            "position": asdict(self.position),
            "steps_done": self.steps_done,
            "steps": self.steps,
            "epochs": self.epochs,
            "samples": self.samples,
            "options": dict(self.options),
            "decisions": parts_by_number(each.state(last) for each, last in zip(self.decisions, before, strict=False)),
            "phase_began": self.phase_began,
            "ended": self.ended,
        }

    @staticmethod
    def of(found: Saved, pools: int) -> Stretch:
        position = saved_position(found.part("position"))
        steps_done, steps, epochs, samples = (
            found.integer(name) for name in ("steps_done", "steps", "epochs", "samples")
        )
        stretch = Stretch(position, steps_done, steps, epochs, samples, found.part("options").everything())
        stretch.phase_began, stretch.ended = found.integer("phase_began"), found.flag("ended")
        for part in found.parts("decisions"):
            stretch.decisions.append(Decision.of(part, stretch.decisions[-1] if stretch.decisions else None, pools))
        return stretch


def batches_left(state: RunState, source: Source) -> Iterator[Batch]:
    """Return the rest of the stream, up to the configured number of steps, or that of the validation slice."""
    steps, stream = state.config.run.steps, source.train_batches(state.position, state.config.run.batch_size)
    return islice(stream, max(0, steps - state.step)) if steps and not state.position.on_slice else stream


class StreamStopped(Exception):
    """The run is to stop while a policy reads the stream. What the policy has gathered by then must not become a batch: the run
    that resumes would not make it."""


class ArrangedStream:
    """The stream from a position to the end of a run, as a `policy.StreamView`."""

    def __init__(
        self,
        config: Config,
        source: Source,
        space: RowSpace,
        position: Position,
        steps_done: int,
        knobs: Callable[[], Knobs],
        slots: Callable[[], list[int]],
        stopped: Callable[[], bool] = lambda: False,
        epochs: int | None = None,
    ) -> None:
        """The stream ends with `config.run.steps`, or after `epochs` where the source has more. `slots`: how many rows of each
        pool may be hot."""
        self.space = space
        self.batch_size = config.run.batch_size
        self.seed = config.run.seed
        self.options = config.policy
        self._decision: Decision | None = None
        """The earlier decision that is being repeated; None outside of a resume."""
        self._knobs = knobs
        self._source = source
        self._slots = slots
        self._begin = position
        self._stopped = stopped
        self._steps = max(0, config.run.steps - steps_done) if config.run.steps else None
        self._last_epoch = source.epochs if epochs is None else min(source.epochs, epochs)
        self._samples = dict(self._cut())
        self.epochs = range(position.epoch, position.epoch + len(self._samples))

    def _cut(self) -> Iterator[tuple[int, int]]:
        """Yield each epoch to come with its samples, as far as the run's steps reach in the source's order."""
        steps = self._steps
        for epoch in range(self._begin.epoch, self._last_epoch):
            samples = self._source.train_samples - (self._begin.offset if epoch == self._begin.epoch else 0)
            if steps is not None:
                samples = min(samples, steps * self.batch_size)
                steps -= -(-samples // self.batch_size)
            if samples:
                yield epoch, samples

    @property
    def end(self) -> Position:
        """The reader's position after the last batch."""
        if not self._samples:
            return self._begin
        last = max(self._samples)
        offset = self._samples[last] + (self._begin.offset if last == self._begin.epoch else 0)
        if offset < self._source.train_samples:
            return Position(last, self._begin.seed, offset)
        return Position(last + 1, self._begin.seed, 0)

    def decide_as(self, decision: Decision | None) -> None:
        """Show a policy the knobs and slots of an earlier decision; None shows them as they are now."""
        self._decision = decision

    def knobs(self) -> Knobs:
        return self._knobs() if self._decision is None else self._decision.knobs

    def slots(self, pool: int) -> int:
        return (self._slots() if self._decision is None else self._decision.slots)[pool]

    def samples(self, epoch: int) -> int:
        return self._samples[epoch]

    def read(self, epoch: int, batch_size: int | None = None) -> Iterator[Batch]:
        left = self._samples[epoch]
        begin = self._begin if epoch == self._begin.epoch else Position(epoch, self._begin.seed, 0)
        for batch in self._source.train_batches(begin, batch_size or self.batch_size):
            check_against_space(batch, self.space)
            yield batch if batch.size <= left else take(batch, np.arange(left))
            left -= batch.size
            if left <= 0:
                return
            self._check_goes_on()

    def each_sample(self) -> Iterator[Batch]:
        """Read the first epochs until every sample of the source has come that the run trains."""
        for epoch in self.epochs:
            yield from self.read(epoch)
            if self._samples[epoch] == self._source.train_samples:
                return

    def rest(self) -> Iterator[Batch]:
        left = self._steps
        for batch in self._source.train_batches(self._begin, self.batch_size) if self._samples else ():
            yield check_against_space(batch, self.space)
            left = left if left is None else left - 1
            if left == 0 or batch.position.epoch >= self._last_epoch:
                return
            self._check_goes_on()

    def _check_goes_on(self) -> None:
        if self._stopped():
            raise StreamStopped


def give_rows(stream: ArrangedStream, raw_ids: RawIds | None, store: EmbeddingStore) -> bool:
    """Read a stream whose ids are raw once, in the source's order, before a policy reads it in others: so ids have the rows that
    they get, and later epochs, which repeat the samples, need no reading. Returns whether that is done; a run that is to stop
    goes on from there after it has resumed."""
    if raw_ids is None or raw_ids.is_settled(stream.end):
        return True
    try:
        for batch in stream.each_sample():
            raw_ids.settle_to(batch.position)
            store.contents.finish_draws()
    except StreamStopped:
        return False
    raw_ids.settle_to(stream.end)
    return True


def next_phase(arranged: Generator[Phase, Outcome, None], outcome: Outcome | None) -> Phase | None:
    """Return the next phase, None after the last one or where the run is to stop."""
    try:
        return next(arranged) if outcome is None else arranged.send(outcome)
    except (StopIteration, StreamStopped):
        return None
