"""The guard: who is let in, from where, with what, how often and how much; called as the server does, and over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from adaptive_rec.service import sign_in
from adaptive_rec.service.app import create_app
from adaptive_rec.service.gate import READS, STREAM, RequestGate
from adaptive_rec.service.protocol import protocol_for
from adaptive_rec.service.security import MOST_SESSIONS, BrowserSessions, Bucket, RequestLimits, Security
from tests.stopwatch import Stopwatch

from .conftest import Called, Reply

CONTROL, READ = "control-0123456789abcdef", "read-0123456789abcdef"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY", "get", "NEVER"]
PUBLIC = ["/livez", "/readyz", "/version"]
PATHS = """
/api/v1/status /api/v1/knobs /api/v1/control/pause /api/v1/stream /metrics /api/v1/openapi.json / /assets/app.js /no/such/path
//livez /livez/ /livez/../metrics /LIVEZ /api/v1/session
""".split()
RATES = [f"{kind}_{what}" for kind in ("reads", "writes", "failures") for what in ("per_second", "burst")]
FREE = RequestLimits(request_seconds=0.6, **dict.fromkeys(RATES, 1e6))  # type: ignore[arg-type]
"""Without rates, and with a short deadline."""
PATIENT = replace(FREE, request_seconds=60.0)
"""For tests that are about no deadline: the machine may be busy."""


@cache
def small_app() -> FastAPI:
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.include_router(sign_in.router)

    async def who(request: Request) -> dict[str, Any]:
        return {"scope": getattr(request.state, "scope", None), "bytes": len(await request.body())}

    for path in ["/", *PUBLIC, "/api/v1/status"]:
        app.add_api_route(path, who, methods=["GET", "HEAD"])
    for path in ["/api/v1/knobs", "/api/v1/control/pause", "/api/v1/placement/query"]:
        app.add_api_route(path, who, methods=["POST", "PATCH", "PUT", "DELETE", "OPTIONS"])

    @app.get("/api/v1/stream")
    async def stream() -> StreamingResponse:
        async def ticks() -> AsyncIterator[str]:
            while True:
                yield "data: tick\n\n"
                await asyncio.sleep(0.1)

        return StreamingResponse(ticks(), media_type="text/event-stream")

    @app.get("/slow")
    async def slow() -> None:
        await asyncio.sleep(30)

    @app.get("/busy")
    def busy() -> None:
        time.sleep(1.2)

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError(CONTROL)

    @app.get("/own-headers")
    async def own_headers() -> StreamingResponse:
        wrong = {"Access-Control-Allow-Origin": "*", "X-Frame-Options": "ALLOWALL", "Cache-Control": "max-age=60"}
        return StreamingResponse(iter([b"x"]), headers=wrong)

    return app


class Asked:
    """Something that answers requests on a port and on a Unix socket."""

    port: int

    def answer(self, method: str, sent: bytes, unix: bool) -> Reply:
        raise NotImplementedError

    def ask(
        self,
        method: str,
        path: str,
        *headers: str,
        host: str | None = "",
        token: str = "",
        body: bytes = b"",
        unix: bool = False,
    ) -> Reply:
        """`host` None sends none, "" the right one; other headers are lines as they are."""
        lines = [f"{method} {path} HTTP/1.1", *headers]
        lines += [] if host is None else [f"Host: {host or f'127.0.0.1:{self.port}'}"]
        lines += [f"Authorization: Bearer {token}"] if token else []
        lines += [f"Content-Length: {len(body)}"] if body else []
        return self.answer(method, "\r\n".join([*lines, "", ""]).encode("latin1") + body, unix)

    @property
    def origin(self) -> str:
        return f"Origin: http://127.0.0.1:{self.port}"


class CalledGuard(Asked):
    """The guard before the small application, called without a server."""

    def __init__(self, limits: RequestLimits) -> None:
        self.port = 48470
        self._called = Called(guard_of(self.port, limits)[0], self.port)

    def answer(self, method: str, sent: bytes, unix: bool) -> Reply:
        return self._called.answer(sent, unix)


@dataclass
class Served(Asked):
    """The guard behind the real server."""

    port: int
    unix: str

    def connect(self, unix: bool = False) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        sock.settimeout(20)
        sock.connect(self.unix if unix else ("127.0.0.1", self.port))
        return sock

    def answer(self, method: str, sent: bytes, unix: bool) -> Reply:
        with self.connect(unix) as sock:
            sock.sendall(sent)
            reply = HTTPResponse(sock, method=method)
            reply.begin()
            return Reply(reply.status, reply.headers, reply.read())


def guard_of(port: int, limits: RequestLimits) -> tuple[RequestGate, Security]:
    security = Security(CONTROL, READ, "127.0.0.1", port, ("127.0.0.1", "LocalHost", "[::1]"), limits)
    return RequestGate(small_app(), security=security), security


@contextmanager
def serving(limits: RequestLimits) -> Iterator[Served]:
    """The small application on a free port and a Unix socket."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        tcp.bind(("127.0.0.1", 0))
        unix.bind(f"{folder}/s")
        served = Served(tcp.getsockname()[1], f"{folder}/s")
        app, security = guard_of(served.port, limits)
        config = uvicorn.Config(app, http=protocol_for(security), log_config=None, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([tcp, unix])))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield served
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def sockets() -> Iterator[Served]:
    with serving(FREE) as found:
        yield found


