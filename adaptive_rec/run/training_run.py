"""A run and its directory: configuration in, ``config.toml``, ``metrics.jsonl``, ``summary.json`` and checkpoints out."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adaptive_rec import checkpoint
from adaptive_rec.checkpoint.rollback_target import newer_than
from adaptive_rec.config.tree import Config
from adaptive_rec.data.prepare.place import is_prepared
from adaptive_rec.errors import AdaptiveRecError, ConflictError, UsageError, first_line, not_pickled
from adaptive_rec.live.rollback import Rollback
from adaptive_rec.live.telemetry import Event
from adaptive_rec.run import journal
from adaptive_rec.run.current_run import CurrentRun
from adaptive_rec.run.description import describe_run
from adaptive_rec.run.directory import RunDirectory
from adaptive_rec.run.new_directory import check_run_is_new
from adaptive_rec.run.parent import parent_of
from adaptive_rec.run.resume import ResumedFrom, begin_run, resume_run
from adaptive_rec.run.run_end import RunEnd
from adaptive_rec.run.run_log import RunLog
from adaptive_rec.run.summary import read_summary
from adaptive_rec.runtime.events import with_note
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.session import Report
from adaptive_rec.runtime.start_checks import check_scored
from adaptive_rec.system.group import Alone, Group
from adaptive_rec.system.host_memory import give_back_freed_memory
from adaptive_rec.units import counted


class TrainingRun:
    """Trains under a configuration and writes the run's directory."""

    def __init__(
        self,
        config: Config,
        out: Path,
        resume: bool = False,
        replay: Path | None = None,
        command: Sequence[str] = (),
        overridden: Collection[str] = (),
        write_report: Callable[[Path], object] | None = None,
        group: Group | None = None,
    ) -> None:
        """`resume`: resume from the newest checkpoint in `out`, if there is one (see `resume.py`; `overridden` names the knobs
        that the user gave). `replay`: repeat the changes in another run's journal at the same steps; a run that is resumed goes
        on with those that it repeats. `command`: the words of
        the command line, for the record. `write_report` writes the report page of a run directory when the run ends.
        `group`: the processes that train together; this one is rank 0, and the others each have a `Follower`.

        Raises UsageError, ConfigError, DataError or CheckpointError where the run cannot begin.
        """
        if not resume:
            check_run_is_new(out)
        for name in config.run.track:
            from adaptive_rec.tracker import load_tracker

            load_tracker(name)  # a run that cannot be tracked does not begin
        self.out = out
        self.group = group or Alone()
        self._directory = RunDirectory(out, exists=resume)
        elsewhere = Path(config.run.disk) if config.run.disk and not os.path.exists(config.run.disk) else None
        try:
            self._build(config, out, resume, replay, command, overridden)
            self.log = self._begin_log(resume, write_report)
        except BaseException:
            self._directory.leave()
            if elsewhere is not None:  # made a moment ago
                shutil.rmtree(elsewhere, ignore_errors=True)
            raise

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse `copy.copy`, `copy.deepcopy` and pickling, which all come here."""
        raise not_pickled(self, "its directory and checkpoints keep a run, which resume=True goes on with")

    def _build(
        self, config: Config, out: Path, resume: bool, replay: Path | None, command: Sequence[str], overridden: Collection[str]
    ) -> None:
        """Make the run's parts and write what describes it."""
        found = checkpoint.find(out / "checkpoints") if resume else None
        if resume:
            self.group.tell(found.generation.name if found and found.generation else None)
        self._resumed: ResumedFrom | None = None
        self.failure: AdaptiveRecError | None = None
        """Why the checkpoint at the end, or the score of the held-out samples, could not be had."""
        self._suspended_by = ""
        self._replay = replay = journal.replayed_run(out) if resume else replay
        self._parent = parent_of(out) if resume else None
        if found is not None and found.generation is not None:
            replayed = journal.left_to_replay(replay, out, found.generation.name) if replay else None
            resumed = resume_run(config, out, found, overridden, self.group, replayed, self._parent)
            runtime, self.config, self._resumed = resumed.runtime, resumed.config, resumed.before
            del resumed
        else:
            replayed = journal.commands(replay) if replay else None
            runtime = begin_run(config, out, resume, self.group, replayed)
            self.config = runtime.config  # with a lower hot budget where the device is small
        self.present = CurrentRun(runtime)
        """The runtime that trains at present: another one after each rollback."""
        del runtime
        check_scored(self.config, self.runtime.source)
        self.started_at_step = self.runtime.step_number
        words = shlex.join(["adaptive-rec", *command] if command else [])
        facts = describe_run(self.runtime, Path(os.path.abspath(out)).name, words, values=self._value_files())
        if self._parent is not None:
            facts["parent"] = self._parent.model_dump()
        self._went_back = False
        self.is_over = self.runtime.is_over and bool(self._done)
        """Whether nothing is left to do for the run that is resumed, so that it stays as it is."""
        if self.is_over:
            return
        if self._resumed and self._resumed.settings:  # before config.toml has them: a kill may come in between
            text = f"goes on with other settings: {changes_in_words(self._resumed.settings)}"
            self._directory.append(Event(self.started_at_step, "settings", text, {"settings": self._resumed.settings}))
        self._directory.create(self.config, facts)  # late: a run that cannot be resumed leaves its directory as it was

    def _value_files(self) -> dict[str, Path]:
        """Return the files of the values that ids stand for, where the run reads a prepared folder."""
        if not is_prepared(self.config.data.source):
            return {}
        from adaptive_rec.data.prepared import value_files

        return value_files(self.runtime.source)

    @property
    def _stands(self) -> bool:
        """Whether no step was made since the start."""
        return self.runtime.step_number == self.started_at_step and not self._went_back

    @property
    def _done(self) -> dict[str, Any]:
        """The summary of the run that is resumed, where it has ended at the present step, was scored, and gets no other knobs."""
        if not self._stands or self.runtime.state.knob_changes or (self._resumed and self._resumed.overridden):
            return {}
        return read_summary(self.out / "summary.json", self.runtime.step_number)

    def _begin_log(self, again: bool, write_report: Callable[[Path], object] | None) -> RunLog:
        """Open what the run reports to. Where that cannot be done, a directory that was made for it goes."""
        try:
            if not self.group.is_alone:
                from adaptive_rec.runtime.rank_checks import check_directory

                check_directory(self.group, self.out)
            return RunLog(self._directory, self.present, self.config.run.track, write_report)
        except UsageError:
            if not again:
                shutil.rmtree(self.out, ignore_errors=True)  # new a moment ago, and in the way of the next try
            raise

    @property
    def runtime(self) -> Runtime:
        """The runtime that trains at present. Keep no reference to it while it may go back to a checkpoint."""
        assert self.present.runtime is not None, "the run is going back to a checkpoint"
        return self.present.runtime

    def events(self) -> Iterator[Report]:
        """Train; yield reports after they are written: figures to ``metrics.jsonl``, events to ``events.jsonl``."""
        yield from self._begin()
        while True:
            with self._noting_failure():
                for report in self.runtime.run():
                    self.log.add(report, self.runtime.recorder.time)
                    yield report
                    yield from self.log.complaints()
            if (rollback := self._rollback()) is None:
                break
            yield from self._go_back(rollback)
        if self.runtime.state.hurried:
            self.log.note("stopping", "a signal came: a checkpoint follows")

    def _begin(self) -> Iterator[Event]:
        """Report how the run starts, unless it is over."""
        runtime, resumed = self.runtime, self._resumed
        if self.is_over:
            return
        left = f"{counted(runtime.steps_total - runtime.step_number, 'step')} to go"
        if runtime.followed is not None:
            left = f"{self.config.data.source} is followed"
        details: dict[str, Any] = {"checkpoint": resumed.checkpoint} if resumed else {}
        details |= {"replays": os.path.abspath(self._replay)} if self._replay else {}
        text = f"{runtime.knobs.policy} on {runtime.device}, {left}"
        seen, made = runtime.tally.counters.samples_seen, runtime.step_number
        if resumed and runtime.followed is not None and seen != made * self.config.run.batch_size:
            details["within_batch"] = True  # a step was made of what had come by then
        settings = resumed.settings if resumed else {}
        if self._parent is not None and details.get("checkpoint") == self._parent.checkpoint:
            details["parent"] = self._parent.place
            settings = {**self._parent.settings, **settings}
            text += f", a branch of {self._parent.run} at step {self._parent.step}"
        if settings:
            details["settings"] = settings
            text += f"; {changes_in_words(settings)}"
        yield self.log.note("started", text, **details)
        if resumed and resumed.overridden:
            text = changes_in_words(resumed.overridden)
            yield self.log.note("knobs", text, changed=resumed.overridden, at_start=True)
        if resumed is None:
            for text in self._remarks():
                yield self.log.note("warning", text)
            give_back_freed_memory()

    def _remarks(self) -> list[str]:
        """Return what is to be said of the data before it is trained on."""
        source = self.runtime.source
        remarks = list[str]()
        if self.config.data.source == "synthetic":
            return remarks
        from adaptive_rec.data.looked_at import looked_at
        from adaptive_rec.data.split_facts import lines

        if is_prepared(self.config.data.source):
            from adaptive_rec.data.dense_scale import remark

            remarks += filter(None, [remark(source)])
        looked = looked_at(source, self.config)
        if looked is None:
            return remarks
        if self.config.data.implicit.negatives:
            from adaptive_rec.data.implicit.negatives import negatives_of

            drawn = negatives_of(source)
            remarks += [] if drawn is None else drawn.remarks()
        if looked.held_out_one_class:
            self.runtime.evaluator.one_class_is_known()
        return [*remarks, *lines(looked)]

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """Write down why training ends in an error."""
        try:
            yield
        except Exception as error:
            self._fail(error)
            raise

    def _rollback(self) -> Rollback | None:
        """Return the rollback for which the loop has ended. After a signal the run ends instead."""
        rollback = self.runtime.state.rollback
        if rollback is None or not self.runtime.state.hurried:
            return rollback
        rollback.command.answer(ConflictError("a signal came, so the run ends and does not go back"))
        self.present.mailbox.close("the run has ended")
        return None

    def _going_back(self, rollback: Rollback) -> Event:
        """Write what the rollback is about to remove: a kill may come before its end is in the journal."""
        newer = newer_than(self.out / "checkpoints", rollback.checkpoint)
        why = "to train the best model on the validation slice, " * rollback.on_slice
        text = f"{why}goes back to checkpoint {rollback.checkpoint}"
        text += f" and removes the newer ones: {', '.join(newer)}" * bool(newer)
        event = Event(rollback.from_step, "going_back", text, {"target": rollback.checkpoint, "removes": newer})
        event = with_note(event, rollback.command.note)
        self.log.add(event)
        return event

    def _go_back(self, rollback: Rollback) -> Iterator[Event]:
        """Go on from a checkpoint."""
        from adaptive_rec.run.rollback import go_back

        try:
            replay, name = self._replay, rollback.checkpoint
            replayed = journal.left_to_replay(replay, self.out, name, rollback.on_slice) if replay else None
            yield self._going_back(rollback)
            removed = go_back(self.present, rollback, self.config, self.out, self.group, replayed)
        except Exception as error:
            rollback.command.answer(error if isinstance(error, AdaptiveRecError) else ConflictError(first_line(error)))
            self._fail(error)
            raise
        step, self.started_at_step, self._went_back = self.runtime.step_number, self.runtime.step_number, True
        text = f"went back from step {rollback.from_step:,} to checkpoint {name} of step {step:,}"
        text += f"; newer checkpoints are removed: {', '.join(removed)}" * bool(removed)
        if rollback.on_slice:
            left = counted(self.runtime.steps_total - step, "step")
            text = f"the best model, of checkpoint {name}, trains on the validation slice, {left}"
        details = {"checkpoint": name, "from_step": rollback.from_step, "removed": removed}
        details |= {"knobs": self.runtime.knobs.model_dump(), "on_slice": rollback.on_slice}
        event = with_note(Event(step, "rolled_back", text, details), rollback.command.note)
        self.log.go_back(event)
        yield event
        yield from self.log.restart_trackers()

    def finish(self) -> dict[str, Any]:
        """Write the final checkpoint, evaluate unless the run was hurried, write and return the summary. Then the directory is
        free for another process. What fails takes nothing else with it: `failure` has the reason, for the caller to report."""
        try:
            return self._finish()
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._directory.close()

    def _finish(self) -> dict[str, Any]:
        done = self._done
        if self._stands and self.group.tell(bool(done)):
            self.log.end_tracking()
            if not self.is_over:
                self.log.note("finished", "the run has ended, without another step")
            self.runtime.publisher.enter("finished")
            return done  # nothing was left to do
        end = RunEnd(self.present, self.log, self.config, self.out, self.group, self.suspended_by)
        try:
            return end.write(self.started_at_step, self._parent)
        finally:
            self.failure = end.failure

    @property
    def suspended_by(self) -> str:
        """The rule that has ended the run before its end, where it could not pause; empty where none has."""
        if self.present.runtime is not None:
            self._suspended_by = self.runtime.state.suspended_by
        return self._suspended_by

    def _fail(self, error: Exception) -> None:
        """Write down how the run ended."""
        self.present.mailbox.close("the run has failed")
        if self.present.runtime is not None:
            self.present.runtime.publisher.enter("failed")
        self.log.fail(error)
        self.log.end_tracking()
        self.log.report()


def changes_in_words(changed: Mapping[str, Mapping[str, Any]]) -> str:
    """Return old and new values by name as people read them."""
    return ", ".join(f"{name} {each['old']} -> {each['new']}" for name, each in changed.items())
