"""The gate: every request is checked here before any other code of the sidecar sees it, and every answer gets its headers here.

Checks deny by default, in this order: Host, Origin, token, scope, rate, size, deadline. They use the raw scope only, never
`request.url`, which is built from what the client sent.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Sequence
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adaptive_rec.service.secured import Refused, SecuredSend, problem, sign_in
from adaptive_rec.service.security import BEARER, COOKIE, UNIX, Bucket, Lane, Security
from adaptive_rec.service.sign_in import SESSION_PATH, SignInCodes, cookie_name, cookies_named

PUBLIC = frozenset((method, path) for method in ("GET", "HEAD") for path in ("/livez", "/readyz", "/version"))
"""Routes that need no token. The Host, Origin and rate checks still apply."""

SIGN_IN = ("POST", SESSION_PATH)
READS = frozenset({("POST", "/api/v1/placement/query"), SIGN_IN, ("DELETE", SESSION_PATH)})
"""Routes that the read token may use besides GET and HEAD. All others, known or not, are writes."""

STREAM = ("GET", "/api/v1/stream")
"""The one answer that may take longer than the request deadline."""

BOTH_LENGTHS = "the length of a body must be given by Content-Length or by Transfer-Encoding, not by both"
HOST = re.compile(rb"(\[[0-9a-f:.]+\]|[0-9a-z._-]+)(:[0-9]{1,5})?")


SIGNED_IN: tuple[Lane, ...] = (UNIX, BEARER, COOKIE)
"""Lanes of senders who have shown a token or a cookie."""


class Connection(Protocol):
    """The connection that a request came on; `protocol` puts it into the request's state."""

    stranger: Bucket | None
    """The rate of a sender who has shown no token yet; None for others."""

    def join(self, lane: Lane) -> bool: ...


