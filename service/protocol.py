"""HTTP/1.1 with limits that uvicorn does not have: deadlines for requests and for readers, and caps on connections.

Use it as `uvicorn.Config(app, http=protocol_for(security))`; the timeouts and limits of the Config are then not used.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from contextlib import suppress
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from adaptive_rec.service.secured import problem
from adaptive_rec.service.security import STRANGER, UNIX, Bucket, Lane, RequestLimits, Security

HEADER_BYTES = 16 * 1024
KEEP_ALIVE_SECONDS = 5
LINGER_SECONDS = 0.25
"""Time a refused client may still send, unread, so that it can read the answer before the connection ends."""
UNIX_CONNECTIONS = 32
"""Cap for the Unix socket, which only the run's own user can open."""

QUIET = logging.getLogger(__name__)
QUIET.setLevel(logging.ERROR)  # uvicorn warns of every malformed request: a client could fill the log

REASONS = {
    431: "the header of a request may have at most 16 KiB",
    501: "this transfer encoding is not known",
}


class BoundedProtocol(H11Protocol):
    """One connection. A request must have arrived within the deadline, an answer must be read within it."""

    limits: ClassVar[RequestLimits]
    refused: ClassVar[set[BoundedProtocol]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = h11.Connection(h11.SERVER, HEADER_BYTES)
        self.timeout_keep_alive = KEEP_ALIVE_SECONDS
        self.limit_concurrency = None  # it would count Unix connections, too
        self.ws_protocol_class = None
        self.access_log = False  # a client chooses paths and queries freely
        self.logger = QUIET
        self.app_state = {**self.app_state, "connection": self}  # for the gate, in the state of every request
        self.lane: Lane = STRANGER
        self.stranger: Bucket | None = Bucket(self.limits.strangers_per_second, self.limits.strangers_burst)
        self._arrival: asyncio.TimerHandle | None = None
        self._delivery: asyncio.TimerHandle | None = None
        self._ending = False
        self._began = self.loop.time()

    # Receiving

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if transport.get_extra_info("socket").family == socket.AF_UNIX and not self.join(UNIX):
            self.transport = transport
            return self._turn_away(UNIX)
        if self.lane == STRANGER:
            self._make_room()
        super().connection_made(transport)
        transport.max_size = HEADER_BYTES  # type: ignore[attr-defined]  # asyncio reads no more than this at once
        transport.set_write_buffer_limits(high=0)  # pause_writing is called for anything not sent yet
        self._arrival = self.loop.call_later(self.limits.request_seconds, self._late)

    def join(self, lane: Lane) -> bool:
        """Count this connection with those of a lane from now on. Return False if all places of the lane are taken."""
        if self.lane not in (lane, UNIX):
            if len(self._others(lane)) >= self._most(lane):
                return False
            self.lane, self.stranger = lane, None
        return True

    def _others(self, lane: Lane) -> list[BoundedProtocol]:
        """Return the open connections of a lane, the oldest first."""
        found = [o for o in self.connections if isinstance(o, BoundedProtocol) and o.lane == lane and not o._ending]
        return sorted(found, key=lambda one: one._began)

    def _make_room(self) -> None:
        """End the oldest connection that has shown no token where there are too many. Those that hold a token, or send a request
        at once, are answered however many others hold half a request back."""
        strangers = self._others(STRANGER)
        if len(strangers) >= self._most(STRANGER):
            waiting = [one for one in strangers if one.cycle is None or one.cycle.response_complete]
            (waiting or strangers)[0]._turn_away(STRANGER)

    def data_received(self, data: bytes) -> None:
        if not self._ending:
            super().data_received(data)
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

    def _late(self) -> None:
        self._refuse(408, f"a request must arrive within {self.limits.request_seconds:g} s")

    # Sending

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
        self._ending = True
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
        self._ending = True
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

    def _most(self, lane: Lane) -> int:
        return UNIX_CONNECTIONS if lane == UNIX else self.limits.connections

    def _turn_away(self, lane: Lane) -> None:
        """End a connection above the cap of a lane. Only a limited number of clients get to read the reason."""
        self.connections.discard(self)
        idle = self.cycle is not None and self.cycle.response_complete and not self.conn.trailing_data[0]
        if idle or len(self.refused) >= self.limits.connections:
            self._ending = True
            return self.transport.abort()
        self.refused.add(self)
        whose = "without a token " if lane == STRANGER else ""
        self._refuse(503, f"{self._most(lane)} connections {whose}are open, which is the most; try again later")

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore upgrades, as HTTP allows, without a line in the log."""


def protocol_for(security: Security) -> type[BoundedProtocol]:
    """Make the class for `uvicorn.Config(http=...)` with these limits. Call this once for each server."""

    class Protocol(BoundedProtocol):
        limits = security.limits
        refused: ClassVar[set[BoundedProtocol]] = set()

    return Protocol
