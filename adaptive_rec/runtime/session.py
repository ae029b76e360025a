"""The work between two steps, of the loop in `loop.py` or of a user's training loop.

`boundary` has the verbs in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import Config
from adaptive_rec.embedding.optimizer import LearningRates
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import ConfigError, not_pickled
from adaptive_rec.live.mailbox import Mailbox
from adaptive_rec.live.recorder import Recorder
from adaptive_rec.live.telemetry import Evaluation, Event, Snapshot, StageTimes
from adaptive_rec.policy import Policy
from adaptive_rec.reclassify.observer import Observer, tracked_slots
from adaptive_rec.reclassify.tally import Tally
from adaptive_rec.reclassify.window import Reclassifier
from adaptive_rec.runtime.checkpoints import Checkpoints
from adaptive_rec.runtime.control import Control
from adaptive_rec.runtime.events import reclassified, split_chosen
from adaptive_rec.runtime.knob_checks import check_change
from adaptive_rec.runtime.publish import Publisher
from adaptive_rec.runtime.reports import Reports
from adaptive_rec.runtime.splitting import Splitting
from adaptive_rec.state.run_state import RunState

if TYPE_CHECKING:
    from adaptive_rec.runtime.evictions import Evictions

Report = Snapshot | Evaluation | Event


class Session(ABC):
    """Training under a policy. Only the training thread changes anything; other threads use the mailbox."""

    control: Control
    """Made by the subclass, which knows how the run is saved."""
    saving: Checkpoints | None = None
    """Checkpoints of a run; a user's loop saves by itself."""
    kept_by: ClassVar[str] = "its checkpoints keep a run"
    """What a user does who wants to pickle or copy it."""

    def __init__(
        self,
        config: Config,
        policy: Policy,
        store: EmbeddingStore,
        ends_on_bad_loss: bool = True,
        replaying: bool = False,
        times: StageTimes | None = None,
        mailbox: Mailbox | None = None,
    ) -> None:
        """`ends_on_bad_loss`: whether a loss that is not finite ends training. `replaying`: whether choices that depend on
        measured time come from a journal. `times`: see `RunState`. `mailbox`: that of the session that this one takes
        over from."""
        self.config = config
        self.store = store
        self.device = store.torch_device
        self.state = state = RunState(config, policy, store, times)
        tries = self.device.type != "cpu" and store.group.is_alone  # several ranks fetch all rows before the first micro-batch
        self.splitting = Splitting(config.run.split, tries, replaying)
        sizes, slots = store.hot.row_bytes(policy.records_movement(state.knobs)), sum(store.hot.tier.capacities)
        tracked = tracked_slots(policy, state.knobs, store.space, sizes, slots)
        beside = bool(config.run.thread_budget(store.path.stages_ahead).classify)
        self.observer = Observer(store, config.run.seed, state.times, tracked, beside)
        self.reclassifier = Reclassifier(policy, store, self.observer)
        self.evictions: Evictions | None = None
        """Made at the end of the first window in which there are raw keys."""
        if not store.group.is_alone:
            mailbox = _shared(mailbox, state)
        mailbox = mailbox or Mailbox(state.knobs)
        mailbox.take_over(state.knobs, self.check_knobs)
        self.mailbox = mailbox
        self.publisher = Publisher(state, self.observer, self.mailbox)
        self.reports = Reports(
            state,
            self.observer,
            self.reclassifier,
            self.mailbox,
            self.publisher,
            self.losses,
            self.learning_rates,
            ends_on_bad_loss,
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse `copy.copy`, `copy.deepcopy` and pickling, which all come here."""
        raise not_pickled(self, self.kept_by)

    # The subclass makes the steps ------------------------------------------------------------------------------------

    @abstractmethod
    def losses(self) -> Fetched:
        """Fetch the sum of the losses of all samples so far; not a number where no losses are recorded."""

    def check_knobs(self, before: Knobs, after: Knobs) -> None:
        """Raise ConfigError or ConflictError where training cannot change to other knobs. Any thread may call it."""
        in_host_memory = self.store.cold.on_disk and self.store.cold.memory is None
        limit, raw = self.config.run.host_memory if in_host_memory else 0, self.state.input.keys is not None
        check_change(before, after, self.policy, raw, limit, self.state.all_rows_bytes)

    def learning_rates(self) -> LearningRates | None:
        """Return the learning rates of the next step; None where the user's loop sets them."""
        return None

    def checked(self) -> Iterator[Event]:
        """Report what the last step has shown: faulty losses, and the price of skipping."""
        yield from ()

    def follow_moves(self) -> None:
        """Have copies of hot rows follow those that commands have moved."""
        return

    def evaluated(self) -> Generator[Evaluation | Event, None, bool]:
        """Evaluate, where that is due. Returns whether that is done, which a signal may have prevented."""
        yield from ()
        return True

    def best_kept(self) -> Generator[Report, None, bool]:
        """Write a checkpoint of the best model so far, where the present one is. Returns True: nothing prevents it."""
        yield from ()
        return True

    # Between two steps -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Place rows before the first step, where they are not placed already; a checkpoint does not say which are in memory."""
        if not self.state.rows_placed:
            self.reclassifier.begin(self.step_number, self.knobs)
            self.state.place_rows()
        else:
            self.reclassifier.place_in_memory(self.knobs)
        self.publisher.placement()
        self.reports.start()

    def boundary(self) -> Iterator[Report]:
        """Report, carry out commands, save, and end windows."""
        self.state.begin_boundary()
        self.publisher.pulse()
        yield from self.reports.finish(wait=False)
        for text in self.state.take_warnings():
            yield Event(self.step_number, "warning", text)
        yield from self.checked()
        if trial := self.splitting.after_step(self.step_number, self.recorder.seconds):
            yield split_chosen(self.step_number, trial)
        yield from self.control.process_commands()
        if self.state.rollback is not None:
            return
        self.follow_moves()
        if self.saving is not None:
            yield from self.saving.when_due()
        yield from self.end_boundary()

    def _evict(self, decay: float) -> Event | None:
        """Have raw keys lose their rows at the end of a window, whose counts were multiplied by `decay`."""
        if self.state.input.keys is None:
            return None
        if self.evictions is None:
            from adaptive_rec.runtime.evictions import Evictions

            self.evictions = Evictions(self.state, self.observer)
        return self.evictions.end_window(decay)

    def end_boundary(self) -> Iterator[Report]:
        """Do what the present boundary still owes: end windows that are over, report, evaluate. What a signal interrupts stays
        owed, and a resumed run does it first."""
        tasks = {"windows": self._end_windows, "report": self._report, "evaluation": self.evaluated, "best": self.best_kept}
        for task in self.state.owed:
            if not (yield from tasks[task]()):
                return
            self.state.task_done(task)

    def _end_windows(self) -> Generator[Report, None, bool]:
        step, knobs = self.step_number, self.knobs
        if self.reclassifier.end_tick(step, knobs):
            yield from self._end_tick()
        if self.reclassifier.window_ends(step, knobs):
            with self.times("reclassify"):
                decay = self.reclassifier.window_decay(step, knobs)
                moved = self.reclassifier.end_window(step, knobs, self.state.counts())
                evicted = None if self.reclassifier.window.first else self._evict(decay)
                self.publisher.placement()
            if self.policy.tracks_popularity:
                yield reclassified(self.state, self.reclassifier, moved)
                if not self.reclassifier.window.first:
                    self.splitting.begin_trial(step)
            if evicted is not None:
                yield evicted
        return True

    def _report(self) -> Generator[Report, None, bool]:
        if self.step_number % self.knobs.report_every == 0 and not self.reports.made(interim=False):
            yield from self.reports.finish(wait=True)
            self.reports.begin()
            yield from self.reports.finish(wait=False)
        return True

    def _end_tick(self) -> Iterator[Report]:
        with self.times("reclassify"):
            change = self.reclassifier.adapt_memory(self.knobs)
        if change:
            yield Event(self.step_number, "memory", str(change), asdict(change))

    def last_report(self) -> Iterator[Report]:
        """Yield the reports that are still to come, at the end."""
        self.observer.settle()
        yield from self.reports.up_to_here()

    # Read-only views of the state ------------------------------------------------------------------------------------

    def find_keys(self, table: int, keys: Sequence[int]) -> dict[str, list[Any]]:
        """Return where raw keys of a table are: the numbers of their rows (`ids`), whether these are their own (`own`), and the
        lookups counted while they had none (`counted`). Any thread may call it. Raises ConfigError where ids are rows."""
        if self.state.input.keys is None:
            raise ConfigError("keys are looked up where data.ids is raw; the ids of this run are numbers of rows")
        found = self.state.input.keys.find(table, np.array(keys, dtype=np.int64))
        return {"ids": found.id_N.tolist(), "own": found.own_N.tolist(), "counted": found.counted_N.tolist()}

    @property
    def step_number(self) -> int:
        """Steps made."""
        return self.state.step

    @property
    def knobs(self) -> Knobs:
        return self.state.knobs

    @property
    def policy(self) -> Policy:
        return self.state.policy

    @property
    def times(self) -> StageTimes:
        return self.state.times

    @property
    def recorder(self) -> Recorder:
        return self.state.recorder

    @property
    def tally(self) -> Tally:
        return self.state.tally


def _shared(mailbox: Mailbox | None, state: RunState) -> Mailbox:
    """Return the mailbox of a run of several processes: a new one, or that of the run which this one takes over from."""
    from adaptive_rec.runtime.shared_mailbox import SharedMailbox

    if mailbox is None:
        return SharedMailbox(state.store.group, state)
    if isinstance(mailbox, SharedMailbox):
        mailbox.follow(state)
    return mailbox
