"""The sidecar's end of the link to the trainer: commands go out, one answer each comes back, knobs are told unasked.

What the run shall do (`desired`) is what the trainer last told, with the changes laid over it that it has not answered
yet: one it refuses falls out by itself.
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
"""How long a client is kept waiting for the step boundary."""


class KnobState:
    """Knob values: what runs now (`effective`), what was asked for (`desired`)."""

    def __init__(self, desired: Values, effective: Values, step: int = 0) -> None:
        self.effective = dict(effective)
        self.effective_since_step = step
        self._told = dict(desired)
        self._asked: dict[int, Values] = {}

    @property
    def desired(self) -> Values:
        values = dict(self._told)
        for changes in self._asked.values():
            values.update(changes)
        return values

    def ask(self, number: int, changes: Values) -> None:
        self._asked[number] = dict(changes)

    def answered(self, reply: Mapping[str, Any]) -> None:
        """A change took effect, or was refused."""
        changes = self._asked.pop(reply["id"], None)
        if changes is not None and "error" not in reply:
            self._told.update(changes)
            if reply["step"] >= self.effective_since_step:
                self.effective.update(changes)
                self.effective_since_step = reply["step"]

    def told(self, knobs: Mapping[str, Any]) -> None:
        """Values that came over the link. Where the board was ahead of it, only what was still pending counts."""
        desired, effective = dict(knobs["desired"]), dict(knobs["effective"])
        if knobs["step"] < self.effective_since_step:
            pending = {name: value for name, value in desired.items() if value != effective.get(name)}
            self._told = {**self.effective, **pending}
        else:
            self._told, self.effective = desired, effective
            self.effective_since_step = knobs["step"]

    def seen(self, board: Mapping[str, Any]) -> None:
        """A board just written. It has changes, too, of which nothing came over the link: replayed ones, or a library's."""
        effective, step = board.get("knobs") or {}, board.get("knobs_step", 0)
        if not effective or step < self.effective_since_step or effective == self.effective:
            return
        settled = {name: value for name, value in effective.items() if self._told.get(name) == self.effective.get(name)}
        self._told = {**self._told, **settled}
        self.effective, self.effective_since_step = dict(effective), step


class TrainerLink:
    """Commands to the trainer. All of it happens in the event loop's thread."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, knobs: KnobState) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.knobs = knobs

    async def listen(self) -> None:
        """Take in what the trainer says until it closes the link, or dies."""
        with suppress(ConnectionError):
            while line := await self._reader.readline():
                self.take(json.loads(line))

    def take(self, message: Mapping[str, Any]) -> None:
        """One message of the trainer: values of the knobs, or the answer to a command."""
        if "knobs" in message:
            return self.knobs.told(message["knobs"])
        self.knobs.answered(message)
        waiting = self._waiting.pop(message["id"], None)
        if waiting and not waiting.done():
            waiting.set_result(dict(message))

    def ready(self) -> None:
        """Tell the trainer that its run is about to be served."""
        self._writer.write(b'{"id": 0, "command": "ready"}\n')

    def send(self, command: str, **details: Any) -> asyncio.Future[dict[str, Any]]:
        """Hand a command over, in the order of the calls; nothing is awaited before it is on its way."""
        number = next(self._numbers)
        if command == "change_knobs":
            self.knobs.ask(number, details["changes"])
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps({"id": number, "command": command, **details}).encode() + b"\n")
        return self._waiting[number]

    async def reply(
        self, sent: asyncio.Future[dict[str, Any]], seconds: float = REPLY_SECONDS
    ) -> dict[str, Any] | None:
        """The trainer's answer; None where it takes longer than a client should wait. It may come later all the same."""
        try:
            return await asyncio.wait_for(asyncio.shield(sent), seconds)
        except TimeoutError:
            return None