REAL = pytest.param("sockets", marks=[pytest.mark.slow, pytest.mark.alone])
"""All that is asked without a socket is asked over real ones in make check."""


@pytest.fixture(scope="module", params=["called", REAL])
def asked(request: pytest.FixtureRequest) -> Asked:
    found: Asked = CalledGuard(PATIENT) if request.param == "called" else request.getfixturevalue("sockets")
    return found


Limited = Callable[[RequestLimits], Asked]


@pytest.fixture(params=["called", REAL])
def limited(request: pytest.FixtureRequest) -> Iterator[Limited]:
    """Ask with limits of one's own."""
    with ExitStack() as stack:
        sockets = request.param == "sockets"
        yield lambda limits: stack.enter_context(serving(limits)) if sockets else CalledGuard(limits)


@pytest.mark.parametrize("unix", [False, True])
def test_without_a_token_or_with_a_wrong_one_nothing_but_the_three_public_routes_answers(
    asked: Asked, unix: bool
) -> None:
    for method in METHODS:
        for path in [*PATHS, *PUBLIC]:
            public = path in PUBLIC and method in ("GET", "HEAD")
            for lines in ([], ["Authorization: Bearer wrong"], [f"Cookie: adaptive_rec_{asked.port}={CONTROL}"]):
                reply = asked.ask(method, path, *lines, unix=unix)
                assert reply.status == (200 if public else 401), (method, path, lines)
                assert public or reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.alone
def test_over_real_sockets_each_method_is_refused_as_well(sockets: Served) -> None:
    for number, method in enumerate(METHODS):
        path, unix = PATHS[number % len(PATHS)], bool(number % 2)
        assert sockets.ask(method, path, unix=unix).status == 401, (method, path, unix)
        assert sockets.ask(method, path, "Authorization: Bearer wrong", unix=not unix).status == 401, (method, path, unix)


def test_the_read_token_reads_and_no_more(asked: Asked) -> None:
    for method in METHODS:
        for path in [*PATHS, *PUBLIC]:
            status = asked.ask(method, path, token=READ).status if path != "/api/v1/stream" or method != "GET" else 200
            if method in ("GET", "HEAD") or (path == "/api/v1/session" and method in ("POST", "DELETE")):
                assert status in (200, 204, 404, 405), (method, path)
            else:
                assert status == 403, (method, path)
    assert asked.ask("POST", "/api/v1/placement/query", token=READ, body=b"{}").status == 200
    assert asked.ask("POST", "/api/v1/placement/query/", token=READ, body=b"{}").status == 403
    assert asked.ask("PATCH", "/api/v1/placement/query", token=READ, body=b"{}").status == 403


