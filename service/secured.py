"""Answers of the gate itself, and the security headers that every answer gets."""

from __future__ import annotations

import json
from collections.abc import Iterable
from http import HTTPStatus

from starlette.types import Message, Send

from adaptive_rec.service.sign_in import PAGE, PAGE_POLICY

Headers = list[tuple[bytes, bytes]]

CLOSING = (400, 500)
"""After these the connection ends: what follows on it may be misread (RFC 9112, 6.1), or the server closes it anyway."""

POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'"
ALWAYS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
}


class Refused(Exception):
    """A refused request. `detail` never holds anything the client sent."""

    def __init__(self, status: int, detail: str, *, wait: int = 0) -> None:
        super().__init__(detail)
        self.status, self.detail, self.wait = status, detail, wait


class SecuredSend:
    """ASGI send that adds the security headers to every answer and records whether one has started."""

    def __init__(self, send: Send) -> None:
        self._send, self.started = send, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            closing = [(b"connection", b"close")] if message["status"] == 500 else []
            message = {**message, "headers": [*secured(message.get("headers", ())), *closing]}
        await self._send(message)

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send an answer of the gate itself, whose headers are complete."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def secured(headers: Iterable[tuple[bytes, bytes]], policy: str = POLICY) -> Headers:
    """Return the headers with the security headers added. A route may set Cache-Control only, and never CORS headers."""
    forced = {**ALWAYS, b"content-security-policy": policy.encode()}
    kept = [(name.lower(), value) for name, value in headers]
    kept = [(n, value) for n, value in kept if n not in forced and not n.startswith(b"access-control-")]
    if not any(name == b"cache-control" for name, _ in kept):
        kept.append((b"cache-control", b"no-store"))
    return [*kept, *forced.items()]


def problem(status: int, detail: str, *, wait: int = 0) -> tuple[Headers, bytes]:
    """Return headers and body of an RFC 9457 problem; `wait` is the number of seconds after which to try again."""
    text = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    body = json.dumps(text).encode()
    return secured([*common(status, wait, len(body)), (b"content-type", b"application/problem+json")]), body


def sign_in(refused: Refused) -> tuple[Headers, bytes]:
    """Return headers and body of the sign-in page, with a policy that allows only its own script."""
    body = PAGE.encode()
    headers = [*common(refused.status, refused.wait, len(body)), (b"content-type", b"text/html; charset=utf-8")]
    return secured(headers, PAGE_POLICY), body


def common(status: int, wait: int, length: int) -> Headers:
    headers = [(b"content-length", str(length).encode())]
    if status in CLOSING:
        headers.append((b"connection", b"close"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return [*headers, (b"retry-after", str(wait).encode())] if wait else headers
