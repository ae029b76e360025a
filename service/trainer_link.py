"""The sidecar's end of the link to the trainer: commands go out; answers and new knob values come in.

The trainer alone checks and keeps the knobs: it reports the desired ones when it accepts a change, before it answers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from adaptive_rec.service.hello import Values

REPLY_SECONDS = 2.0
"""Longest time that a client waits for the step boundary."""
ACCEPT_SECONDS = 10.0
"""Longest time that a client waits until the trainer has checked a change of knobs, which needs no step boundary."""


class KnobState:
    """Knob values in effect (`effective`) and requested (`desired`), as the trainer last reported them."""

    def __init__(
        self, desired: Values, effective: Values, step: int = 0, rollbacks: int = 0, waiting: Sequence[Values] = (),
        changes: int = 0,
    ) -> None:  # fmt: skip
        """`rollbacks`: those of the run before this report; each made the number of steps smaller. `waiting`: the changes that
        lead from effective to desired values, oldest first. `changes`: how many the trainer has made; several may be of one
        step."""
        self.desired = dict(desired)
        self.effective = dict(effective)
        self.effective_since_step = step
        self.rollbacks = rollbacks
        self.waiting = list(waiting)
        self.changes = changes
        self.reports = 0
        """Grows with each report that was taken."""

    def copy(self) -> KnobState:
        """Return the knobs as they are at this moment, for an answer whose parts must agree."""
        return KnobState(self.desired, self.effective, self.effective_since_step, self.rollbacks, self.waiting, self.changes)

    @property
    def _since(self) -> tuple[int, int, int]:
        return self.rollbacks, self.effective_since_step, self.changes

    def take_report(self, knobs: Mapping[str, Any]) -> None:
        """Take values from the link. If the board was newer, only the values still pending count."""
        self.reports += 1
        desired, effective = dict(knobs["desired"]), dict(knobs["effective"])
        self.waiting = list(knobs.get("waiting", ()))
        since = knobs.get("rollbacks", 0), knobs["step"], knobs.get("changes", 0)
        if since < self._since:
            pending = {name: value for name, value in desired.items() if value != effective.get(name)}
            self.desired = {**self.effective, **pending}
        else:
            self.desired, self.effective = desired, effective
            self.rollbacks, self.effective_since_step, self.changes = since

    def take_board(self, board: Mapping[str, Any]) -> None:
        """Take values from a new board. It also has changes that never came over the link: replayed ones, and those of a program
        that trains with the library."""
        effective = board.get("knobs") or {}
        since = board.get("rollbacks", 0), board.get("knobs_step", 0), board.get("knob_changes", 0)
        if not effective or since < self._since or (effective == self.effective and since[0] == self.rollbacks):
            return
        self.reports += 1
        settled = {
            name: value for name, value in effective.items() if self.desired.get(name) == self.effective.get(name)
        }
        self.desired = {**self.desired, **settled}
        self.effective, (self.rollbacks, self.effective_since_step, self.changes) = dict(effective), since


class SentCommand:
    """A command on its way. The trainer accepts it before the step boundary at which it is carried out."""

    def __init__(self) -> None:
        self.sent_at = time.monotonic()
        self.accepted: asyncio.Future[Values] = asyncio.get_running_loop().create_future()
        """The trainer's first answer: what a change of knobs will change, or the outcome if that came first."""
        self.outcome: asyncio.Future[Values] = asyncio.get_running_loop().create_future()


class TrainerLink:
    """Sends commands to the trainer. Only the event loop's thread uses it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, knobs: KnobState) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, SentCommand] = {}
        self._scraped = "", 0.0
        """Phase and time of the last scrape that the trainer was told of."""
        self.knobs = knobs

    async def listen(self) -> None:
        """Take the trainer's messages until it closes the link or ends."""
        with suppress(ConnectionError):
            while line := await self._reader.readline():
                self.take(json.loads(line))

    def take(self, message: Mapping[str, Any]) -> None:
        """Take one message: new values of the knobs, the question whether the sidecar lives, or an answer to a command."""
        if "knobs" in message:
            return self.knobs.take_report(message["knobs"])
        if "ping" in message:
            return self._writer.write(b'{"id": 0, "command": "alive"}\n')
        sent = self._waiting.get(message["id"])
        if sent is None:
            return
        values = dict(message.get("accepted", message))
        if not sent.accepted.done():
            sent.accepted.set_result(values)
        if "accepted" not in message:
            del self._waiting[message["id"]]
            sent.outcome.set_result(values)

    def ready(self) -> None:
        """Report to the trainer that the sidecar is ready to serve."""
        self._writer.write(b'{"id": 0, "command": "ready"}\n')

    def damaged(self, text: str) -> None:
        """Report to the trainer, for the terminal, what is damaged in the files of the run."""
        self._writer.write(json.dumps({"id": 0, "command": "damaged", "text": text}).encode() + b"\n")

    def scraped(self, phase: str) -> None:
        """Report to the trainer that a scraper has read the metrics while the run was in this phase: at most once a second,
        and always when the phase is another one than was reported last."""
        now = time.monotonic()
        if phase != self._scraped[0] or now - self._scraped[1] >= 1:
            self._scraped = phase, now
            self._writer.write(json.dumps({"id": 0, "command": "scraped", "phase": phase}).encode() + b"\n")

    def keep_sessions(self, sessions: Mapping[str, str]) -> None:
        """Give the trainer the sessions of browsers, for the sidecar after this one."""
        self._writer.write(json.dumps({"id": 0, "command": "sessions", "sessions": sessions}).encode() + b"\n")

    def send(self, command: str, **details: Any) -> SentCommand:
        """Send a command; commands keep the order of the calls. Nothing is awaited before it is sent."""
        number, sent = next(self._numbers), SentCommand()
        self._waiting[number] = sent
        self._writer.write(json.dumps({"id": number, "command": command, **details}).encode() + b"\n")
        return sent

    async def reply(self, sent: SentCommand, seconds: float = REPLY_SECONDS) -> Values | None:
        """Return the outcome of a command, or None after `seconds`. It may still come later."""
        return await _within(sent.outcome, seconds)

    async def accepted(self, sent: SentCommand) -> Values | None:
        """Return the trainer's first answer to a change of knobs, or None where it has not answered at all."""
        return await _within(sent.accepted, ACCEPT_SECONDS)


async def _within(future: asyncio.Future[Values], seconds: float) -> Values | None:
    try:
        return await asyncio.wait_for(asyncio.shield(future), seconds)
    except TimeoutError:
        return None
