"""Secrets, sessions of browsers, allowed hosts, request limits and token buckets of the sidecar, for `gate` and `protocol`."""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

MOST_SESSIONS = 64
"""Sessions at one time; a new one beyond ends the oldest."""


class BrowserSessions:
    """The sessions of a run, by the digests of their cookies, so that the trainer keeps nothing that signs in.

    `keep` is called with all of them after each change: the trainer hands them to the next sidecar as `known`.
    """

    def __init__(self, known: Mapping[str, str] | None = None, keep: Callable[[dict[str, str]], None] = lambda _: None) -> None:
        self._scopes = dict(known or {})
        self._keep = keep

    def begin(self, scope: str) -> str:
        """Begin a session of this scope, and return the value of its cookie."""
        while len(self._scopes) >= MOST_SESSIONS:
            del self._scopes[next(iter(self._scopes))]
        value = secrets.token_urlsafe(32)
        self._scopes[digest(value.encode())] = scope
        self._keep(dict(self._scopes))
        return value

    def end(self, cookies: Iterable[bytes]) -> None:
        """End the sessions that these cookies belong to. Others are left out."""
        ended = [self._scopes.pop(digest(cookie), None) for cookie in cookies]
        if any(ended):
            self._keep(dict(self._scopes))

    def scope_of(self, cookies: Iterable[bytes]) -> str | None:
        """Return the widest scope of the sessions that these cookies belong to, or None if they belong to none."""
        found = {self._scopes.get(digest(cookie)) for cookie in cookies}
        return next((scope for scope in ("control", "read") if scope in found), None)


def digest(cookie: bytes) -> str:
    return hashlib.sha256(cookie).hexdigest()


Lane = Literal["unix", "bearer", "cookie", "stranger", "arriving"]
"""A group of senders with connections, streams and rates of its own, so that no group can use up another's: commands of the run's
own user on the Unix socket, programs with a token, signed-in browsers, everybody who has shown neither, and connections whose
first request has not arrived."""
UNIX: Final = "unix"
BEARER: Final = "bearer"
COOKIE: Final = "cookie"
STRANGER: Final = "stranger"
ARRIVING: Final = "arriving"
LANES: tuple[Lane, ...] = (UNIX, BEARER, COOKIE, STRANGER, ARRIVING)


@dataclass(frozen=True)
class RequestLimits:
    """Limits on requests. A burst is the number that may come at once after a quiet time."""

    body_bytes: int = 65536
    request_seconds: float = 10.0
    connections: int = 128
    """Connections of each lane but the arriving."""
    arriving: int = 1024
    """Connections whose first request has not arrived. More of them give a slow sender more time: 5 s where 200 come a second."""
    streams: int = 64
    """Streams of each lane; of the Unix socket, which has fewer connections, 16 at the most."""
    strangers_per_second: float = 10.0
    strangers_burst: float = 20.0
    """Answers to one connection that has shown no token. It waits for those beyond, and is not refused."""
    reads_per_second: float = 200.0
    reads_burst: float = 400.0
    writes_per_second: float = 50.0
    writes_burst: float = 100.0
    failures_per_second: float = 5.0
    failures_burst: float = 20.0


@dataclass(frozen=True)
class Security:
    """The two tokens, the sessions of browsers, and the names under which the sidecar may be reached."""

    control_token: str = field(repr=False)
    read_token: str = field(repr=False)
    host: str
    port: int
    allow_hosts: tuple[str, ...]
    limits: RequestLimits = field(default_factory=RequestLimits)
    sessions: BrowserSessions = field(default_factory=BrowserSessions, repr=False)
    codes_since: float = 0.0
    """Sign-in codes made before are refused, by their clock: an earlier sidecar of the run may have accepted them."""


class Bucket:
    """Allows `per_second` events in the long run, and up to `burst` at once after a quiet time."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not per_second > 0 or not burst >= 1:
            raise ValueError(f"a rate must be above 0 and its burst at least 1, not {per_second} and {burst}")
        self._per_second, self._burst, self._clock = per_second, burst, clock
        self._left, self._at = burst, clock()

    def take(self) -> int:
        """Count an event and return 0 if it may happen now, else return the whole seconds to wait."""
        wait = self.wait()
        self._left -= not wait
        return math.ceil(wait)

    def wait(self) -> float:
        """Return the seconds until an event may happen, and count nothing."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        return max(0.0, (1 - self._left) / self._per_second)
