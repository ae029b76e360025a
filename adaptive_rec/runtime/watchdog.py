"""The watchdog: judges rules on the reports that a run makes anyway, and has the run act on those that are broken."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from adaptive_rec.checkpoint.generation import step_of
from adaptive_rec.checkpoint.rollback_target import newest_up_to
from adaptive_rec.config.watch_rule import DISK_FREE
from adaptive_rec.errors import AdaptiveRecError, ConfigError, NotFiniteError
from adaptive_rec.live.mailbox import Answer, Command, Mailbox
from adaptive_rec.live.rollback import rollback_command
from adaptive_rec.live.telemetry import Evaluation, Event, Snapshot
from adaptive_rec.memory.disk import free_bytes
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.runtime.session import Report
from adaptive_rec.runtime.temporary_knobs import TemporaryKnobs
from adaptive_rec.runtime.watched_rule import Breach, WatchedRule, saved_breach
from adaptive_rec.saved import Saved, parts_by_number
from adaptive_rec.state.run_state import RunState
from adaptive_rec.units import counted


class Watchdog:
    """Watches the rules of `watch.rules`, on the training thread.

    Every rank judges, so that each checkpoint has what the rules have seen; rank 0 acts. What it wants done it sends as commands,
    like a client: all ranks carry them out at the same step boundary, the event first. While another run is replayed it does
    nothing, as what it did there is repeated from that run's journal.
    """

    def __init__(self, state: RunState, mailbox: Mailbox, options: RunOptions) -> None:
        """Raises ConfigError where a rule cannot be judged."""
        self._state = state
        self._mailbox = mailbox
        self._settings = state.config.watch
        rules = self._settings.parsed()
        self._rules = [WatchedRule(rule) for rule in rules if not rule.of_steps]
        self.of_steps = [rule for rule in rules if rule.of_steps]
        """The rules `loss is nan`."""
        self._acts = state.store.group.rank == 0 and options.replayed is None
        self._journal, self._checkpoints = options.journal, options.checkpoints
        self._folders = [options.journal.parent] if options.journal else []
        if any(watched.rule.metric == DISK_FREE for watched in self._rules):
            if not self._folders:
                raise ConfigError(f"watch.rules must not name {DISK_FREE} where the run has no directory")
            self._folders += [Path(state.config.run.disk)] if state.config.run.disk else []
        self._unwritten: list[tuple[Breach, Event]] = []
        """Breaches that no command was carried out for yet, with the events that were sent."""
        self._owed: list[Breach] = []
        """Breaches on which the run is to act when it goes on: a signal came before it did, or instead."""
        self._being_written: str | None = None
        """The checkpoint under way."""
        self._temporary = TemporaryKnobs(options.rollback)
        self._leaves = False
        """Whether the run was told to roll back, to stop or to fail: there is nothing else to do then."""

    def watched(self, reports: Iterable[Report]) -> Iterator[Report]:
        """Yield reports, and judge each of them once it is written."""
        for report in reports:
            yield report
            self.look(report)

    def judge_fault(self, error: NotFiniteError) -> Iterator[Event]:
        """Request a rollback where a rule says so; warn, and raise the error, where none does."""
        for rule in self.of_steps:
            self._act(Breach(rule, error.step, math.nan, error.step - 1, str(error)))
        if not self._leaves:
            yield from self.at_the_end()
            raise error

    def end(self) -> None:
        """Send no more commands, as the run ends."""
        self._acts = False

    def look(self, report: Report) -> None:
        """Judge what the run reports. Interim reports are left out: the next one has their steps, too."""
        if isinstance(report, Snapshot):
            if report.interim:
                return
            self._end_temporary_knobs(report.step)
            for watched in self._rules:
                if not watched.rule.of_evaluations:
                    self._judge(watched, report.step, self._value(report, watched.rule.metric))
        elif isinstance(report, Evaluation):
            for watched in self._rules:
                if watched.rule.of_evaluations:
                    self._judge(watched, report.step, report.quality.value(watched.rule.metric))
        elif report.kind in ("saving", "checkpoint", "checkpoint_failed"):
            self._being_written = report.details["checkpoint"] if report.kind == "saving" else None
        elif report.kind == "nan" and report.details.get("in_a_row") == 1:
            for rule in self.of_steps:
                self._act(Breach(rule, report.step, math.nan, report.step - 1, report.text))

    def _judge(self, watched: WatchedRule, step: int, value: float | None) -> None:
        if breach := watched.see(step, value, self._state.knobs.reclassify_every):
            self._act(breach)

    def _value(self, report: Snapshot, metric: str) -> float | None:
        if metric == DISK_FREE:
            return float(min(free_bytes(folder) for folder in self._folders))
        if metric == "loss" and report.skipped_sample_ratio == 1:  # no sample has one
            return None
        return float(getattr(report, metric))

    # Acting, on rank 0 ------------------------------------------------------------------------------------------------

    def _act(self, breach: Breach) -> None:
        """Have the run do what a rule says, or only warn where the run leaves anyway."""
        if not self._acts:
            return
        action = "warn" if self._leaves else breach.rule.action
        if action == "rollback":
            self._roll_back(breach)
            return
        self._announce(breach, action)
        if action == "pause":
            self._pause(breach)
        elif action in ("checkpoint", "stop"):
            self._leaves = action == "stop"
            self._mailbox.send(Command(action, note={"why": self._reason(breach)}))

    def _pause(self, breach: Breach) -> None:
        """Pause the run, or end it with a checkpoint where no command could have it go on."""
        reason = self._reason(breach)
        if self._state.reachable:
            self._mailbox.send(Command("pause", note={"why": reason}))
            return
        self._leaves = True
        self._mailbox.send(Command("suspend", {"reason": reason}))

    def _roll_back(self, breach: Breach) -> None:
        """Go back to the newest checkpoint from before the breach; give up where that was done too often."""
        from adaptive_rec.runtime.past_rollbacks import rollbacks_past

        rule, knobs, limit = breach.rule, self._state.knobs, self._settings.max_rollbacks
        try:
            changes = {change.name: change.of(knobs) for change in rule.knobs}
            knobs.changed(changes)
        except ConfigError as error:
            self._give_up(breach, str(error))
            return
        to_step = self._step_to_go_back_to(breach.sound_step)
        if to_step is None:
            sound = f"did not hold last at step {breach.sound_step:,}" if breach.sound_step else "has held from the start"
            why = f"its condition {sound} and no checkpoint is that old (checkpoint.every_steps, checkpoint.keep)"
            self._give_up(breach, why)
            return
        before = rollbacks_past(self._journal, to_step)
        if before >= limit:
            times = counted(before, "time")
            why = f"rules have rolled back the steps after {to_step} {times} (watch.max_rollbacks is {limit})"
            self._give_up(breach, why)
            return
        self._leaves = True
        self._announce(breach, "rollback", to_step=to_step)
        why = self._reason(breach)
        command = rollback_command(None, breach.sound_step, rule.skips_data, changes, why, refusal_for(self, breach))
        if rule.knobs_steps:
            temporary = self._temporary.note_of(changes, knobs, to_step + rule.knobs_steps)
            command = replace(command, note={**command.note, "temporary": temporary})
        self._mailbox.send(command)

    def act_on_what_is_owed(self) -> None:
        """Act on breaches, and have knobs go back, where a signal came before the run did."""
        if self._state.is_at_end:
            return
        owed, self._owed = self._owed, []
        for breach in owed:
            self._act(breach)
        self._send_back(self._temporary.still_returning(self._state.knobs))

    def _end_temporary_knobs(self, step: int) -> None:
        """Have knobs go back to what they were before a rule changed them, where their steps are over."""
        self._send_back(self._temporary.over(step, self._state.knobs))

    def _send_back(self, changes: Mapping[str, Any]) -> None:
        if changes and self._acts:
            self._mailbox.send(
                Command("change_knobs", changes, note={"why": "the steps for which a rule changed it are over"})
            )

    def _step_to_go_back_to(self, sound_step: int) -> int | None:
        """Return the step of the newest checkpoint at or before a step, the one under way included; None where there is none."""
        assert self._checkpoints is not None
        name = newest_up_to(self._checkpoints, sound_step)
        steps = [step_of(each) for each in (name, self._being_written) if each is not None]
        return max((step for step in steps if step <= sound_step), default=None)

    def refused(self, breach: Breach, error: AdaptiveRecError) -> None:
        """Give up, as the run cannot go back: it must not go on as if nothing had been. Where the run has ended meanwhile, it
        goes back when it is resumed."""
        self._leaves = False
        if self._acts:
            self._give_up(breach, str(error))
        else:
            self._owed.append(breach)

    def _give_up(self, breach: Breach, why: str) -> None:
        """End or pause the run, as it cannot be rolled back."""
        action = self._settings.at_limit
        self._announce(breach, action, f"no rollback, as {why}")
        if action == "pause":
            self._pause(breach)
            return
        self._leaves = True
        self._mailbox.send(Command("fail", {"reason": f"{self._reason(breach)}: {breach.why}; no rollback, as {why}"}))

    def _announce(self, breach: Breach, action: str, outcome: str = "", **details: Any) -> None:
        """Have the journal say that a rule is broken, before the run acts on it."""
        value = breach.value if math.isfinite(breach.value) else None
        about = {"rule": breach.rule.text, "metric": breach.rule.metric, "value": value, "action": action}
        about |= {"breach_step": breach.step, "sound_step": breach.sound_step, **details}
        event = Event(
            breach.step, "watchdog", "; ".join(filter(None, [self._reason(breach), breach.why, outcome])), about
        )
        self._unwritten.append((breach, event))
        written = partial(self._written, breach, event)
        self._mailbox.send(Command("note", {"kind": "watchdog", "text": event.text}, written, about))

    def _written(self, breach: Breach, event: Event, outcome: Any) -> None:
        if not isinstance(outcome, AdaptiveRecError):
            self._unwritten.remove((breach, event))

    @staticmethod
    def _reason(breach: Breach) -> str:
        return f"rule {breach.rule.text}"

    def at_the_end(self) -> Iterator[Event]:
        """Yield what was found at the last step, after which no command is carried out. A run that is stopped before its end acts
        on it when it goes on."""
        if self._state.stop_requested and not self._state.is_at_end:
            return
        for _, event in self._unwritten:
            details = {**event.details, "action": "warn"}
            yield Event(self._state.step, "watchdog", f"{event.text}; the run has ended", details)

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        rules = parts_by_number({"rule": each.rule.text, **each.state()} for each in self._rules)
        owed = parts_by_number(breach.state() for breach in [*self._owed, *(breach for breach, _ in self._unwritten)])
        return {"rules": rules, "temporary": self._temporary.state(), "owed": owed}

    def set_state(self, found: Saved) -> None:
        """Restore what the rules have seen. A rule that is new begins anew, and one that is gone is forgotten."""
        self._temporary.set_state(found.parts("temporary"))
        watched = {each.rule.text: each for each in self._rules}
        for part in found.parts("rules"):
            if (each := watched.get(part.text("rule"))) is not None:
                each.set_state(part)
            else:
                part.everything()
        if found.has("owed"):  # older versions had none
            rules = {rule.text: rule for rule in (*(each.rule for each in self._rules), *self.of_steps)}
            breaches = [saved_breach(part, rules) for part in found.parts("owed")]
            self._owed = [breach for breach in breaches if breach is not None]


def refusal_for(watchdog: Watchdog, breach: Breach) -> Answer:
    """Return what takes the outcome of a rollback. It keeps no watchdog alive whose run went back: that holds the old tables."""
    living = weakref.ref(watchdog)

    def answer(outcome: Mapping[str, Any] | AdaptiveRecError) -> None:
        found = living()
        if found is not None and isinstance(outcome, AdaptiveRecError):
            found.refused(breach, outcome)

    return answer