def routes_of(router: Any) -> Iterator[str]:
    """Paths of all routes, those of included routers, too."""
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        yield from routes_of(inner) if inner is not None else (route.path,)


def test_every_route_of_the_application_stands_behind_the_guard(view: Any) -> None:
    """Public routes answer 200 or, where the run is not well, 503."""
    app = create_app(view, Security(CONTROL, READ, "127.0.0.1", 8470, ("127.0.0.1",), PATIENT))
    patterns = {*routes_of(app), *app.openapi()["paths"]}
    assert {
        *PUBLIC,
        "/",
        "/metrics",
        "/api/v1/knobs",
        "/api/v1/placement/{table}/rows/{id}",
        "/api/v1/session",
    } <= patterns
    for path in sorted(re.sub(r"{.*?}", "0", pattern) for pattern in patterns):
        for method in METHODS:
            asks = {"method": method, "path": path, "server": ("127.0.0.1", 8470), "type": "http"}
            public = path in PUBLIC and method in ("GET", "HEAD")
            for token in ("", "Bearer wrong"):
                headers = [(b"host", b"127.0.0.1:8470"), *([(b"authorization", token.encode())] if token else [])]
                assert status_asked(app, {**asks, "headers": headers}) in ((200, 405, 503) if public else (401,)), (
                    method,
                    path,
                )
            headers = [(b"host", b"127.0.0.1:8470"), (b"authorization", b"Bearer " + READ.encode())]
            if method not in ("GET", "HEAD") and (method, path) not in READS:
                assert status_asked(app, {**asks, "headers": headers}) == 403, (method, path)


def test_head_is_answered_where_get_is(view: Any) -> None:
    app = create_app(view, Security(CONTROL, READ, "127.0.0.1", 8470, ("127.0.0.1",), PATIENT))
    headers = [(b"host", b"127.0.0.1:8470"), (b"authorization", b"Bearer " + READ.encode())]
    described = app.openapi()["paths"]
    paths = [path for path, verbs in described.items() if "get" in verbs and path != STREAM[1]]
    assert len(paths) > 10
    for path in [*paths, "/", "/metrics"]:
        asks = {"path": re.sub(r"{.*?}", "0", path), "server": ("127.0.0.1", 8470), "type": "http", "headers": headers}
        assert status_asked(app, {**asks, "method": "HEAD"}) == status_asked(app, {**asks, "method": "GET"}) != 405, path


def test_the_control_token_writes(asked: Asked) -> None:
    reply = asked.ask("PATCH", "/api/v1/knobs", token=CONTROL, body=b"{}")
    assert (reply.status, json.loads(reply.body)) == (200, {"scope": "control", "bytes": 2})
    assert json.loads(asked.ask("GET", "/api/v1/status", token=READ).body)["scope"] == "read"
    assert json.loads(asked.ask("GET", "/livez", token=CONTROL).body)["scope"] is None
    assert asked.ask("GET", "/no/such/path", token=CONTROL).status == 404


@pytest.mark.parametrize(
    "line",
    [
        "Basic {t}",
        "{t}",
        "Bearer",
        "Bearer ",
        "Bearer {t}x",
        "Bearer x{t}",
        "Bearer {t},{t}",
        "Bearer {t} {t}",
        "Bearer {u}",
    ]
    + ["Bearer {t}\r\nAuthorization: Bearer {t}", "Bearer {r}\r\nAuthorization: Bearer wrong", "Bearer \xe9"],
)
def test_near_misses_of_the_authorization_header(asked: Asked, line: str) -> None:
    filled = line.format(t=CONTROL, u=CONTROL.upper(), r=READ)
    reply = asked.ask("GET", "/api/v1/status", f"Authorization: {filled}")
    assert reply.status == 401
    assert CONTROL not in reply.body.decode() + str(reply.headers)


def test_the_scheme_is_case_insensitive(asked: Asked) -> None:
    assert asked.ask("GET", "/api/v1/status", f"authorization: bEARER {READ}").status == 200


