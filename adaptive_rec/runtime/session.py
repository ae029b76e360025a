"""What is learnt, steered and told between two steps, whoever makes the steps: `runtime.py`'s loop, or a loop of the user's own.

The verbs of a boundary stand in `boundary`, in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import numpy as np

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import Config
from adaptive_rec.dense.evaluate import Evaluation
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.live.mailbox import Mailbox
from adaptive_rec.live.telemetry import Event, Recorder, Snapshot, StageTimes
from adaptive_rec.policy import Policy
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.reclassify.window import Reclassifier
from adaptive_rec.runtime.checkpoints import Checkpoints
from adaptive_rec.runtime.control import Control, check_policy
from adaptive_rec.runtime.publish import Publisher
from adaptive_rec.runtime.reports import Reports
from adaptive_rec.runtime.splitting import Splitting
from adaptive_rec.runtime.tally import Tally

Report = Snapshot | Evaluation | Event


class Session(ABC):
    """Training under a policy. Only the thread that trains changes anything; others use the mailbox."""

    ends_on_bad_loss = True
    """Whether a loss that is no number ends training."""

    def __init__(self, config: Config, policy: Policy, store: EmbeddingStore) -> None:
        self.config = config
        self.knobs: Knobs = config.knobs
        self.policy = policy
        self.store = store
        self.device = store.torch_device
        self.splitting = Splitting(config.run.split, on_device=self.device.type != "cpu")
        self.times = StageTimes()
        self.observer = Observer(store, config.run.seed, self.times)
        self.reclassifier = Reclassifier(policy, store, self.observer)
        self.mailbox = Mailbox(self.knobs, self.check_knobs)
        self.control = Control(self)
        self.saving: Checkpoints | None = None
        """Checkpoints of a run; a loop of the user's own saves by itself."""
        self.publisher = Publisher(self)
        self.tally = Tally(store.space)
        self.recorder = Recorder()
        self.reports = Reports(self)
        self.step_number = 0
        self.knobs_step = 0
        """The step at which the knobs last changed."""
        self.phase = "starting"
        self.begun = False
        """Whether rows are placed: a run that goes on has them where they were."""
        self.window_due = False
        """Whether the boundary under way has its windows' ends to come: a run that is saved here goes on with them."""
        self.was_paused = False
        """Whether a run that goes on was paused when it was saved."""
        self.last_evaluation: Evaluation | None = None
        self.changes = 0
        """Commands carried out that changed something, and the knobs with them."""
        self.unsaid: list[str] = []
        """Complaints that no event has told of."""
        self.stop_requested = False

    # Who makes the steps says ----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def steps_total(self) -> int:
        """Steps there will have been at the end, as far as is known."""

    @abstractmethod
    def losses(self) -> Fetched:
        """Sum of the losses of all samples so far, as it comes from the device; no number where none are told."""

    def check_knobs(self, before: Knobs, after: Knobs) -> None:
        """Raise ConfigError or ConflictError where training cannot go over to other knobs. Any thread asks."""
        if after.policy != before.policy:
            check_policy(after, self.policy)

    def checked(self) -> Iterator[Event]:
        """What became of checks that were made since the last boundary."""
        yield from ()

    def evaluated(self) -> Iterator[Evaluation]:
        """An evaluation, where one is due."""
        yield from ()

    # Between two steps -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Place rows before the first step, where they are not placed already."""
        if not self.begun:
            self.reclassifier.begin(self.step_number, self.knobs)
            self.begun = True
        self.publisher.placement()
        self.recorder.start(self.totals())

    def boundary(self) -> Iterator[Report]:
        """Commands, a new placement, something to report."""
        self.window_due = True
        self.publisher.pulse()
        yield from self.reports.finish(wait=False)
        for text in self.complaints():
            yield Event(self.step_number, "warning", text)
        yield from self.checked()
        if outcome := self.splitting.after_step(self.step_number, self.recorder.seconds):
            yield self.control.split_chosen(outcome)
        yield from self.control.obey()
        if self.saving is not None:
            yield from self.saving.when_due()
        yield from self.end_boundary()

    def end_boundary(self) -> Iterator[Report]:
        """The windows' ends, and what follows from them."""
        if self.reclassifier.end_tick(self.step_number, self.knobs):
            yield from self._end_tick()
        if self.reclassifier.window_ends(self.step_number, self.knobs):
            with self.times("reclassify"):
                moved = self.reclassifier.end_window(self.step_number, self.knobs, self.counts())
                self.publisher.placement()
            if self.policy.tracks_popularity:
                yield self.control.reclassified(moved)
                if not self.reclassifier.window.first:
                    self.splitting.begin_trial(self.step_number)
        self.window_due = False
        if self.step_number % self.knobs.report_every == 0:
            yield from self.reports.finish(wait=True)
            self.reports.begin()
            yield from self.reports.finish(wait=False)
        yield from self.evaluated()

    def _end_tick(self) -> Iterator[Report]:
        with self.times("reclassify"):
            change = self.reclassifier.adapt_memory(self.knobs)
            verdict = self.reclassifier.judge_quality(self.knobs)
        if verdict:
            yield Event(self.step_number, "guard", verdict.reason, {"keep_probability": verdict.keep_probability})
        if change:
            yield Event(self.step_number, "memory", str(change), asdict(change))

    def last_report(self) -> Iterator[Report]:
        """What was not told yet, at the end."""
        self.observer.settle()
        yield from self.reports.finish(wait=True)
        if self.tally.counters.steps > self.recorder.steps_told:
            self.reports.begin()
            yield from self.reports.finish(wait=True)

    # Small things ----------------------------------------------------------------------------------------------------

    def complaints(self) -> list[str]:
        """What the user is to be told that was not told before."""
        told, self.unsaid = [*self.store.complaints(), *self.unsaid], []
        return told

    def enter(self, phase: str) -> None:
        """Tell what the run is at: starting, training, paused, evaluating, checkpointing, finishing, finished, failed."""
        self.phase = phase
        self.publisher.pulse()
        self.publisher.board()

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        before = self.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def counts(self) -> dict[str, float]:
        """What the run has done, as far as the host knows."""
        return {**asdict(self.tally.counters), **asdict(self.store.traffic)}

    def totals(self) -> dict[str, float]:
        """The same with the sum of all losses, which is waited for."""
        return {**self.counts(), "loss_sum": float(self.losses().array())}

    def random(self, purpose: str) -> np.random.Generator:
        """Dice of their own for each seed, step and purpose (its first eight letters)."""
        key = [self.config.run.seed, int.from_bytes(purpose.encode()[:8], "little")]
        return np.random.Generator(np.random.Philox(counter=[0, self.step_number, 0, 0], key=key))
