"""Answers that are written once for each report of a run, and shared by all who ask for them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adaptive_rec.service.problems import json_bytes

T = TypeVar("T")
MARK = secrets.token_hex(16)
"""Stands in a text for a value that is left open; no name or text of a run can hold it."""


class WrittenAnswers(Generic[T]):
    """Answers by the requests they belong to, until `version` changes."""

    def __init__(self, version: Callable[[], Hashable], most: int = 64) -> None:
        self.version, self._most = version, most
        self._answers: dict[Hashable, T] = {}
        self._of: Hashable = None

    def known(self, request: Hashable) -> T | None:
        """Return the answer to a request; None where it is not written yet, or is not true any more."""
        return self._answers.get(request) if self._of == self.version() else None

    def keep(self, request: Hashable, version: Hashable, answer: T) -> T:
        """Keep an answer that was made of a version or a later one. Where there are too many, the others go."""
        if version != self._of or len(self._answers) >= self._most:
            self._of, self._answers = version, {}
        self._answers[request] = answer
        return answer

    def get(self, request: Hashable, write: Callable[[], T]) -> T:
        """Return the answer to a request; `write` makes it where it is not known."""
        version = self.version()
        found = self._answers.get(request) if self._of == version else None
        return self.keep(request, version, write()) if found is None else found


class Template:
    """The JSON of an object with some members left open, which change more often than all others."""

    def __init__(self, content: Mapping[str, Any], open_members: Iterable[str]) -> None:
        text = json_bytes({**content, **{name: f"{MARK}{name}" for name in open_members}})
        self._parts = re.split(rb'"%b([a-z_]+)"' % MARK.encode(), text)

    def fill(self, values: Mapping[str, Any]) -> bytes:
        """Return the JSON with these values of the open members."""
        parts = self._parts.copy()
        parts[1::2] = [json_bytes(values[name.decode()]) for name in parts[1::2]]
        return b"".join(parts)


class RepeatedAnswer(Response):
    """An answer that a connection gives again by itself to the very bytes of its request, where `again` returns one: no code
    between the connection and `again` has anything new to say (`protocol.py`)."""

    def __init__(self, answer: Response, again: Callable[[], Response | None]) -> None:
        super().__init__()
        self._answer, self._again = answer, again

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope, receive, send)
        state = scope["state"]
        if "connection" in state:  # not where the application is called without a server
            state["connection"].remember(state["admit_again"], self._again)


def repeat_answer(again: Callable[[], Response]) -> RepeatedAnswer:
    """Return an answer that `again` can always make."""
    return RepeatedAnswer(again(), again)