HOSTS_ALLOWED = "127.0.0.1:{p} 127.0.0.1 localhost:{p} LOCALHOST:{p} localhost [::1]:{p} [::1]".split()
HOSTS_REFUSED = """
evil.example evil.example:{p} 127.0.0.1.evil.example:{p} evil127.0.0.1:{p} localhost.:{p} localhost:1 127.1:{p} 0.0.0.0:{p}
[::]:{p} [0:0:0:0:0:0:0:1]:{p} notlocalhost:{p} localhost.evil.example [::ffff:127.0.0.1]:{p} 2130706433:{p}
""".split()
HOSTS_MALFORMED = (
    """
user@127.0.0.1:{p} 127.0.0.1: 127.0.0.1:{p}:{p} 127.0.0.1:{p}x ::1 [::1 [::1]x {x} 127.0.0.1:{p}/ 127.0.0.1:{p}?a 127.0.0.1,evil
127.0.0.1:0{p} 127.0.0.1:123456 l\xf6calhost
""".split()
    + ["127.0.0.1 evil"]
)


@pytest.mark.parametrize("path", ["/livez", "/", "/api/v1/status"])
def test_hosts(asked: Asked, path: str) -> None:
    def status(host: str) -> int:
        return asked.ask("GET", path, host=host.format(p=asked.port, x="%31"), token=CONTROL).status

    assert {host: status(host) for host in HOSTS_ALLOWED} == dict.fromkeys(HOSTS_ALLOWED, 200)
    assert {host: status(host) for host in HOSTS_REFUSED} == dict.fromkeys(HOSTS_REFUSED, 421)
    assert {host: status(host) for host in HOSTS_MALFORMED} == dict.fromkeys(HOSTS_MALFORMED, 400)


@pytest.mark.alone
def test_a_host_must_be_given_once_and_nowhere_else(sockets: Served) -> None:
    right = f"127.0.0.1:{sockets.port}"
    assert sockets.ask("GET", "/livez", host=None).problem["status"] == 400
    assert sockets.ask("GET", "/livez", f"Host: {right}").problem["status"] == 400
    assert sockets.ask("GET", "/livez", "Host: evil.example").problem["status"] == 400
    for target in ("http://evil.example/", f"http://{right}/livez", "evil.example:80", "*", "livez"):
        assert sockets.ask("GET", target, token=CONTROL).problem["status"] == 400, target
    assert sockets.ask("GET", "//evil.example/", token=CONTROL).status == 404
    assert sockets.ask("GET", "/livez", "X-Forwarded-Host: localhost", host="evil.example").problem["status"] == 421


@pytest.mark.alone
def test_over_the_unix_socket_a_token_is_needed_too(sockets: Served) -> None:
    assert sockets.ask("GET", "/api/v1/status", host="localhost", unix=True).status == 401
    assert sockets.ask("GET", "/api/v1/status", host="localhost", token=READ, unix=True).status == 200
    assert sockets.ask("GET", "/api/v1/status", host="evil", token=READ, unix=True).status == 421


def test_localhost_is_a_name_of_the_unix_socket_only() -> None:
    security = Security(CONTROL, READ, "192.0.2.1", 8470, ("192.0.2.1", "::1"))
    guard = RequestGate(small_app(), security=security)
    scope = {"type": "http", "method": "GET", "path": "/livez", "headers": [(b"host", b"localhost")]}
    assert status_asked(guard, {**scope, "server": ("/run/s", None)}) == 200
    for server in (("192.0.2.1", 8470), None):
        assert status_asked(guard, {**scope, "server": server}) == 421
    assert status_asked(guard, {**scope, "server": None, "headers": [(b"host", b"[::1]:8470")]}) == 200
    assert status_asked(guard, {**scope, "headers": [(b"host", b"[::1]"), (b"host", b"evil.example")]}) == 400


