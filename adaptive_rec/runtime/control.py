"""Control of a run: the commands in the mailbox are carried out between two steps and while the run is paused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

from adaptive_rec.batch import Position
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.errors import AdaptiveRecError, ConflictError, GroupError, MemoryPlanError, TrainingError, first_line
from adaptive_rec.live.mailbox import Command, Mailbox
from adaptive_rec.live.rollback import Rollback
from adaptive_rec.live.telemetry import Event, Snapshot
from adaptive_rec.policy import Policy
from adaptive_rec.policy.find import load_policy
from adaptive_rec.reclassify.window import Reclassifier
from adaptive_rec.runtime.checkpoints import Checkpoints
from adaptive_rec.runtime.events import knob_text, left_out, reclassified, split_chosen, with_note
from adaptive_rec.runtime.publish import Publisher
from adaptive_rec.runtime.reports import Reports
from adaptive_rec.runtime.rollbacks import Rollbacks
from adaptive_rec.runtime.splitting import Splitting, TrialTimes
from adaptive_rec.state.run_state import RunState

T = TypeVar("T")

TOO_SMALL = "the device's memory must hold a step; lower run.batch_size or knobs.prefetch_depth, or take run.device=cpu"

PAUSED_POLL_SECONDS = 0.2
"""How soon a paused run notices a signal; commands wake it at once."""


class Control:
    """Turns each command into an event of the journal and a reply that names the step."""

    def __init__(
        self,
        state: RunState,
        reclassifier: Reclassifier,
        splitting: Splitting,
        mailbox: Mailbox,
        publisher: Publisher,
        reports: Reports,
        saving: Checkpoints | None = None,
        rollbacks: Rollbacks | None = None,
        replayed: Mapping[int, list[Command]] | None = None,
        how_it_stops: Callable[[], str] = lambda: "a checkpoint and a summary follow",
    ) -> None:
        """`saving` and `rollbacks` are None where the user's own loop saves by itself. `how_it_stops` returns what follows a
        request to stop, or raises ConflictError where the loop would not obey. `replayed`: commands to carry out at given steps,
        which are those of the run that is replayed."""
        self._state = state
        self._reclassifier = reclassifier
        self._splitting = splitting
        self._mailbox = mailbox
        self._publisher = publisher
        self._reports = reports
        self._saving = saving
        self._rollbacks = rollbacks
        others = ("evaluate", "put_off_trial")  # of the evaluator and the guard
        carried_out = {at: [each for each in done if each.verb not in others] for at, done in (replayed or {}).items()}
        self._replayed = {step: commands for step, commands in carried_out.items() if commands}
        self._how_it_stops = how_it_stops
        self._verbs: dict[str, Callable[..., Event]] = {
            "change_knobs": self._change_knobs,
            "choose_split": self._choose_split,
            "fail": self._fail,
            "halve_budget": self._halve_budget,
            "note": self._note,
            "pause": self._pause,
            "reclassify": self._reclassify,
            "resume": self._resume,
            "skip_data": self._skip_data,
            "stop": self._stop,
            "suspend": self._suspend,
        }
        """What carries out each verb of a command, but for those that take several steps: checkpoint and rollback."""

    def process_commands(self) -> Iterator[Event | Snapshot]:
        """Carry out the commands left so far. While paused, stay here until `resume`, or a stop by command or signal."""
        for command in self._take_replayed(before_step=False):
            self._mailbox.send(command)
        yield from self._carry_out(self._mailbox.drain())
        yield from self.wait_while_paused()

    def _take_replayed(self, before_step: bool) -> list[Command]:
        """Return the commands of the replayed run at this step, once: those of its boundary, or those before the next step."""
        here = self._replayed.pop(self._state.step, [])
        taken = [command for command in here if (command.verb == "halve_budget") == before_step]
        if left := [command for command in here if command not in taken]:
            self._replayed[self._state.step] = left
        return taken

    def go_on_replaying(self) -> Iterator[Event | Snapshot]:
        """Carry out what a replay has to do before the next step is made: it begins, or was saved between two commands. Raises
        ConflictError where other processes would have to know."""
        if all(command.verb == "halve_budget" for command in self._replayed.get(self._state.step, ())):
            return
        if not self._state.store.group.is_alone:
            rule = "a replay in several processes must go on from a checkpoint that has all commands of its step"
            raise ConflictError(f"{rule}, that of step {self._state.step} has not")
        yield from self.process_commands()

    def wait_while_paused(self) -> Iterator[Event | Snapshot]:
        state = self._state
        if not state.paused:
            return
        yield from self._reports.up_to_here()
        with state.recorder.paused(), self._publisher.during("paused"):
            while state.paused and not state.stop_requested:
                yield from self._carry_out(self._mailbox.wait(PAUSED_POLL_SECONDS))
                if self._saving is not None:
                    yield from self._saving.written(wait=False)
                self._publisher.pulse()

    def resume_paused(self) -> Iterator[Event | Snapshot]:
        """Let a run that was saved while paused wait before its next step, if commands can reach it there."""
        if self._state.paused:
            since = "before it went back" if self._state.rollbacks else "when it was saved"
            how = "adaptive-rec resume or POST /api/v1/control/resume continues it"
            yield self._event("paused", f"paused, as {since}; {how}")
            yield from self.wait_while_paused()
        elif self._state.saved_paused:
            yield self._event("resumed", "the run was paused when it was saved; no command can reach it, so it continues")

    def _carry_out(self, commands: list[Command]) -> Iterator[Event]:
        for place, command in enumerate(commands):
            try:
                if command.verb == "checkpoint":
                    yield from self._checkpoint(command)
                    continue
                if command.verb == "rollback":
                    yield from self._roll_back(command)
                    self._mailbox.put_back(commands[place + 1 :])  # for the run from there on
                    return
                event: Event = with_note(self._verbs[command.verb](**command.values), command.note)
                self._state.command_done()
                reply: Mapping[str, Any] | AdaptiveRecError = {"step": event.step, **event.details}
            except TrainingError as error:
                command.answer(error)
                raise
            except AdaptiveRecError as error:
                event, reply = self._event("warning", f"{command.verb}: {error}"), error
            if command.verb == "change_knobs":
                self._mailbox.settle(self._state.knobs)
            self._publisher.board()
            yield event  # in the journal before the reply
            command.answer(reply)

    def _checkpoint(self, command: Command) -> Iterator[Event]:
        """Start a checkpoint; the reply follows when it is written."""
        if self._saving is None:
            raise ConflictError(
                "this training loop is not the runtime's own, so it saves by itself: runtime.state_dict()"
            )
        yield from self._saving.requested(command)

    def _roll_back(self, command: Command) -> Iterator[Event]:
        """Have the loop end for a rollback; the reply follows when the run trains from there."""
        if self._saving is None or self._rollbacks is None:
            raise ConflictError(
                "this training loop is not the runtime's own, so it goes back by itself: runtime.load_state_dict()"
            )
        yield from self._saving.written(wait=True)
        with self._state.recorder.paused(), self._publisher.during("checkpointing"):
            rollback = self._rollbacks.accepted(command)
        self._state.roll_back(rollback)

    def _event(self, kind: str, text: str, **details: Any) -> Event:
        return Event(self._state.step, kind, text, details)

    # Memory ----------------------------------------------------------------------------------------------------------

    def before_step(self) -> Iterator[Event]:
        """Halve the hot budget if the replayed run did so before this step because memory was short."""
        for command in self._take_replayed(before_step=True):
            yield self._halve_budget(**command.values)

    def give_up_memory(self, reason: str) -> Iterator[Event]:
        """Halve the hot budget, as the device's memory was too small for a step. Raises MemoryPlanError where that is no help."""
        state, store = self._state, self._state.store
        if not store.group.is_alone:  # the others are in the middle of the step
            raise MemoryPlanError(f"{TOO_SMALL} (seen by rank {store.group.rank}): {reason}")
        held, before = store.hot.bytes, state.knobs
        smaller = min(before.hot_budget_bytes, held) // 2
        if not held or state.policy.budget_bytes(before.changed({"hot_budget_bytes": smaller}), held) >= held:
            raise MemoryPlanError(
                f"{TOO_SMALL}: policy {before.policy} keeps {knob_text('_bytes', held)} of rows there: {reason}"
            )
        yield self._event("warning", f"out of device memory, the hot budget is halved: {reason}")
        store.path.free_memory()
        try:
            yield self._halve_budget(hot_budget_bytes=smaller)
        except ConflictError as error:
            raise MemoryPlanError(f"{TOO_SMALL}: {error}") from error

    def _halve_budget(self, **changes: Any) -> Event:
        event = self._change_unrequested(changes)
        return replace(event, details={**event.details, "before_step": True})

    def _change_unrequested(self, changes: Mapping[str, Any]) -> Event:
        """Change knobs without a command."""
        event = self._change_knobs(**changes)
        self._mailbox.changed(self._state.knobs)
        self._publisher.board()
        return event

    def override_at_start(self, changes: Mapping[str, Any]) -> Event:
        """Change the knobs that a run was saved with to those it goes on with. A replay changes them at the same place."""
        return self._change_unrequested(changes) if self._state.window_due else self._halve_budget(**changes)

    def go_on_after(self, rollback: Rollback, samples: int) -> Iterator[Event]:
        """Do what else a rollback requests, save the state that the run goes on in, and reply. `samples`: how many are left out.
        A checkpoint that cannot be written is reported, and training goes on."""
        state, note, command = self._state, rollback.command.note, rollback.command
        outcome: Mapping[str, Any] | AdaptiveRecError = {
            "step": state.step, "checkpoint": rollback.checkpoint, "from_step": rollback.from_step,
        }  # fmt: skip
        try:
            if rollback.skip_to is not None and samples:
                yield with_note(self._skip_data(asdict(state.position), asdict(rollback.skip_to), samples), note)
            if rollback.knobs:
                yield with_note(self.override_at_start(rollback.knobs), note)
        except ConflictError as error:  # memory is too short for these knobs
            outcome = error
            yield self._event("warning", f"rollback: {error}")
        if rollback.differs and self._saving is not None:
            yield from self._saving.at_once()
        command.answer(outcome)

    # One method for each verb ----------------------------------------------------------------------------------------

    def _change_knobs(self, **changes: Any) -> Event:
        state = self._state
        before, after = state.knobs, state.knobs.changed(changes)
        if after.policy != before.policy:
            self._change_policy(load_policy(after.policy), after)
            self._splitting.forget()
        elif self._resizes(before, after):
            self._place_or_restore(lambda: self._reclassifier.place_again(state.step, after))
            self._splitting.forget()
        state.change_knobs(after)
        changed = before.differences(after)
        pairs = [(name, each["old"], each["new"]) for name, each in changed.items()]
        text = ", ".join(f"{name} {knob_text(name, old)} -> {knob_text(name, new)}" for name, old, new in pairs)
        return self._event("knobs", text or "knobs set to the values they had", changed=changed)

    def _resizes(self, before: Knobs, after: Knobs) -> bool:
        """Return whether knobs give hot rows another memory: the budget, or what a row takes of it."""
        records = self._state.policy.records_movement
        return after.hot_budget_bytes != before.hot_budget_bytes or records(after) != records(before)

    def _change_policy(self, policy: Policy, knobs: Knobs) -> None:
        state = self._state
        before = state.policy
        state.change_policy(policy)
        try:
            self._place_or_restore(lambda: self._reclassifier.change_policy(policy, state.step, knobs))
        except ConflictError:
            state.change_policy(before)
            raise

    def _place_or_restore(self, place: Callable[[], object]) -> None:
        """Place rows for new knobs. Restore the old placement where that fails, on any rank: memory is short, or the policy has a
        fault."""
        state, policy, failure, reason = self._state, self._reclassifier.policy, None, ""
        group = state.store.group
        try:
            with state.times("reclassify"):
                place()
        except GroupError:
            raise
        except Exception as error:
            failure, reason = error, first_line(error)
        reasons = group.share(reason)
        if not any(reasons):
            self._publisher.placement()
            return
        self._place(lambda: self._reclassifier.restore(policy, state.step, state.knobs))
        found = "; ".join(f"{f'rank {rank}: ' * (not group.is_alone)}{each}" for rank, each in enumerate(reasons) if each)
        raise ConflictError(f"rows could not be placed for these knobs, the old ones stay: {found}") from failure

    def _pause(self) -> Event:
        self._state.pause()
        return self._event("paused", "paused")

    def _resume(self) -> Event:
        self._state.unpause()
        return self._event("resumed", "training continues")

    def _stop(self) -> Event:
        follows = self._how_it_stops()
        self._state.stop()
        return self._event("stopping", f"stop requested: {follows}")

    def _suspend(self, reason: str) -> Event:
        """End the run where it would pause and no command could have it go on."""
        self._state.suspend(reason)
        text = "suspended, as no command can reach a paused run: a checkpoint and a summary follow"
        return self._event("stopping", f"{text}: {reason}", why=reason)

    def _reclassify(self) -> Event:
        state = self._state
        if not state.policy.tracks_popularity:
            how = "moves rows where its phases begin" if state.policy.arranges_stream else "never moves rows"
            raise ConflictError(f"policy {state.knobs.policy} {how}, there is nothing to reclassify")
        moved = self._place(lambda: self._reclassifier.place_again(state.step, state.knobs))
        return reclassified(state, self._reclassifier, moved, asked_for=True)

    def _choose_split(self, split: bool, whole_seconds: float, split_seconds: float) -> Event:
        self._splitting.choose(split)
        return split_chosen(self._state.step, TrialTimes(whole_seconds, split_seconds))

    def _skip_data(self, begin: Mapping[str, int], end: Mapping[str, int], samples: int) -> Event:
        """Leave a part of the stream out: its batches do not come."""
        self._state.leave_out(Position(**begin), Position(**end))
        return left_out(self._state, begin, end, samples)

    def _fail(self, reason: str) -> Event:
        """End the run with an error."""
        raise TrainingError(reason)

    def _note(self, kind: str, text: str) -> Event:
        return self._event(kind, text)

    def _place(self, place: Callable[[], T]) -> T:
        with self._state.times("reclassify"):
            moved = place()
            self._publisher.placement()
        return moved
