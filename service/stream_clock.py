"""One clock for all live streams: it runs while there are some, and writes the same bytes to each that is due and reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

EARLY_RATIO = 0.1
"""A message follows the first one after this share of its stream's interval at the least."""
RESOLUTION_SECONDS = 0.001


class Writable(Protocol):
    """The connection of a stream."""

    @property
    def is_read(self) -> bool:
        """Whether the client has read everything so far."""
        ...

    def push(self, part: bytes) -> None:
        """Send a part of the answer under way, without waiting."""
        ...


class Subscriber:
    """A stream under way."""

    def __init__(
        self, connection: Writable, message: Callable[[], bytes], seconds: float, permitted: Callable[[], bool]
    ) -> None:
        """`message` returns the next message, or nothing; `permitted` whether the stream may go on."""
        self._connection, self._message, self._permitted = connection, message, permitted
        self._seconds = seconds
        self.due = 0.0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the stream has to end, with the error if there was one."""

    def serve(self, now: float) -> None:
        """Send the next message, and find when the one after is due: at a whole multiple of the interval, so that streams of one
        rate are due together. A client that has not read the message before gets the newest when it has."""
        self.due = (now // self._seconds + 1) * self._seconds
        if self.due - now < EARLY_RATIO * self._seconds:
            self.due += self._seconds
        if self.ended.done() or not self._connection.is_read:
            return
        try:
            if not self._permitted():
                self.ended.set_result(None)
            elif part := self._message():
                self._connection.push(part)
        except Exception as error:
            self.ended.set_exception(error)


class StreamClock:
    """Serves subscribers when they are due."""

    def __init__(self) -> None:
        self._subscribers: dict[Subscriber, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def serving(self, subscriber: Subscriber) -> Iterator[None]:
        """Serve a subscriber at once, and whenever it is due, during the body of a `with`."""
        subscriber.serve(time.monotonic())
        self._subscribers[subscriber] = None
        self._wind()
        try:
            yield
        finally:
            del self._subscribers[subscriber]
            self._wind()

    def _tick(self) -> None:
        now = time.monotonic()
        for each in self._subscribers:
            if each.due <= now + RESOLUTION_SECONDS:
                each.serve(now)
        self._wind()

    def _wind(self) -> None:
        """Set the timer to the next that is due; without subscribers there is none."""
        if self._timer is not None:
            self._timer.cancel()
        due = min((each.due for each in self._subscribers), default=None)
        self._timer = None if due is None else asyncio.get_running_loop().call_at(due, self._tick)
