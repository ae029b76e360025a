"""Sign-in codes: a link with a code opens the dashboard once, within minutes, so no token reaches the history of a browser.

A code holds the time at which it was made, a random part, and the HMAC of both under a token. Whoever holds the token can make
one, and the sidecar checks it without having stored it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode

VALID_SECONDS = 600.0
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former is Linux's
_BODY = struct.Struct(">Q9s")
_MAC_BYTES = 19
"""With the body, a multiple of three bytes, which base64 writes without padding."""


def code_clock() -> float:
    """Return the seconds since the machine was started, suspended ones included: one clock for all its processes, which nobody
    sets."""
    return time.clock_gettime(_CLOCK)


def new_code(token: str) -> str:
    """Return a code for the sign-in of this token, 48 characters that a URL can hold."""
    body = _BODY.pack(int(code_clock() * 1000), secrets.token_bytes(9))
    return urlsafe_b64encode(body + _mac(token, body)).decode("ascii")


def made_at(token: str, code: bytes) -> float | None:
    """Return when a code was made, by `code_clock`, or None if it was not made with this token."""
    try:
        found = urlsafe_b64decode(code)
    except ValueError:
        return None
    body, mac = found[: _BODY.size], found[_BODY.size :]
    one_spelling = urlsafe_b64encode(found) == code  # the decoder passes over foreign characters: a used code could come again
    if len(body) < _BODY.size or not one_spelling or not hmac.compare_digest(mac, _mac(token, body)):
        return None
    return float(_BODY.unpack(body)[0]) / 1000


def _mac(token: str, body: bytes) -> bytes:
    return hmac.new(token.encode(), b"adaptive-rec sign-in code" + body, hashlib.sha256).digest()[:_MAC_BYTES]
