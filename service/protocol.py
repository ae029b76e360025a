"""HTTP/1.1 with limits that uvicorn does not have: deadlines for requests and for readers, and caps on connections.

No number of connections without a token keeps anybody out. A new one waits among the `ARRIVING` for its first request; where
there are too many, the oldest goes, if all its bytes have been read. A request that is there is answered at once: its connection
then counts as unauthenticated (`STRANGER`; under pressure only idle or slow ones are closed), or counts for its token's quota.

Use it as `uvicorn.Config(app, http=protocol_for(security))`; the timeouts and limits of the Config are then not used.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import re
import socket
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import h11
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from adaptive_rec.service.secured import problem, secured
from adaptive_rec.service.security import ARRIVING, LANES, STRANGER, UNIX, Bucket, Lane, RequestLimits, Security

HEADER_BYTES = 16 * 1024
KEEP_ALIVE_SECONDS = 5
LINGER_SECONDS = 0.25
"""Time a refused client may still send, unread, so that it can read the answer before the connection ends."""
UNIX_CONNECTIONS = 32
"""Cap for the Unix socket, which only the run's own user can open."""

REQUESTS_KEPT, KEPT_BYTES = 256, 4096
"""Requests that are answered again without parsing, and the longest of them."""
BLANK_LINE = re.compile(rb"\n\r?\n")
"""The end of a request without a body, as h11 reads it."""

QUIET = logging.getLogger(__name__)
QUIET.setLevel(logging.ERROR)  # uvicorn warns of every malformed request: a client could fill the log

REASONS = {
    431: "the header of a request may have at most 16 KiB",
    501: "this transfer encoding is not known",
}


Admit = Callable[["BoundedProtocol"], bool]
"""Returns whether a request is let in whose very bytes were let in before, and counts it."""
Repeatable = tuple[Admit, Callable[[], Response | None]]


