"""The sidecar's end of the link to the trainer: commands go out; answers and new knob values come in.

The desired knobs are those last reported by the trainer, with the changes on top that it has not answered yet. A change
that it refuses is dropped.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from adaptive_rec.service.hello import Values

REPLY_SECONDS = 2.0
"""Longest time that a client waits for the step boundary."""


class KnobState:
    """Knob values in effect (`effective`) and requested (`desired`)."""

    def __init__(self, desired: Values, effective: Values, step: int = 0) -> None:
        self.effective = dict(effective)
        self.effective_since_step = step
        self._reported = dict(desired)
        self._requested: dict[int, Values] = {}

    @property
    def desired(self) -> Values:
        values = dict(self._reported)
        for changes in self._requested.values():
            values.update(changes)
        return values

    def request(self, number: int, changes: Values) -> None:
        self._requested[number] = dict(changes)

    def answered(self, reply: Mapping[str, Any]) -> None:
        """Take the trainer's answer to a change, which took effect or was refused."""
        changes = self._requested.pop(reply["id"], None)
        if changes is not None and "error" not in reply:
            self._reported.update(changes)
            if reply["step"] >= self.effective_since_step:
                self.effective.update(changes)
                self.effective_since_step = reply["step"]

    def take_report(self, knobs: Mapping[str, Any]) -> None:
        """Take values from the link. If the board was newer, only the values still pending count."""
        desired, effective = dict(knobs["desired"]), dict(knobs["effective"])
        if knobs["step"] < self.effective_since_step:
            pending = {name: value for name, value in desired.items() if value != effective.get(name)}
            self._reported = {**self.effective, **pending}
        else:
            self._reported, self.effective = desired, effective
            self.effective_since_step = knobs["step"]

    def take_board(self, board: Mapping[str, Any]) -> None:
        """Take values from a new board. It also has changes that never came over the link: replayed ones, and those of a program
        that trains with the library."""
        effective, step = board.get("knobs") or {}, board.get("knobs_step", 0)
        if not effective or step < self.effective_since_step or effective == self.effective:
            return
        settled = {
            name: value for name, value in effective.items() if self._reported.get(name) == self.effective.get(name)
        }
        self._reported = {**self._reported, **settled}
        self.effective, self.effective_since_step = dict(effective), step


class TrainerLink:
    """Sends commands to the trainer. Only the event loop's thread uses it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, knobs: KnobState) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.knobs = knobs

    async def listen(self) -> None:
        """Take the trainer's messages until it closes the link or ends."""
        with suppress(ConnectionError):
            while line := await self._reader.readline():
                self.take(json.loads(line))

    def take(self, message: Mapping[str, Any]) -> None:
        """Take one message: new values of the knobs, or the answer to a command."""
        if "knobs" in message:
            return self.knobs.take_report(message["knobs"])
        self.knobs.answered(message)
        waiting = self._waiting.pop(message["id"], None)
        if waiting and not waiting.done():
            waiting.set_result(dict(message))

    def ready(self) -> None:
        """Report to the trainer that the sidecar is ready to serve."""
        self._writer.write(b'{"id": 0, "command": "ready"}\n')

    def send(self, command: str, **details: Any) -> asyncio.Future[dict[str, Any]]:
        """Send a command; commands keep the order of the calls. Nothing is awaited before it is sent."""
        number = next(self._numbers)
        if command == "change_knobs":
            self.knobs.request(number, details["changes"])
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps({"id": number, "command": command, **details}).encode() + b"\n")
        return self._waiting[number]

    async def reply(
        self, sent: asyncio.Future[dict[str, Any]], seconds: float = REPLY_SECONDS
    ) -> dict[str, Any] | None:
        """Return the trainer's answer, or None after `seconds`. The answer may still come later."""
        try:
            return await asyncio.wait_for(asyncio.shield(sent), seconds)
        except TimeoutError:
            return None
