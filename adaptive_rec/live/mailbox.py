"""The mailbox of a run: other threads leave commands in it and read the newest snapshot.

The training thread never waits for a reader. It empties the mailbox at every step boundary and while it is paused.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from adaptive_rec.config.knobs import Knobs, knobs_version
from adaptive_rec.errors import AdaptiveRecError, ConflictError
from adaptive_rec.live.telemetry import Snapshot

Verb = Literal[
    "change_knobs", "pause", "resume", "stop", "suspend", "fail", "reclassify", "checkpoint", "rollback", "note", "choose_split",
    "halve_budget", "skip_data", "evaluate", "put_off_trial",
]  # fmt: skip
Answer = Callable[[Mapping[str, Any] | AdaptiveRecError], None]
"""Called once by the training thread, with the outcome of a command or with the error that stopped it. It must not wait."""


Check = Callable[[Knobs, Knobs], None]
"""Raises ConfigError or ConflictError where a run cannot change from some knobs to others."""


class StaleError(ConflictError):
    """A change of knobs was based on values that have changed since."""


def ignore(_: Mapping[str, Any] | AdaptiveRecError) -> None:
    """Ignore the outcome of a command."""


@dataclass(frozen=True)
class Command:
    """A request that the training thread carries out between two steps."""

    verb: Verb
    values: Mapping[str, Any] = field(default_factory=dict)
    """The new knob values (change_knobs), kind and text (note), what `rollback_command` has checked (rollback), the reason
    (fail, suspend), or the samples of a window (evaluate, which only journals have)."""
    answer: Answer = ignore
    note: Mapping[str, Any] = field(default_factory=dict)
    """What the journal says besides of a change of knobs, or a rollback: `why`, and `undoes`, the number of the event that a
    change undoes (0: of a change that was not in effect yet)."""


@dataclass(frozen=True)
class WaitingChange:
    """A change of knobs that waits for a step boundary."""

    values: Mapping[str, Any]
    note: Mapping[str, Any]


LOST = {"change_knobs": "a change of knobs ({values})", "reclassify": "a reclassification", "rollback": "a rollback"}
"""Commands whose loss is worth a word, in words."""


def _shown(command: Command) -> dict[str, str]:
    return {"values": ", ".join(f"{name}={value}" for name, value in command.values.items())}


class Mailbox:
    """Holds commands until a step boundary. Any thread may send them; only the training thread takes them out."""

    def __init__(self, knobs: Knobs, check: Check = lambda *_: None) -> None:
        self.newest: Snapshot | None = None
        self._knobs_changed: Callable[[], None] = lambda: None
        self._effective = knobs
        self._waiting: list[WaitingChange] = []
        """Changes that were accepted and are not in effect yet, in order."""
        self._check = check
        self._closed = ""
        self._returned: list[Command] = []
        """Commands that were taken out and come first the next time."""
        self._lock = threading.Lock()
        self._commands: queue.Queue[Command] = queue.Queue()  # SimpleQueue may wait for ever when a signal comes

    def call_on_change(self, changed: Callable[[], None]) -> None:
        """Call a function, from any thread, when desired or effective knobs have changed. It must not wait."""
        self._knobs_changed = changed

    def publish(self, snapshot: Snapshot) -> None:
        self.newest = snapshot

    # Any thread ------------------------------------------------------------------------------------------------------

    @property
    def desired(self) -> Knobs:
        """The knobs as they will be after every command sent so far."""
        with self._lock:
            return self._desired()

    def _desired(self) -> Knobs:
        return self._effective.changed({name: value for change in self._waiting for name, value in change.values.items()})

    @property
    def waiting(self) -> list[dict[str, Any]]:
        """The changes that are not in effect yet, oldest first: what each changes (`changed`), and its note."""
        with self._lock:
            found, before = [], self._effective
            for change in self._waiting:
                after = before.changed(dict(change.values))
                found.append({"changed": before.differences(after), **change.note})
                before = after
            return found

    def change_knobs(self, **changes: Any) -> None:
        """Request new knob values, which take effect together at the next step boundary.

        Raises ConfigError in the calling thread if a name or value is wrong; then nothing changes.
        """
        self.send(Command("change_knobs", changes))

    def send(self, command: Command) -> None:
        """Send a command. Raises ConfigError for wrong values, ConflictError if the run takes no more commands."""
        with self._lock:
            self._check_open()
            if command.verb == "change_knobs":
                before = self._desired()
                self._check(before, before.changed(dict(command.values)))
            self._put(command)
        if command.verb == "change_knobs":
            self._knobs_changed()

    def patch_knobs(
        self, change: Callable[[Knobs], Knobs], answer: Answer, versions: Collection[str] | None, dry_run: bool,
        note: Mapping[str, Any] | None = None,
    ) -> tuple[Knobs, Knobs]:  # fmt: skip
        """Request the knobs that `change` makes of the desired ones. Return the desired knobs before and after. `note`: see
        `Command`.

        A dry run, or a change to equal values, sends no command, and `answer` is not called. Raises StaleError unless the
        desired knobs have one of `versions` (None: any), and the errors of `change` and of `send`.
        """
        with self._lock:
            self._check_open()
            before = self._desired()
            if versions is not None and knobs_version(before.model_dump()) not in versions:
                raise StaleError("If-Match must carry the current ETag; the knobs have changed since")
            after = change(before)
            self._check(before, after)
            changed = {name: each["new"] for name, each in before.differences(after).items()}
            if changed and not dry_run:
                self._put(Command("change_knobs", changed, answer, note or {}))
        if changed and not dry_run:
            self._knobs_changed()
        return before, after

    def _check_open(self) -> None:
        if self._closed:
            raise ConflictError(self._closed)

    def _put(self, command: Command) -> None:
        if command.verb == "change_knobs":
            self._waiting.append(WaitingChange(command.values, command.note))
        self._commands.put(command)

    # The training thread ---------------------------------------------------------------------------------------------

    def settle(self, effective: Knobs) -> None:
        """Remove the oldest change, which took effect or failed, and set the knobs in effect."""
        with self._lock:
            self._waiting.pop(0)
            self._effective = effective
        self._knobs_changed()

    def changed(self, effective: Knobs) -> None:
        """Set the knobs in effect after the run changed them itself. Requested changes stay pending."""
        with self._lock:
            self._effective = effective
        self._knobs_changed()

    def drain(self) -> list[Command]:
        """Take out all waiting commands."""
        return self.take()

    def wait(self, seconds: float) -> list[Command]:
        """Take out all waiting commands; if there is none, wait up to `seconds` for one."""
        return self.take(seconds)

    def put_back(self, commands: list[Command]) -> None:
        """Put commands back that were taken out and not carried out: they come first the next time."""
        self._returned = [*commands, *self._returned]

    def let_go(self, reason: str) -> None:
        """Detach from this run; the next one attaches. Until then changes of knobs are refused with the reason, and
        other commands wait."""

        def refuse(_before: Knobs, _after: Knobs) -> None:
            raise ConflictError(reason)

        with self._lock:
            self._check, self.newest = refuse, None

    def refuse_undoes(self, reason: str) -> None:
        """Refuse undoes that wait, as the run goes back: what they undo may be lost, or changed since. The journal says so."""
        self._returned = [self._refused(each, reason) if "undoes" in each.note else each for each in self.take()]

    def _refused(self, undo: Command, reason: str) -> Command:
        """Return the note that takes the place of an undo, which answers its client."""
        with self._lock:
            self._waiting.remove(WaitingChange(undo.values, undo.note))
        told = {"kind": "warning", "text": f"change_knobs: {reason}"}
        return Command("note", told, lambda _: undo.answer(ConflictError(reason)))

    def take_over(self, knobs: Knobs, check: Check) -> None:
        """Hold commands for another run from now on. Those that wait are kept."""
        with self._lock:
            self._effective, self._check = knobs, check
        self._knobs_changed()

    def take(self, seconds: float = 0.0) -> list[Command]:
        """Take out the commands that were sent to this process."""
        commands, self._returned = self._returned, []
        if commands:
            seconds = 0.0
        try:
            commands.append(self._commands.get(timeout=seconds) if seconds else self._commands.get_nowait())
            while True:
                commands.append(self._commands.get_nowait())
        except queue.Empty:
            return commands

    def close(self, reason: str) -> list[str]:
        """Accept no more commands, and answer the waiting ones with the reason. Returns what was accepted and is lost so."""
        with self._lock:
            self._closed = reason
            self._waiting.clear()
        left = self.take()
        for command in left:
            command.answer(ConflictError(reason))
        self._knobs_changed()
        return [f"{LOST[each.verb]} was not carried out: {reason}".format(**_shown(each)) for each in left if each.verb in LOST]