class RequestGate:
    """ASGI middleware around the whole application: `RequestGate(app, security=security)`.

    The application finds the caller's scope, "control" or "read", in `request.state.scope`; public routes find none.
    """

    def __init__(self, app: ASGIApp, *, security: Security) -> None:
        if not security.control_token or not security.read_token or security.control_token == security.read_token:
            raise ValueError("the control token and the read token must be given and differ")
        self._app, limits = app, security.limits
        self._limits, self._cookie = limits, cookie_name(security.port)
        self._sessions = security.sessions
        hosts = [host_name(given) for given in security.allow_hosts]
        self._hosts = {form.encode() for name in hosts for form in (name, f"{name}:{security.port}")}
        self._origins = {f"http://{name}:{security.port}".encode() for name in hosts}
        if security.port == 80:  # which browsers leave out
            self._origins |= {f"http://{name}".encode() for name in hosts}
        proxied = [name for name in hosts if not is_loopback(name)]  # by one that adds TLS, on its own port or on ours
        self._origins |= {f"https://{form}".encode() for name in proxied for form in (name, f"{name}:{security.port}")}
        tokens = {"control": security.control_token, "read": security.read_token}
        self._tokens = {scope: token.encode() for scope, token in tokens.items()}
        self._codes = SignInCodes(tokens, security.codes_since)
        self._failures = Bucket(limits.failures_per_second, limits.failures_burst)
        senders = [(lane, scope) for lane in SIGNED_IN for scope in self._tokens]
        self._reads = {sender: Bucket(limits.reads_per_second, limits.reads_burst) for sender in senders}
        self._writes = {lane: Bucket(limits.writes_per_second, limits.writes_burst) for lane in SIGNED_IN}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            await receive()
            return await send({"type": "websocket.close", "code": 1008})
        answer = SecuredSend(send)
        try:
            async with asyncio.timeout(self._limits.request_seconds) as deadline:
                await slow_down(scope)
                self._admit(scope)
                body = await whole_body(scope, receive, self._limits.body_bytes)
                if body is None:  # the client left
                    return
                if (scope["method"], scope["path"]) == STREAM:
                    deadline.reschedule(None)
                await self._app(as_get(scope), replay(body, receive), answer)
        except Refused as refused:
            await self._refuse(scope, refused, answer)
        except asyncio.CancelledError:  # the trainer has ended, and all connections with it
            if answer.started:
                raise
            await self._refuse(scope, Refused(503, "the trainer has ended, so the service ends", wait=1), answer)
        except Exception as error:
            late = isinstance(error, TimeoutError) and deadline.expired()
            if not answer.started:
                text = (
                    f"not answered within {self._limits.request_seconds:g} s"
                    if late
                    else "internal error of the sidecar; its log says more"
                )
                await self._refuse(scope, Refused(503 if late else 500, text, wait=int(late)), answer)
            if not late:
                raise

    def _admit(self, scope: Scope) -> None:
        """Raise Refused unless this request is allowed; record the scope and the lane of its sender."""
        self._check_host(scope)
        self._check_origin(scope)
        if values(scope, b"content-length") and values(scope, b"transfer-encoding"):
            raise Refused(400, BOTH_LENGTHS)
        target = (scope["method"], scope["path"])
        if target in PUBLIC:  # refusing costs as much as answering, and would lock out an orchestrator's probes
            return
        granted = self._authenticate(scope)
        lane = self._join_lane(scope)
        write = target[0] not in ("GET", "HEAD") and target not in READS
        if write and granted != "control":
            raise Refused(403, "this needs the control token; the token given may only read")
        limit(self._writes[lane] if write else self._reads[lane, granted])
        cookies = cookies_named(self._cookie, values(scope, b"cookie"))
        about = {"sessions": self._sessions, "session_cookies": cookies, "cookie_name": self._cookie}
        again = partial(self._admit_again, lane, granted, cookies if lane == COOKIE else ())
        scope.setdefault("state", {}).update(scope=granted, lane=lane, admit_again=again, **about)

    def _admit_again(self, lane: Lane, granted: str, cookies: Sequence[bytes], connection: Connection) -> bool:
        """Count and admit a read whose very bytes were admitted before. False: the request is to go through all checks, of which
        only those of places, sessions and rates can have another outcome now."""
        signed_in = not cookies or self._sessions.scope_of(cookies) == granted
        return signed_in and connection.join(lane) and not self._reads[lane, granted].take()

    def _join_lane(self, scope: Scope) -> Lane:
        """Move the connection into the lane of its sender, who has just shown a token or a cookie, and return the lane."""
        by_program = values(scope, b"authorization") and scope["path"] != SESSION_PATH
        lane: Lane = UNIX if over_unix(scope) else BEARER if by_program else COOKIE
        connection = connection_of(scope)
        if connection is not None and not connection.join(lane):
            kind = "signed-in browsers" if lane == COOKIE else "programs with a token"
            most = self._limits.connections
            raise Refused(503, f"{most} connections of {kind} are open, which is the most; try again later", wait=1)
        return lane

    def _check_host(self, scope: Scope) -> None:
        """Refuse unknown host names. A page whose name was made to point here (DNS rebinding) still sends its own name."""
        hosts = values(scope, b"host")
        if len(hosts) != 1 or not HOST.fullmatch(hosts[0].lower()):
            raise Refused(400, "the Host header must be given once, as NAME or NAME:PORT")
        if not scope["path"].startswith("/"):  # "GET http://other/ HTTP/1.1" names a host as well
            raise Refused(400, "the request target must be a path beginning with /")
        if hosts[0].lower() not in self._hosts and not (over_unix(scope) and hosts[0].lower() == b"localhost"):
            raise Refused(421, "the name in the Host header is not allowed; --allow-host NAME adds one")

    def _check_origin(self, scope: Scope) -> None:
        """Refuse all requests, also reads, from pages of other origins."""
        origins = values(scope, b"origin")
        if origins and (len(origins) > 1 or origins[0] not in self._origins):
            raise Refused(403, "requests of pages from another origin are not answered")

    def _authenticate(self, scope: Scope) -> str:
        """Return the scope of the token or cookie. Only wrong ones are rate-limited, so guessing locks out no valid user."""
        headers, cookies = values(scope, b"authorization"), cookies_named(self._cookie, values(scope, b"cookie"))
        if not headers and not cookies:
            raise Refused(401, "a token is needed: Authorization: Bearer TOKEN, or a session's cookie")
        if not headers:
            granted = self._sessions.scope_of(cookies)
        elif (scope["method"], scope["path"]) == SIGN_IN and (codes := credentials(headers, b"code")):
            granted = self._codes.redeem(codes[0])
        else:
            granted = match(credentials(headers, b"bearer"), self._tokens)
        if granted is None:
            limit(self._failures)
            raise Refused(401, "the token, the code or the cookie is not one of this run, or the code was used before")
        if not headers:
            check_browser(scope)
        return granted

    async def _refuse(self, scope: Scope, refused: Refused, answer: SecuredSend) -> None:
        if scope["path"] == "/" and scope["method"] in ("GET", "HEAD") and refused.status in (401, 403, 429):
            if not values(scope, b"origin"):  # a browser's visit: let it sign in
                return await answer.whole(refused.status, *sign_in(refused))
        await answer.whole(refused.status, *problem(refused.status, refused.detail, wait=refused.wait))


