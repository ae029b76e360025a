"""The live stream: server-sent events with the newest snapshot, at a rate the client chooses. Nothing is queued. One clock serves
all streams."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Query, Request
from fastapi.sse import format_sse_event
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adaptive_rec.service.documented import answers
from adaptive_rec.service.knobs_api import etag
from adaptive_rec.service.problems import json_bytes, problem_response
from adaptive_rec.service.run_api import by_cookie, moving_members, stats, write_status
from adaptive_rec.service.run_view import RunView
from adaptive_rec.service.security import UNIX, Lane, RequestLimits

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


PING_SECONDS = 10.0
FRESH_SECONDS = 0.05
"""Greatest age of a message."""
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
RETRY_MILLISECONDS = 1000
"""How long a browser waits before it connects again."""
UNIX_STREAMS = 16
"""The most streams of the Unix socket, so that commands of the run's user have places."""


class StreamSlots:
    """Counts the open streams of a lane against their limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken: Counter[Lane] = Counter()

    def limit(self, lane: Lane) -> int:
        return min(self._limit, UNIX_STREAMS) if lane == UNIX else self._limit

    @contextmanager
    def one(self, lane: Lane) -> Iterator[None]:
        self.taken[lane] += 1
        try:
            yield
        finally:
            self.taken[lane] -= 1


class LiveStream(Response):
    """A response that lasts until its client leaves or signs out. It takes and releases its own slot, so no slot can leak."""

    media_type = "text/event-stream"

    def __init__(
        self,
        slots: StreamSlots,
        clock: StreamClock,
        message: Callable[[], bytes],
        seconds: float,
        permitted: Callable[[], bool] = lambda: True,
    ) -> None:
        """`permitted`: whether the stream may go on; not after its browser has signed out."""
        super().__init__(headers=STREAM_HEADERS)
        self._slots, self._clock = slots, clock
        self._message, self._seconds, self._permitted = message, seconds, permitted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lane = scope["state"]["lane"]
        if self._slots.taken[lane] >= (most := self._slots.limit(lane)):
            full = problem_response(503, f"at most {most} streams may be open", {"Retry-After": "5"})
            return await full(scope, receive, send)
        with self._slots.one(lane):
            headers = [header for header in self.raw_headers if header[0] != b"content-length"]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            stream = Subscriber(scope["state"]["connection"], self._message, self._seconds, self._permitted)
            gone = asyncio.create_task(until_gone(receive))
            try:
                with self._clock.serving(stream):
                    await asyncio.wait({gone, stream.ended}, return_when=asyncio.FIRST_COMPLETED)
                if stream.ended.done():
                    stream.ended.result()  # raises what has ended it
                await send({"type": "http.response.body", "body": b""})
            finally:
                gone.cancel()


async def until_gone(receive: Receive) -> None:
    """Return when the client has left; `protocol` throws those out that do not read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def router(view: RunView, limits: RequestLimits) -> APIRouter:
    routes = APIRouter(prefix="/api/v1", tags=["run"])
    slots, feed, clock = StreamSlots(limits.streams), Feed(view), StreamClock()
    content = {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Server-sent events"}
    documented = answers(None, 503)
    documented["responses"][200] = content

    @routes.get("/stream", **documented, response_class=LiveStream, operation_id="stream")
    async def stream(
        request: Request, hz: Annotated[float, Query(ge=1, le=10, description="Messages a second, at most.")] = 2
    ) -> LiveStream:
        """Newest status and counters whenever they have changed; never older ones."""
        state, browser = request.state, by_cookie(request)
        return LiveStream(
            slots,
            clock,
            messages(feed, state.scope, browser),
            1 / hz,
            lambda: not browser or state.sessions.scope_of(state.session_cookies) == state.scope,
        )

    @routes.head("/stream", include_in_schema=False)
    async def stream_head() -> Response:
        """The headers of a stream, which has no end that a HEAD could wait for."""
        return Response(headers=STREAM_HEADERS, media_type=LiveStream.media_type)

    return routes


class Feed:
    """Holds the newest message for each scope, with and without a session, made once for all streams."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._state: Any = None
        self._made_at = -math.inf
        self._messages: dict[tuple[str, bool], bytes] = {}
        self._tag = -1, ""
        self.number = 0
        """Grows with each new message."""

    def look(self) -> int:
        """Check for changes, and return the number of the newest message."""
        view = self._view
        if time.monotonic() - self._made_at >= FRESH_SECONDS:
            self._made_at = time.monotonic()
            view.refresh()
            state = (view.version(), view.pulse())
            if state != self._state:
                self._state, self._messages = state, {}
                self.number += 1
        return self.number

    def message(self, scope: str, session: bool = False) -> bytes:
        """Return the newest message, the same bytes for all."""
        if (scope, session) not in self._messages:
            view, now = self._view, moving_members(self._view)
            parts = write_status(view, now, scope, session), view.answers.get("stream", self._beside_status)
            self._messages[scope, session] = b'event: snapshot\ndata: {"status":%b,%b\nid: %d\n\n' % (*parts, now["step"])
        return self._messages[scope, session]

    def _beside_status(self) -> bytes:
        """Return the members of a message after the status, and the end of the object."""
        view = self._view
        if view.knobs.reports != self._tag[0]:
            self._tag = view.knobs.reports, etag(view.knobs.desired)
        members = {"stats": stats(view), "last_event_id": view.events.last_id, "knobs_etag": self._tag[1]}
        return json_bytes(members)[1:]


def messages(feed: Feed, scope: str, session: bool = False) -> Callable[[], bytes]:
    """Return a function that gives one client its next message: empty if nothing changed, a comment after a long silence."""
    sent = -1
    sent_at = time.monotonic()

    def message() -> bytes:
        nonlocal sent, sent_at
        number = feed.look()
        if number == sent:
            if time.monotonic() - sent_at < PING_SECONDS:
                return b""
            sent_at = time.monotonic()
            return format_sse_event(comment="nothing new")
        retry = b"retry: %d\n\n" % RETRY_MILLISECONDS if sent < 0 else b""
        sent, sent_at = number, time.monotonic()
        text = feed.message(scope, session)
        return text[:-1] + retry if retry else text

    return message