class BoundedProtocol(H11Protocol):
    """One connection. A request must have arrived within the deadline, an answer must be read within it."""

    limits: ClassVar[RequestLimits]
    places: ClassVar[dict[Lane, dict[BoundedProtocol, None]]]
    """Open connections by lane, the oldest first. One that is being ended has no place."""
    refused: ClassVar[set[BoundedProtocol]]
    repeatable: ClassVar[dict[tuple[bool, bytes], Repeatable]]
    """What answers a request again, by whether it comes over the Unix socket, and its bytes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = h11.Connection(h11.SERVER, HEADER_BYTES)
        self.timeout_keep_alive = KEEP_ALIVE_SECONDS
        self.limit_concurrency = None  # it would count Unix connections, too
        self.ws_protocol_class = None
        self.access_log = False  # a client chooses paths and queries freely
        self.logger = QUIET
        self.app_state = {**self.app_state, "connection": self}  # for the gate, in the state of every request
        self.lane: Lane = ARRIVING
        self.stranger: Bucket | None = Bucket(self.limits.strangers_per_second, self.limits.strangers_burst)
        self._arrival: asyncio.TimerHandle | None = None
        self._delivery: asyncio.TimerHandle | None = None
        self._ending = False
        self._heard = False
        """Whether anything was read."""
        self._request: bytes | None = None
        """What was read of the request under way, if that came alone and at once."""

    # Receiving

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        if transport.get_extra_info("socket").family != socket.AF_UNIX:
            self._make_room(ARRIVING)
            self.places[ARRIVING][self] = None
        elif not self.join(UNIX):
            return self._turn_away(UNIX)
        super().connection_made(transport)
        transport.max_size = HEADER_BYTES  # type: ignore[attr-defined]  # asyncio reads no more than this at once
        transport.set_write_buffer_limits(high=0)  # pause_writing is called for anything not sent yet
        self._arrival = self.loop.call_later(self.limits.request_seconds, self._late)

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        self._heard = True
        if (at_rest := self._at_rest()) and self._answer_again(data):
            return
        self._request = data if at_rest else None
        super().data_received(data)
        if self.lane == ARRIVING and self.cycle is not None and not self._ending:
            self._make_room(STRANGER)
            self._move(STRANGER)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """Run the deadline from a request's first byte to its last, and at no other time."""
        theirs = self.conn.their_state
        receiving = theirs is h11.SEND_BODY or (theirs is h11.IDLE and bool(self.conn.trailing_data[0]))
        if receiving and self._arrival is None:
            self._arrival = self.loop.call_later(self.limits.request_seconds, self._late)
        elif not receiving and self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    # Again

    def _at_rest(self) -> bool:
        """Return whether everything asked for was answered, and nothing more has come."""
        answered = self.cycle is None or self.cycle.response_complete
        idle = self.conn.our_state is h11.IDLE and self.conn.their_state is h11.IDLE
        return answered and idle and not self.conn.trailing_data[0]

    def remember(self, admit: Admit, again: Callable[[], Response | None]) -> None:
        """Answer a request of the same bytes by `again` from now on, where `admit` lets it in and `again` has an answer. It is
        called when the answer to the request has been sent; nothing is remembered unless the connection is open for the next."""
        sent = self._request
        alone = sent is not None and len(BLANK_LINE.findall(sent)) == 1  # each of several that came at once ends in one
        if sent is not None and alone and sent.startswith(b"GET ") and len(sent) <= KEPT_BYTES and self._at_rest():
            if len(self.repeatable) >= REQUESTS_KEPT:
                self.repeatable.clear()
            self.repeatable[self.lane == UNIX, sent] = admit, again

    def _answer_again(self, sent: bytes) -> bool:
        """Answer a request that is remembered. False: it is to go the long way, which also reports errors."""
        known = self.repeatable.get((self.lane == UNIX, sent))
        if known is None or self.flow.write_paused or self.transport.is_closing():
            return False
        admit, again = known
        try:
            answer = again()
        except Exception:
            return False
        if answer is None or not admit(self):
            return False
        headers = [*self.server_state.default_headers, *secured(answer.raw_headers)]
        head = b"".join([b"%b: %b\r\n" % header for header in headers])
        self.transport.write(b"HTTP/1.1 200 OK\r\n%b\r\n%b" % (head, bytes(answer.body)))
        super().on_response_complete()
        self._watch()
        return True

    def _late(self) -> None:
        self._refuse(408, f"a request must arrive within {self.limits.request_seconds:g} s")

    # Places

    def join(self, lane: Lane) -> bool:
        """Count this connection with those of a lane from now on. Return False if all places of the lane are taken."""
        if self.lane not in (lane, UNIX):
            if len(self.places[lane]) >= self._most(lane):
                return False
            self._move(lane)
            self.stranger = None
        return True

    def _move(self, lane: Lane) -> None:
        self.places[self.lane].pop(self, None)
        self.places[lane][self] = None
        self.lane = lane

    def _make_room(self, lane: Lane) -> None:
        """End connections without a token until another one has a place, as far as there are any that may go."""
        while len(self.places[lane]) >= self._most(lane) and (one := self._may_go(lane)) is not None:
            one._turn_away(lane)

    def _may_go(self, lane: Lane) -> BoundedProtocol | None:
        """Return the connection without a token that is missed least, or None where each has a request that is there."""
        if lane == ARRIVING:
            oldest = next(iter(self.places[lane]))
            return None if oldest._has_unread_bytes() else oldest
        strangers = self.places[lane]
        return next((one for one in strangers if one._holds_up()), next((one for one in strangers if one._idle()), None))

    def _has_unread_bytes(self) -> bool:
        """Return whether bytes have come that nobody has looked at: a burst of connections is accepted before any is read."""
        if self._heard:
            return False
        count = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4))
        return any(count)

    def _holds_up(self) -> bool:
        """Return whether an answer waits: for a body, for a reader, or because this connection asks too fast."""
        asks_fast = self.stranger is not None and self.stranger.wait() > 0
        return not self.cycle.response_complete and (self.cycle.more_body or self._delivery is not None or asks_fast)

    def _idle(self) -> bool:
        """Return whether everything asked for was answered."""
        return bool(self.cycle.response_complete)

    def _most(self, lane: Lane) -> int:
        return {ARRIVING: self.limits.arriving, UNIX: UNIX_CONNECTIONS}.get(lane, self.limits.connections)

    def _turn_away(self, lane: Lane) -> None:
        """End a connection above the cap of a lane. Only a limited number of clients get to read the reason."""
        self.connections.discard(self)
        between_requests = self.cycle is not None and self._idle() and not self.conn.trailing_data[0]
        if between_requests or len(self.refused) >= self.limits.connections:
            self._give_up_place()
            return self.transport.abort()
        self.refused.add(self)
        whose = "without a token " if lane in (ARRIVING, STRANGER) else ""
        self._refuse(503, f"{self._most(lane)} connections {whose}are open, which is the most; try again later")

    def _give_up_place(self) -> None:
        self._ending = True
        self.places[self.lane].pop(self, None)

    # Sending

    @property
    def is_read(self) -> bool:
        """Whether nothing waits for the client to read it."""
        return not self.flow.write_paused

    def push(self, part: bytes) -> None:
        """Send a part of the answer under way, whose head has been sent, without waiting for the client to read it."""
        if not self.transport.is_closing():
            self.transport.write(self.conn.send(h11.Data(data=part)) or b"")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._delivery = self.loop.call_later(self.limits.request_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None

    # Ending

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up_place()
        self.refused.discard(self)
        for timer in (self._arrival, self._delivery):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn while it handles h11's error, which knows the status; `msg` does not help."""
        status = getattr(sys.exception(), "error_status_hint", 400)
        self._refuse(status, REASONS.get(status, "this is not an HTTP request"))

    def _refuse(self, status: int, detail: str) -> None:
        """Answer without the application, unless an answer has started, and end the connection."""
        self._give_up_place()
        started = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if self.cycle is not None:  # the application, should it wait for the body, learns that the client is gone
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if started or self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return self.transport.abort()
        headers, body = problem(status, detail)
        head = h11.Response(
            status_code=status, headers=[*headers, (b"connection", b"close")], reason=STATUS_PHRASES[status]
        )
        try:
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # HEAD takes no body
            return self.transport.abort()
        with suppress(OSError):  # the client may have gone already
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore upgrades, as HTTP allows, without a line in the log."""


def protocol_for(security: Security) -> type[BoundedProtocol]:
    """Make the class for `uvicorn.Config(http=...)` with these limits. Call this once for each server."""

    class Protocol(BoundedProtocol):
        limits = security.limits
        places: ClassVar[dict[Lane, dict[BoundedProtocol, None]]] = {lane: {} for lane in LANES}
        refused: ClassVar[set[BoundedProtocol]] = set()
        repeatable: ClassVar[dict[tuple[bool, bytes], Repeatable]] = {}

    return Protocol