def as_get(scope: Scope) -> Scope:
    """Let the application answer HEAD as it answers GET; the server leaves the body out. A stream would have no end."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" and scope["path"] != STREAM[1] else scope


def host_name(given: str) -> str:
    """Return an allowed host as browsers write it in the Host header: lower case, IPv6 addresses short and in brackets."""
    name = given.lower()
    try:
        name = f"[{IPv6Address(name.strip('[]'))}]" if ":" in name else name
    except ValueError:
        name = ""
    if not HOST.fullmatch(name.encode()):
        raise ValueError(f"an allowed host must be a name or an address, without scheme and port, not {given!r}")
    return name


def over_unix(scope: Scope) -> bool:
    return scope.get("server") is not None and scope["server"][1] is None


def connection_of(scope: Scope) -> Connection | None:
    """Return the connection, or None where the application is called without a server."""
    found: Connection | None = scope.get("state", {}).get("connection")
    return found


async def slow_down(scope: Scope) -> None:
    """Delay the answers on a connection that asks fast and has shown no token, so that it takes little time from others."""
    connection = connection_of(scope)
    while connection is not None and connection.stranger is not None and connection.stranger.take():
        await asyncio.sleep(connection.stranger.wait())


def is_loopback(name: str) -> bool:
    """Return whether a host name always means the client's own machine; no certificate exists for such a name."""
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def credentials(headers: list[bytes], wanted: bytes) -> list[bytes]:
    """Return what follows the scheme in the only Authorization header; nothing if it has another scheme or there are two."""
    scheme, _, found = headers[0].partition(b" ")
    return [found.strip()] if len(headers) == 1 and scheme.lower() == wanted else []


def match(given: list[bytes], secrets: dict[str, bytes]) -> str | None:
    """Return the widest scope whose secret is among those given. Every pair is compared, each in constant time."""
    found = [scope for scope, secret in secrets.items() for one in given if hmac.compare_digest(one, secret)]
    return found[0] if found else None


def check_browser(scope: Scope) -> None:
    """Refuse requests with a cookie unless a page of this origin sent them: browsers add the cookie to every request.

    SameSite alone is not enough, because all ports of one host are the same site.
    """
    if any(site not in (b"same-origin", b"none") for site in values(scope, b"sec-fetch-site")):
        raise Refused(403, "requests of pages from another origin are not answered")
    if scope["method"] not in ("GET", "HEAD") and not values(scope, b"origin"):
        raise Refused(403, "with a cookie, a request that is not GET or HEAD needs an Origin header")


def limit(bucket: Bucket) -> None:
    if wait := bucket.take():
        raise Refused(429, "too many requests", wait=wait)


async def whole_body(scope: Scope, receive: Receive, most: int) -> bytes | None:
    """Return the request's body of at most `most` bytes, or None if the client left."""
    too_large = Refused(413, f"a request body may have at most {most} bytes")
    if any(not length.isdigit() or int(length) > most for length in values(scope, b"content-length")):
        raise too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > most:
            raise too_large
        if not message.get("more_body", False):
            return bytes(body)


def replay(body: bytes, receive: Receive) -> Receive:
    """Return an ASGI receive that gives the body already read, then waits for the client to leave."""
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