def status_asked(app: Any, scope: dict[str, Any]) -> int:
    """The status of a request without body, given as a scope."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app({"query_string": b"", "http_version": "1.1", "scheme": "http", **scope}, receive, send))
    status: int = sent[0].get("status", sent[0].get("code"))
    return status


def test_websockets_are_closed() -> None:
    guard = RequestGate(small_app(), security=Security(CONTROL, READ, "127.0.0.1", 8470, ("127.0.0.1",)))
    headers = [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer " + CONTROL.encode())]
    assert status_asked(guard, {"type": "websocket", "path": "/api/v1/stream", "headers": headers}) == 1008


@pytest.mark.parametrize("tokens", [("", READ), (CONTROL, ""), (READ, READ)])
def test_there_is_no_guard_without_two_different_tokens(tokens: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="must be given and differ"):
        RequestGate(small_app(), security=Security(*tokens, "127.0.0.1", 8470, ("127.0.0.1",)))


@pytest.mark.parametrize("host", ["http://a", "a:80", "127.0.0.1:80", "[::1]:80", "*", "", "a/b", "a b", "[", "\xe9"])
def test_an_allowed_host_is_a_plain_name(host: str) -> None:
    with pytest.raises(ValueError, match="allowed host"):
        RequestGate(small_app(), security=Security(CONTROL, READ, "127.0.0.1", 8470, (host,)))


def test_an_unfit_host_is_no_application(view: Any) -> None:
    with pytest.raises(ValueError, match="allowed host"):
        create_app(view, Security(CONTROL, READ, "127.0.0.1", 8470, ("http://a",)))


def test_tokens_are_not_shown() -> None:
    shown = repr(Security(CONTROL, READ, "127.0.0.1", 8470, ("127.0.0.1",)))
    assert "127.0.0.1" in shown
    assert CONTROL not in shown
    assert READ not in shown


ORIGINS_REFUSED = (
    """
