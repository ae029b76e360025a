"""The state of a run: its step, knobs, policy, phase and counts.

One object holds it. Control, publishing, reports, phases and checkpoints read it; only the training thread changes it, through
its methods.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from adaptive_rec.batch import SLICE, Position
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import saved_position
from adaptive_rec.dense.quality_trend import QualityTrend
from adaptive_rec.embedding.device import all_rows_bytes
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import TrainingError
from adaptive_rec.live.checkpoint_status import CheckpointStatus
from adaptive_rec.live.evaluations import (
    WindowScores,
    evaluation_state,
    saved_evaluation,
    saved_windows,
    windows_state,
)
from adaptive_rec.live.recorder import Recorder
from adaptive_rec.live.rollback import Rollback
from adaptive_rec.live.telemetry import Evaluation, StageTimes
from adaptive_rec.policy import Policy
from adaptive_rec.reclassify.tally import Tally
from adaptive_rec.saved import Saved
from adaptive_rec.state.run_input import RunInput
from adaptive_rec.state.saved_run import BOUNDARY_TASKS, saved_owed

DISK = "disk_"
"""Start of the names of counts of rows on a disk."""


class RunState:
    """The state of a run between two steps."""

    def __init__(self, config: Config, policy: Policy, store: EmbeddingStore, times: StageTimes | None = None) -> None:
        """`times` collects the seconds of stages, given where a profiler reads them too."""
        self.config = config
        self.knobs: Knobs = config.knobs
        self.knobs_step = 0
        """The step at which the knobs last changed."""
        self.knob_changes = 0
        """Changes of knobs by this process: of two at one step, the later one has the greater number."""
        self.policy = policy
        self.store = store
        self.step = 0
        """Steps made."""
        self.position = Position(seed=config.run.seed)
        """Position of the stream's reader."""
        self.phase = "starting"
        """starting, training, paused, evaluating, checkpointing, rolling_back, finishing, finished, failed or suspended."""
        self.rows_placed = False
        """Whether the policy has placed rows, in this run or before it was resumed."""
        self.owed: tuple[str, ...] = ()
        """The tasks of the present step boundary that are still to be done, of BOUNDARY_TASKS. Saved, so that a resumed run does
        them first."""
        self.paused = False
        self.saved_paused = False
        """Whether this run resumed from a checkpoint of a paused run."""
        self.reachable = True
        """Whether a command can end a pause."""
        self.suspended_by = ""
        """The rule that has ended the run, as it could not pause; empty where none has."""
        self.stop_requested = False
        """Whether the loop ends after the present step."""
        self.rollbacks = 0
        """Rollbacks of this process so far, each of which made the number of steps smaller."""
        self.rollback: Rollback | None = None
        """The rollback for which the loop ends."""
        self.hurry_requested = False
        """Whether a signal came to this process."""
        self.hurried = False
        """Whether a signal came, here or to another process of the group, so that long work is left out."""
        self.commands_done = 0
        """Number of commands carried out."""
        self.input = RunInput(store, lambda: self.position)
        self.evaluation: Evaluation | None = None
        """The last evaluation."""
        self.held_out: Evaluation | None = None
        """The score of the held-out samples at the end of a run that validates."""
        self.windows = WindowScores()
        """Sums over the evaluations of next windows."""
        self.trend = QualityTrend(config.eval.by, config.eval.min_delta)
        self.keys_reported: dict[str, int] = {}
        """Counts of raw keys at the last report that was due."""
        self.disk_reported: dict[str, float] = {}
        """Counts of rows on a disk at the last report that was due, with the steps and seconds by then."""
        self.skipping: dict[str, float] | None = None
        """Figures of what skipping costs, by trials; None before there is one."""
        self.checkpoints = CheckpointStatus()
        self.tally = Tally(store.space)
        self.times = StageTimes() if times is None else times
        self.recorder = Recorder(store.group.meter.waited)
        self._planned_steps: int | None = None
        self.passes: int | None = None
        self.more_steps = 0
        """Steps more than plain training makes, because the policy repacks the stream: an upper bound during the run, the exact
        number at its end. Negative where samples were left out."""
        self._warnings: list[str] = []

    def price_skipping(self, figures: dict[str, float] | None) -> None:
        """Set what reports say of the price of skipping."""
        self.skipping = figures

    # Read ------------------------------------------------------------------------------------------------------------

    @property
    def steps_total(self) -> int | None:
        """Steps the run will have made at its end, an upper bound where its policy repacks the stream. None where no end is
        known: a user's loop that does not announce one."""
        if self.stopped_early and not self.position.on_slice:
            return self.step
        return None if self._planned_steps is None else max(self.step, self._planned_steps + self.more_steps)

    @property
    def is_at_end(self) -> bool:
        """Whether all steps are made. False where no end is known."""
        return self.steps_total is not None and self.step >= self.steps_total

    @property
    def stopped_early(self) -> bool:
        """Whether `eval.patience` evaluations in a row were no better, so that no further pass is made."""
        patience = self.config.eval.patience
        return bool(patience) and self.trend.waited >= patience

    @property
    def stopped_by_command(self) -> bool:
        """Whether the loop ends for another reason than evaluations that got no better."""
        return self.stop_requested and (self.hurried or not self.stopped_early)

    @property
    def slice_is_due(self) -> bool:
        """Whether the passes have ended and the best model is to train on the validation slice."""
        wanted = self.config.eval.trains_slice and self.trend.best is not None
        return wanted and self.is_at_end and not (self.position.on_slice or self.stopped_by_command)

    @property
    def is_finished_model(self) -> bool:
        """Whether the best model was trained on the validation slice, to its end."""
        return self.position.epoch > SLICE

    @property
    def epoch(self) -> int:
        """The pass over the data that the last step was of, from 1; 0 where none is known."""
        if self.passes is None or self.policy.reorders_stream:
            return 0
        if self.position.on_slice:
            return 0 if self.trend.best is None else self.trend.best.epoch
        return min(self.position.epoch + (self.position.offset > 0 or not self.position.epoch), self.passes)

    @property
    def window_due(self) -> bool:
        """Whether the windows of the present step boundary have still to end."""
        return "windows" in self.owed

    @property
    def placement_version(self) -> int:
        return self.store.index.placement.moves

    @property
    def budget_bytes(self) -> int:
        """Device memory for hot rows, by the policy and the present knobs."""
        return self.policy.budget_bytes(self.knobs, self.all_rows_bytes)

    @property
    def all_rows_bytes(self) -> int:
        """Device memory that all rows would take."""
        return all_rows_bytes(self.store.space, self.store.hot.row_bytes())

    def counts(self) -> dict[str, float]:
        """Return all counts, as far as the host has them, of all processes that train together: each must call it."""
        disk = {DISK + name: count for name, count in self.store.cold.total_counts().items()}
        own = {**asdict(self.tally.counters), **asdict(self.store.index.traffic)}
        counts = {**self.store.group.totals(own), **self.tally.weights(self.store.group)}
        return {**counts, **disk, "steps": self.tally.counters.steps}

    def random(self, purpose: str) -> np.random.Generator:
        """Return a random generator that depends on the seed, the step and the purpose (its first eight letters) alone."""
        key = [self.config.run.seed, int.from_bytes(purpose.encode()[:8], "little")]
        return np.random.Generator(np.random.Philox(counter=[0, self.step, 0, 0], key=key))

    # Change ----------------------------------------------------------------------------------------------------------

    def step_done(self, position: Position | None = None) -> None:
        """Count a step. `position` is the new position of the stream's reader, if there is one."""
        self.step += 1
        self.position = position or self.position

    def expect_steps(self, planned: int | None, passes: int | None = None) -> None:
        """Set how many steps plain training makes until the end of the stream or the configured number. None: no end is known.
        `passes`: over the training data, at the most; None in a user's loop, and where data is followed."""
        self._planned_steps, self.passes = planned, passes

    def move_to(self, position: Position) -> None:
        """Set the reader's position, at the end of a reordered stream."""
        self.position = position

    def leave_out(self, begin: Position, end: Position) -> None:
        """Go on with the stream behind a part of it, whose samples are not read. Raises TrainingError where the reader stands
        elsewhere."""
        if self.position != begin:
            raise TrainingError(f"a part of the stream that is left out must begin at {self.position}, got {begin}")
        self.move_to(end)

    def begin_slice(self, trend: QualityTrend) -> None:
        """Go on with the validation slice, as the best model. `trend`: the evaluations of all passes."""
        self.position, self.trend, self.more_steps = Position(SLICE, self.config.run.seed), trend, 0

    def end_here(self) -> None:
        """Set the present step as the run's last, where the stream of a policy that repacks it has ended early."""
        if self._planned_steps is not None:
            self.more_steps = self.step - self._planned_steps

    def exceed_by(self, more_steps: int) -> None:
        """Set the number of steps by which the run may exceed plain training."""
        self.more_steps = more_steps

    def place_rows(self, placed: bool = True) -> None:
        """Note that the policy has placed rows, or must do so again."""
        self.rows_placed = placed

    def begin_boundary(self) -> None:
        self.owed = BOUNDARY_TASKS

    def task_done(self, task: str) -> None:
        """Note that a task of the present boundary is done."""
        self.owed = tuple(each for each in self.owed if each != task)

    def change_knobs(self, knobs: Knobs) -> None:
        """Set the knobs, from the present step on."""
        self.knobs, self.knobs_step, self.knob_changes = knobs, self.step, self.knob_changes + 1
        self.input.look_ahead(self.policy.window_batches(knobs))
        self.input.admit_after(knobs.admit_after)

    def change_policy(self, policy: Policy) -> None:
        self.policy = policy

    def enter(self, phase: str) -> None:
        self.phase = phase

    def pause(self) -> None:
        self.paused = True

    def unpause(self) -> None:
        self.paused = False

    def pause_as_saved(self, reachable: bool) -> None:
        """Pause a run that was saved while paused, if a command can reach it that ends the pause."""
        self.reachable, self.paused = reachable, self.saved_paused and reachable

    def go_on_after(
        self, rollbacks: int, paused: bool, reachable: bool, checkpoints: CheckpointStatus, checkpoint: str
    ) -> None:
        """Go on from a checkpoint after so many rollbacks of this process, paused or not as before the last one. `checkpoints`:
        their figures by then."""
        self.rollbacks, self.paused, self.saved_paused, self.phase = rollbacks, paused, paused, "rolling_back"
        self.reachable = reachable
        self.checkpoints.go_on_from(checkpoints, checkpoint)

    def roll_back(self, rollback: Rollback) -> None:
        """End the loop after the present step, to go on from a checkpoint."""
        self.rollback, self.stop_requested = rollback, True

    def stop(self) -> None:
        """End the loop after the present step."""
        self.stop_requested, self.paused = True, False

    def suspend(self, reason: str) -> None:
        """End the loop after the present step, as a rule would pause the run."""
        self.suspended_by = reason
        self.stop()

    def hurry(self) -> None:
        """End the loop after the present step and leave out long work. Signal handlers may call it. Several processes do so
        together, at the end of a step."""
        self.hurry_requested = True
        if self.store.group.is_alone:
            self.leave()

    def leave(self) -> None:
        """End the loop after the present step and leave out long work."""
        self.stop_requested = self.hurried = True

    def command_done(self) -> None:
        self.commands_done += 1

    def set_evaluation(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        if evaluation.window is not None:
            self.windows = self.windows.with_one(evaluation)
        self.trend.add(evaluation, *self.recorder.losses_reported, self.epoch)

    def set_held_out(self, evaluation: Evaluation) -> None:
        self.held_out = evaluation

    def report_keys(self, counts: dict[str, int]) -> None:
        """Note the counts of raw keys, from which the next report counts."""
        self.keys_reported = counts

    def report_disk(self, counts: dict[str, float]) -> None:
        """Note the counts of rows on a disk, from which the next report counts."""
        self.disk_reported = counts

    def warn(self, text: str) -> None:
        """Keep a warning for the journal."""
        self._warnings.append(text)

    def take_warnings(self) -> list[str]:
        """Return the warnings of the store, of a source that is followed and of this object that are new."""
        taken, self._warnings = [*self.store.path.complaints(), *self.input.take_warnings(), *self._warnings], []
        return taken

    def forget_clock(self) -> None:
        """Restart the run's clock at the next `Recorder.start`."""
        self.recorder = Recorder(self.store.group.meter.waited)

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return this object's part of a checkpoint."""
        return {
            "step": self.step,
            "position": asdict(self.position),
            "policy": self.policy.name,
            "knobs": self.knobs.model_dump(),
            "knobs_step": self.knobs_step,
            "begun": self.rows_placed,
            "owed": {task: task in self.owed for task in BOUNDARY_TASKS},
            "paused": self.paused,
            "budget_bytes": self.budget_bytes,
            "monitored": self.store.hot.monitored,
            "tally": self.tally.state(self.store.group),
            "recorder": self.recorder.state(),
            "times": self.times.state(),
            "evaluation": evaluation_state(self.evaluation),
            **windows_state(self.windows),
            "trend": self.trend.state(),
            "keys_reported": self.keys_reported,
            "disk_reported": self.disk_reported,
        }

    def set_progress(self, found: Saved) -> None:
        """Restore step, position, counts and times, which do not depend on the placement."""
        self.step, self.position = found.integer("step"), saved_position(found.part("position"))
        self.saved_paused = found.flag("paused")
        self.tally.set_state(found.part("tally"), self.store.group)
        self.recorder.set_state(found.part("recorder"))
        self.windows = saved_windows(found)
        self.owed = tuple(task for task in saved_owed(found) if task != "windows")  # of rows as they were placed
        self.times.set_state(found.part("times"))
        if found.has("trend"):  # older versions saved none
            self.trend.set_state(found.part("trend"))
        if found.has("keys_reported"):  # older versions counted from the start of the process
            self.keys_reported = {name: int(value) for name, value in found.numbers("keys_reported").items()}
        if found.has("disk_reported"):  # older versions counted from the start of the process
            self.disk_reported = found.numbers("disk_reported")

    def set_placed(self, found: Saved) -> None:
        """Restore the rest, if the placement was restored."""
        self.rows_placed, self.owed = True, saved_owed(found)
        self.knobs_step = found.integer("knobs_step")
        evaluation = found.maybe("evaluation")
        if evaluation is not None:
            self.evaluation = saved_evaluation(evaluation)

    def set_step(self, step: int) -> None:
        """Set the number of steps, where a user's loop resumes from its own saved state."""
        self.step = step
