"""Sessions of signed-in browsers: each has a random cookie of its own, and ends when its browser signs out."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping

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
