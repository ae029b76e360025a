"""What the training thread does with the commands left in its mailbox: between two steps, and while it is paused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ByteSize

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.errors import AdaptiveRecError, ConflictError, MemoryPlanError, TrainingError, first_line
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.telemetry import Event, Snapshot
from adaptive_rec.placement import Migration
from adaptive_rec.policy import Policy
from adaptive_rec.policy.find import load_policy, why_not_live
from adaptive_rec.runtime.splitting import TrialTimes

if TYPE_CHECKING:
    from adaptive_rec.runtime.session import Session

T = TypeVar("T")

TOO_SMALL = "the device's memory must hold a step; lower run.batch_size or knobs.prefetch_depth, or take run.device=cpu"

PAUSED_POLL_SECONDS = 0.2
"""How soon a paused run notices a signal; commands wake it at once."""


def check_policy(knobs: Knobs, present: Policy) -> None:
    """Raise ConfigError or ConflictError where a run under a policy may not go over to the one these knobs name."""
    if reason := why_not_live(load_policy(knobs.policy), present):
        raise ConflictError(reason)


def shown(name: str, value: Any) -> str:
    """A knob's value as people read it."""
    return ByteSize(value).human_readable() if name.endswith("_bytes") else str(value)


class Control:
    """Each command becomes an event of the journal and an answer that names the step."""

    def __init__(self, runtime: Session) -> None:
        self._runtime = runtime
        self.paused = False
        self.scheduled: Mapping[int, list[Command]] = {}
        """Commands to carry out at given steps: those of the run that is made again."""

    def obey(self) -> Iterator[Event | Snapshot]:
        """Carry out what was asked. While paused, stay here; only a stop, by command or signal, or `resume` ends that."""
        run = self._runtime
        for command in self.scheduled.get(run.step_number, ()):
            if command.verb != "halve_budget":
                run.mailbox.send(command)
        yield from self._carry_out(run.mailbox.drain())
        yield from self.wait_while_paused()

    def wait_while_paused(self) -> Iterator[Event | Snapshot]:
        run = self._runtime
        if not self.paused:
            return
        yield from run.reports.finish(wait=True)
        with run.recorder.paused(), run.during("paused"):
            while self.paused and not run.stop_requested:
                yield from self._carry_out(run.mailbox.wait(PAUSED_POLL_SECONDS))
                if run.saving is not None:
                    yield from run.saving.written(wait=False)
                run.publisher.pulse()

    def go_on(self) -> Iterator[Event | Snapshot]:
        """A run that was paused when it was saved waits before its next step, where commands can reach it."""
        if self.paused:
            yield self._event(
                "paused",
                "paused, as when it was saved; adaptive-rec resume or POST /api/v1/control/resume lets it go on",
            )
            yield from self.wait_while_paused()
        elif self._runtime.was_paused:
            yield self._event("resumed", "the run was paused when it was saved; no command can reach it, so it goes on")

    def _carry_out(self, commands: list[Command]) -> Iterator[Event]:
        for command in commands:
            try:
                if command.verb == "checkpoint":
                    yield from self._checkpoint(command)
                    continue
                event: Event = getattr(self, f"_{command.verb}")(**command.values)
                self._runtime.changes += 1
                outcome: Mapping[str, Any] | AdaptiveRecError = {"step": event.step, **event.details}
            except TrainingError as error:
                command.answer(error)
                raise
            except AdaptiveRecError as error:
                event, outcome = self._event("warning", f"{command.verb}: {error}"), error
            if command.verb == "change_knobs":
                self._runtime.mailbox.settle(self._runtime.knobs)
            self._runtime.publisher.board()
            yield event  # in the journal first, then answered
            command.answer(outcome)

    def _checkpoint(self, command: Command) -> Iterator[Event]:
        """Begin one; it is answered when it is there."""
        saving = self._runtime.saving
        if saving is None:
            raise ConflictError(
                "this training loop is not the runtime's own, so it saves by itself: runtime.state_dict()"
            )
        yield from saving.asked(command)

    def _event(self, kind: str, text: str, **details: Any) -> Event:
        return Event(self._runtime.step_number, kind, text, details)

    # Memory ----------------------------------------------------------------------------------------------------------

    def before_step(self) -> Iterator[Event]:
        """Halve the hot budget where the run that is made again did so, for want of memory, before this step."""
        for command in self.scheduled.get(self._runtime.step_number, ()):
            if command.verb == "halve_budget":
                yield self._halve_budget(**command.values)

    def give_up_memory(self, reason: str) -> Iterator[Event]:
        """The device's memory was too small for a step: halve the hot budget. Raises MemoryPlanError where that is no help."""
        run = self._runtime
        held, before = run.store.device_bytes, run.knobs
        smaller = min(before.hot_budget_bytes, held) // 2
        if not held or run.policy.budget_bytes(before.changed({"hot_budget_bytes": smaller}), held) >= held:
            raise MemoryPlanError(
                f"{TOO_SMALL}: policy {before.policy} keeps {shown('_bytes', held)} of rows there: {reason}"
            )
        yield self._event("warning", f"out of device memory, the hot budget is halved: {reason}")
        run.store.free_memory()
        try:
            yield self._halve_budget(hot_budget_bytes=smaller)
        except ConflictError as error:
            raise MemoryPlanError(f"{TOO_SMALL}: {error}") from error

    def _halve_budget(self, **changes: Any) -> Event:
        event = self._change_by_itself(changes)
        return replace(event, details={**event.details, "before_step": True})

    def _change_by_itself(self, changes: Mapping[str, Any]) -> Event:
        """Change knobs that no command asked to change."""
        event = self._change_knobs(**changes)
        self._runtime.mailbox.changed(self._runtime.knobs)
        self._runtime.publisher.board()
        return event

    def change_at_start(self, changes: Mapping[str, Any]) -> Event:
        """A run goes on with other knobs than it was saved with. Made again, it changes them at the same place."""
        return self._change_by_itself(changes) if self._runtime.window_due else self._halve_budget(**changes)

    # One method for each verb ----------------------------------------------------------------------------------------

    def _change_knobs(self, **changes: Any) -> Event:
        run = self._runtime
        before, after = run.knobs, run.knobs.changed(changes)
        if after.policy != before.policy:
            self._go_over_to(load_policy(after.policy), after)
            run.splitting.forget()
        elif after.hot_budget_bytes != before.hot_budget_bytes:
            self._place_or_go_back(lambda: run.reclassifier.place_again(run.step_number, after))
            run.splitting.forget()
        run.knobs, run.knobs_step = after, run.step_number
        old, new = before.model_dump(), after.model_dump()
        changed = {name: {"old": old[name], "new": new[name]} for name in new if new[name] != old[name]}
        text = ", ".join(f"{name} {shown(name, old[name])} -> {shown(name, new[name])}" for name in changed)
        return self._event("knobs", text or "knobs set to the values they had", changed=changed)

    def _go_over_to(self, policy: Policy, knobs: Knobs) -> None:
        run = self._runtime
        before = run.policy
        run.policy = policy
        try:
            self._place_or_go_back(lambda: run.reclassifier.change_policy(policy, run.step_number, knobs))
        except ConflictError:
            run.policy = before
            raise

    def _place_or_go_back(self, place: Callable[[], object]) -> None:
        """Place rows for new knobs. Where that fails, for want of memory or by a fault of the policy, all is as before."""
        run = self._runtime
        policy = run.reclassifier.policy
        try:
            self._place(place)
        except Exception as error:
            run.reclassifier.policy = policy
            self._place(lambda: run.reclassifier.place_again(run.step_number, run.knobs))
            reason = first_line(error)
            raise ConflictError(f"rows could not be placed for these knobs, the old ones stay: {reason}") from error

    def _pause(self) -> Event:
        self.paused = True
        return self._event("paused", "paused")

    def _resume(self) -> Event:
        self.paused = False
        return self._event("resumed", "training goes on")

    def _stop(self) -> Event:
        self._runtime.stop_requested, self.paused = True, False
        return self._event("stopping", "asked to stop: a checkpoint and a summary follow")

    def _reclassify(self) -> Event:
        run = self._runtime
        if not run.policy.tracks_popularity:
            how = "moves rows where its phases begin" if run.policy.arranges_stream else "never moves rows"
            raise ConflictError(f"policy {run.knobs.policy} {how}, there is nothing to reclassify")
        moved = self._place(lambda: run.reclassifier.place_again(run.step_number, run.knobs))
        return self.reclassified(moved, asked_for=True)

    def _choose_split(self, split: bool, whole_seconds: float, split_seconds: float) -> Event:
        self._runtime.splitting.chosen = split
        return self.split_chosen(TrialTimes(whole_seconds, split_seconds))

    def split_chosen(self, outcome: TrialTimes) -> Event:
        """The event of a choice between whole batches and split ones, with the times it was made by."""
        whole, split = (f"{seconds * 1e3:.2f} ms" for seconds in (outcome.whole_seconds, outcome.split_seconds))
        chosen = "popular samples run first" if outcome.split else "batches run whole"
        text = f"{chosen}: a step took {whole} whole and {split} split"
        return self._event("split", text, split=outcome.split, **asdict(outcome))

    def _note(self, kind: str, text: str) -> Event:
        return self._event(kind, text)

    # Placement -------------------------------------------------------------------------------------------------------

    def _place(self, place: Callable[[], T]) -> T:
        with self._runtime.times("reclassify"):
            moved = place()
            self._runtime.publisher.placement()
        return moved

    def reclassified(self, *moved: Migration, asked_for: bool = False, **details: Any) -> Event:
        """The event of rows that changed tier, in one migration or in several."""
        store = self._runtime.store
        promoted, demoted = sum(len(one.promote) for one in moved), sum(len(one.demote) for one in moved)
        stale = store.device.stale_rows
        return self._event(
            "reclassified",
            f"{promoted:,} rows became hot, {demoted:,} cold; {stale:,} of {store.device.hot_rows:,} hot rows are stale",
            asked_for=asked_for,
            promoted=promoted,
            demoted=demoted,
            stale_rows=stale,
            hot_rows=store.device.hot_rows,
            version=store.placement.version,
            stale_threshold=self._runtime.reclassifier.stale_threshold,
            **details,
        )
