"""The live stream: server-sent events with the newest snapshot, at a rate the client chooses. Nothing is queued."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.sse import format_sse_event
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adaptive_rec.service.documented import answers
from adaptive_rec.service.knobs_api import etag
from adaptive_rec.service.problems import json_bytes, problem_response
from adaptive_rec.service.run_api import by_cookie, stats, status
from adaptive_rec.service.run_view import RunView
from adaptive_rec.service.security import Lane, RequestLimits

PING_SECONDS = 10.0
FRESH_SECONDS = 0.05
"""Greatest age of a message."""
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
RETRY_MILLISECONDS = 1000
"""How long a browser waits before it connects again."""


class StreamSlots:
    """Counts the open streams of a lane against their limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken: Counter[Lane] = Counter()

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
        message: Callable[[], bytes],
        seconds: float,
        permitted: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(headers=STREAM_HEADERS)
        self.slots = slots
        self.message = message
        self.seconds = seconds
        self.permitted = permitted
        """Whether the stream may go on: not after its browser has signed out."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lane = scope["state"]["lane"]
        if self.slots.taken[lane] >= self.slots.limit:
            full = problem_response(503, f"at most {self.slots.limit} streams may be open", {"Retry-After": "5"})
            return await full(scope, receive, send)
        with self.slots.one(lane):
            headers = [header for header in self.raw_headers if header[0] != b"content-length"]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            gone = asyncio.create_task(until_gone(receive))
            try:
                while not gone.done() and self.permitted():
                    if message := self.message():
                        await send({"type": "http.response.body", "body": message, "more_body": True})
                    await asyncio.wait({gone}, timeout=self.seconds)
                await send({"type": "http.response.body", "body": b""})
            finally:
                gone.cancel()


async def until_gone(receive: Receive) -> None:
    """Return when the client has left; `protocol` throws those out that do not read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def router(view: RunView, limits: RequestLimits) -> APIRouter:
    routes = APIRouter(prefix="/api/v1", tags=["run"])
    routes.slots = slots = StreamSlots(limits.streams)  # type: ignore[attr-defined]
    feed = Feed(view)
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
        self._texts: dict[tuple[str, bool], tuple[int, str]] = {}
        self.number = 0
        """Grows with each new message."""

    def look(self) -> int:
        """Check for changes, and return the number of the newest message."""
        view = self._view
        if time.monotonic() - self._made_at >= FRESH_SECONDS:
            self._made_at = time.monotonic()
            view.refresh()
            state = (view.board_version(), view.pulse(), view.events.last_id, view.knobs.desired)
            if state != self._state:
                self._state, self._texts = state, {}
                self.number += 1
        return self.number

    def message(self, scope: str, session: bool = False) -> tuple[int, str]:
        """Return the step and the data of the newest message."""
        if (scope, session) not in self._texts:
            view = self._view
            now = status(view, scope, session)
            tag = etag(view.knobs.desired)
            data = {"status": now, "stats": stats(view), "last_event_id": view.events.last_id, "knobs_etag": tag}
            self._texts[scope, session] = (now["step"], json_bytes(data).decode())
        return self._texts[scope, session]


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
        retry = RETRY_MILLISECONDS if sent < 0 else None
        sent, sent_at = number, time.monotonic()
        step, text = feed.message(scope, session)
        return format_sse_event(event="snapshot", id=str(step), data_str=text, retry=retry)

    return message