null http://evil.example http://127.0.0.1 http://127.0.0.1:1 https://127.0.0.1:{p} http://127.0.0.1:{p}.evil.example
http://127.0.0.1:{p}/ http://LOCALHOST:{p} * 127.0.0.1:{p} http://user@127.0.0.1:{p} http://localhost.:{p} http://127.0.0.1:0{p}
http://evil127.0.0.1:{p} http://127.0.0.1:{p}0 file://
""".split()
    + ["", "http://127.0.0.1:{p}, x", "http://127.0.0.1:{p}\r\nOrigin: null"]
)


@pytest.mark.parametrize("origin", ORIGINS_REFUSED)
def test_other_origins_are_refused_for_every_method_and_public_routes(asked: Asked, origin: str) -> None:
    line = "Origin: " + origin.format(p=asked.port)
    for method in METHODS:
        assert asked.ask(method, "/api/v1/status", line, token=CONTROL).status == 403, method
    for path in ("/livez", "/", "/api/v1/stream"):
        reply = asked.ask("GET", path, line)
        assert reply.problem["status"] == 403
        assert "evil" not in str(reply.headers) + reply.body.decode()


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://rec.example", 200),
        ("https://rec.example:8470", 200),
        ("http://rec.example:8470", 200),
        ("https://[2001:db8::1]", 200),
        ("http://rec.example", 403),
        ("https://rec.example:8471", 403),
        ("https://other.example", 403),
        ("https://localhost", 403),
        ("https://a.localhost", 403),
        ("https://127.0.0.1:8470", 403),
        ("https://[::1]", 403),
    ],
)
def test_pages_behind_a_proxy_with_tls_are_of_this_origin_by_an_allowed_name(origin: str, status: int) -> None:
    names = ("127.0.0.1", "localhost", "a.localhost", "[::1]", "Rec.example", "2001:db8::1")
    guard = RequestGate(small_app(), security=Security(CONTROL, READ, "127.0.0.1", 8470, names))
    headers = [(b"host", b"rec.example"), (b"origin", origin.encode()), (b"authorization", b"Bearer " + READ.encode())]
    assert status_asked(guard, {"type": "http", "method": "GET", "path": "/api/v1/status", "headers": headers}) == status


@pytest.mark.parametrize("origin", ["http://127.0.0.1:{p}", "http://localhost:{p}", "http://[::1]:{p}"])
def test_its_own_origins_are_let_in(asked: Asked, origin: str) -> None:
    line = "Origin: " + origin.format(p=asked.port)
    assert asked.ask("PATCH", "/api/v1/knobs", line, token=CONTROL, body=b"{}").status == 200
    assert asked.ask("PATCH", "/api/v1/knobs", line, body=b"{}").status == 401


def cookie_of(asked: Asked, token: str) -> str:
    line = asked.ask("POST", "/api/v1/session", asked.origin, token=token).headers["set-cookie"]
    return "Cookie: " + line.split(";")[0]


def test_the_token_is_swapped_for_a_cookie_that_is_no_token(asked: Asked) -> None:
    reply = asked.ask("POST", "/api/v1/session", asked.origin, token=CONTROL)
    name, _, rest = reply.headers["set-cookie"].partition("=")
    value, *attributes = [part.strip() for part in rest.split(";")]
    assert (reply.status, name) == (204, f"adaptive_rec_{asked.port}")
    assert {part.lower() for part in attributes} == {"httponly", "samesite=strict", "path=/"}
    assert len(value) == 43
    assert CONTROL not in value
    assert asked.ask("GET", "/api/v1/status", token=value).status == 401
    gone = asked.ask("DELETE", "/api/v1/session", asked.origin, cookie_of(asked, READ)).headers["set-cookie"]
    assert gone.startswith(f"{name}=")
    assert "Max-Age=0" in gone


def status_of(asked: Asked, cookie: str) -> int:
    return asked.ask("GET", "/api/v1/status", cookie).status


def test_signing_out_ends_this_session_and_no_other(asked: Asked) -> None:
    mine, other = cookie_of(asked, CONTROL), cookie_of(asked, CONTROL)
    assert mine != other
    assert asked.ask("DELETE", "/api/v1/session", asked.origin, mine).status == 204
    assert [status_of(asked, cookie) for cookie in (mine, other)] == [401, 200]
    assert asked.ask("PATCH", "/api/v1/knobs", mine, asked.origin, body=b"{}").status == 401
    assert asked.ask("DELETE", "/api/v1/session", asked.origin, other, token=READ).status == 204
    assert status_of(asked, other) == 401, "with a token beside it, too"


def test_signing_in_again_ends_the_session_before(asked: Asked) -> None:
    before = cookie_of(asked, READ)
    assert asked.ask("POST", "/api/v1/session", asked.origin, before, token=CONTROL).status == 204
    assert status_of(asked, before) == 401


def test_sessions_are_bounded_in_number(asked: Asked) -> None:
    cookies = [cookie_of(asked, READ) for _ in range(MOST_SESSIONS + 1)]
    assert [status_of(asked, cookie) for cookie in (cookies[0], cookies[1], cookies[-1])] == [401, 200, 200]


def test_the_trainer_is_given_no_session_that_signs_in() -> None:
    kept: list[dict[str, str]] = []
    sessions = BrowserSessions({}, kept.append)
    cookie = sessions.begin("read").encode()
    assert sessions.scope_of([cookie]) == BrowserSessions(kept[-1]).scope_of([b"planted", cookie]) == "read"
    assert cookie.decode() not in str(kept)
    assert BrowserSessions(kept[-1]).scope_of([each.encode() for each in kept[-1]]) is None
    sessions.end([cookie])
    assert kept[-1] == {}


def test_a_cookie_has_the_scope_of_its_token(asked: Asked) -> None:
    for token, scope, status in ((CONTROL, "control", 200), (READ, "read", 403)):
        cookie = cookie_of(asked, token)
        assert json.loads(asked.ask("GET", "/api/v1/status", cookie).body)["scope"] == scope
        assert asked.ask("PATCH", "/api/v1/knobs", cookie, asked.origin, body=b"{}").status == status


def test_a_cookie_counts_only_for_pages_of_this_origin(asked: Asked) -> None:
    cookie, site = cookie_of(asked, CONTROL), "Sec-Fetch-Site: "
    for ours in ("same-origin", "none"):
        assert asked.ask("GET", "/api/v1/status", cookie, site + ours).status == 200
        assert asked.ask("PATCH", "/api/v1/knobs", cookie, site + ours, asked.origin, body=b"{}").status == 200
    for other in ("same-site", "cross-site", "", "Same-Origin", "none\r\nSec-Fetch-Site: cross-site"):
        assert asked.ask("GET", "/api/v1/status", cookie, site + other).status == 403
        assert asked.ask("PATCH", "/api/v1/knobs", cookie, site + other, asked.origin, body=b"{}").status == 403
    for method in METHODS[2:]:
        assert asked.ask(method, "/api/v1/knobs", cookie).status == 403, f"{method} without an Origin"
    assert asked.ask("GET", "/api/v1/status", site + "cross-site", token=READ).status == 200, "a token is no cookie"


def test_cookies_of_other_ports_and_planted_ones(asked: Asked) -> None:
    cookie = cookie_of(asked, READ)
    value = cookie.partition("=")[2]
    assert asked.ask("GET", "/api/v1/status", f"Cookie: adaptive_rec_1={value}").status == 401
    planted = f"Cookie: a=b; adaptive_rec_{asked.port}=planted; {cookie.partition(' ')[2]}"
    assert asked.ask("GET", "/api/v1/status", planted).status == 200, "a planted cookie cannot sign a browser out"
    assert asked.ask("GET", "/api/v1/status", cookie, "Authorization: Bearer wrong").status == 401


@pytest.mark.alone
def test_every_answer_has_the_headers_of_security(sockets: Served) -> None:
    replies = [
        sockets.ask("GET", path, token=CONTROL) for path in ("/api/v1/status", "/none", "/broken", "/own-headers")
    ]
    replies += [sockets.ask("GET", "/"), sockets.ask("GET", "/livez"), sockets.ask("GET", "/livez", host="evil")]
    replies += [
        sockets.ask("GET", "/livez", "bad header"),
        sockets.ask("PUT", "/x", "Content-Length: 99999999", token=CONTROL),
    ]
    assert [reply.status for reply in replies] == [200, 404, 500, 200, 401, 200, 421, 400, 413]
    assert replies[2].headers["connection"] == "close", "as the server does after a mistake"
    for reply in replies:
        names = {name.lower(): value for name, value in reply.headers.items()}
        assert names["x-content-type-options"] == "nosniff"
        assert names["x-frame-options"] == "DENY"
        assert names["referrer-policy"] == "no-referrer"
        assert names["cross-origin-resource-policy"] == names["cross-origin-opener-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in names["content-security-policy"]
        assert names["cache-control"] == ("max-age=60" if reply is replies[3] else "no-store")
        assert len(reply.headers.get_all("x-frame-options") or []) == 1
        assert not [name for name in names if name.startswith("access-control-") or name == "set-cookie"]
        assert CONTROL not in reply.body.decode()


@pytest.mark.alone
def test_bodies_are_bounded_however_they_come(sockets: Served) -> None:
    most = FREE.body_bytes
    assert sockets.ask("POST", "/api/v1/knobs", token=CONTROL, body=b" " * most).status == 200
    for path in ("/api/v1/knobs", "/no/such/path", "/api/v1/session"):
        assert sockets.ask("POST", path, token=CONTROL, body=b" " * (most + 1)).problem["status"] == 413
        declared = sockets.ask("POST", path, f"Content-Length: {1 << 40}", token=CONTROL)
        assert declared.problem["status"] == 413, "at once: all of it never comes"
    chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
    for chunks, status in ((64, 200), (65, 413), (4000, 413)):
        with sockets.connect() as sock:
            head = f"POST /api/v1/knobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {CONTROL}\r\n"
            sock.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * chunks + b"0\r\n\r\n")
            reply = HTTPResponse(sock)
            reply.begin()
            assert reply.status == status


@pytest.mark.alone
def test_bodies_of_strangers_are_not_waited_for(sockets: Served) -> None:
    with serving(PATIENT) as patient:
        assert patient.ask("POST", "/api/v1/knobs", "Content-Length: 1000").status == 401
        assert patient.ask("POST", "/api/v1/knobs", "Content-Length: 1000", token=READ).status == 403
    assert sockets.ask("POST", "/api/v1/knobs", "Content-Length: 1000", token=CONTROL).problem["status"] == 408


@pytest.mark.parametrize("path", ["/slow", "/busy"])
@pytest.mark.alone
def test_what_takes_too_long_is_ended(sockets: Served, path: str) -> None:
    start, watch = time.perf_counter(), Stopwatch()
    reply = sockets.ask("GET", path, token=READ)
    assert reply.problem["status"] == 503
    assert reply.headers["retry-after"] == "1"
    assert FREE.request_seconds <= time.perf_counter() - start
    assert watch.seconds < FREE.request_seconds + 0.5


@pytest.mark.alone
def test_the_stream_has_no_deadline(sockets: Served) -> None:
    with sockets.connect() as sock:
        sock.sendall(f"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {READ}\r\n\r\n".encode())
        until, last = time.monotonic() + 2 * FREE.request_seconds + 0.2, b""
        while time.monotonic() < until:
            last = sock.recv(4096)
        assert b"tick" in last


def test_guessing_is_limited_and_does_not_lock_others_out(limited: Limited) -> None:
    asked = limited(RequestLimits(failures_per_second=1, failures_burst=5))
    cookie = cookie_of(asked, READ)
    wrong = [asked.ask("GET", "/api/v1/status", token=f"guess{n}") for n in range(10)]
    assert [reply.status for reply in wrong[:5]] == [401] * 5
    assert [reply.status for reply in wrong[5:]] == [429] * 5
    assert int(wrong[-1].headers["retry-after"]) == 1
    assert asked.ask("GET", "/api/v1/status", f"Cookie: adaptive_rec_{asked.port}=x").status == 429
    assert (
        asked.ask("GET", "/", f"Cookie: adaptive_rec_{asked.port}=old")
        .headers["content-type"]
        .startswith("text/html")
    )
    for line in (cookie, f"Authorization: Bearer {READ}", f"Authorization: Bearer {CONTROL}"):
        assert asked.ask("GET", "/api/v1/status", line).status == 200
    assert asked.ask("GET", "/api/v1/status").status == 401, "who gives no token has not guessed"


def test_rates_are_kept_apart(limited: Limited) -> None:
    asked = limited(RequestLimits(reads_per_second=0.01, reads_burst=3, writes_per_second=0.01, writes_burst=2))
    browser = cookie_of(asked, CONTROL)
    assert [asked.ask("GET", "/livez").status for _ in range(9)] == [200] * 9, "probes are never refused"
    assert [asked.ask("GET", "/api/v1/status", token=READ).status for _ in range(4)] == [200, 200, 200, 429]
    assert [asked.ask("GET", "/api/v1/status", token=CONTROL).status for _ in range(4)] == [200, 200, 200, 429]
    replies = [asked.ask("PATCH", "/api/v1/knobs", token=CONTROL, body=b"{}") for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429]
    seen = [asked.ask("GET", "/api/v1/status", browser).status for _ in range(3)]
    assert seen == [200, 200, 429], "a signed-in browser has a rate of its own, which signing in counts in"
    assert 90 <= int(replies[-1].headers["retry-after"]) <= 100
    assert asked.ask("PATCH", "/api/v1/knobs", token=READ).status == 403


def test_a_bucket_fills_again_up_to_its_burst() -> None:
    now = [0.0]
    bucket = Bucket(2.0, 3, clock=lambda: now[0])
    assert [bucket.take() for _ in range(5)] == [0, 0, 0, 1, 1]
    now[0] = 0.5
    assert [bucket.take(), bucket.take()] == [0, 1]
    now[0] = 100.0
    assert [bucket.take() for _ in range(4)] == [0, 0, 0, 1]
    with pytest.raises(ValueError, match="above 0"):
        Bucket(0, 1)


@pytest.mark.alone
def test_no_answer_names_the_web_server(sockets: Served) -> None:
    assert Path(sockets.unix).exists()
    assert "uvicorn" not in sockets.ask("GET", "/broken", token=CONTROL).body.decode().lower()
