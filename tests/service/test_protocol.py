"""Connections that are slow, greedy or malformed, over real sockets: when they end, and that others do not notice."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPResponse

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from adaptive_rec.service.gate import RequestGate
from adaptive_rec.service.protocol import LINGER_SECONDS, UNIX_CONNECTIONS, protocol_for
from adaptive_rec.service.security import RequestLimits, Security
from tests.stopwatch import Stopwatch

pytestmark = pytest.mark.alone

TOKEN = "control-0123456789abcdef"
DEADLINE = 0.6
END = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST_NOTHING = b"POST /x HTTP/1.1\r\nContent-Length: 0\r\n" + END
STREAM = b"GET /api/v1/stream HTTP/1.1\r\n" + END
FLOOD = b"GET /api/v1/stream?flood=1 HTTP/1.1\r\n" + END


async def length(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


async def stream(request: Request) -> StreamingResponse:
    async def ticks() -> object:
        while True:
            yield b"data: " + (b"x" * 60000 if request.query_params else b"tick") + b"\n\n"
            await asyncio.sleep(0.0 if request.query_params else 0.1)

    return StreamingResponse(ticks(), media_type="text/event-stream")  # type: ignore[arg-type]


@dataclass
class Served:
    port: int
    unix: str
    server: uvicorn.Server

    def connect(self, unix: bool = False) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        sock.settimeout(20)
        sock.connect(self.unix if unix else ("127.0.0.1", self.port))
        return sock

    def let_it_look(self) -> None:
        """Wait until the server has looked for what its sockets have received."""
        for _ in range(4):
            looked = threading.Event()
            self.server.servers[0].get_loop().call_soon_threadsafe(looked.set)
            assert looked.wait(20)

    def wait_until_idle(self) -> None:
        watch = Stopwatch()
        while self.server.server_state.connections:
            assert watch.seconds < 3, "connections are left over"
            time.sleep(0.01)


@contextmanager
def serving(limits: RequestLimits, *more: Route) -> Iterator[Served]:
    app = Starlette(
        routes=[Route("/livez", length), Route("/x", length, methods=["POST"]), Route("/api/v1/stream", stream), *more]
    )
    with tempfile.TemporaryDirectory() as folder, socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        tcp.bind(("127.0.0.1", 0))
        unix.bind(f"{folder}/s")
        security = Security(TOKEN, "read-0123456789abcdef", "127.0.0.1", tcp.getsockname()[1], ("localhost",), limits)
        guard = RequestGate(app, security=security)
        config = uvicorn.Config(guard, http=protocol_for(security), log_config=None, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([tcp, unix])))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield Served(security.port, f"{folder}/s", server)
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with serving(RequestLimits(request_seconds=DEADLINE, reads_per_second=1e6, reads_burst=1e6)) as found:
        yield found


@pytest.fixture
def served(shared: Served) -> Iterator[Served]:
    shared.wait_until_idle()
    yield shared
    shared.wait_until_idle()


def read_reply(sock: socket.socket, method: str = "GET") -> tuple[int, str, bytes]:
    """Status, content type and body of the next answer; the connection stays usable."""
    reply = HTTPResponse(sock, method=method)
    reply.fp = sock.makefile("rb", buffering=0)  # reads no further than this answer
    reply.begin()
    return reply.status, str(reply.headers["content-type"]), reply.read()


def problem_of(sock: socket.socket) -> int:
    """The status of a problem, after which the server ends the connection."""
    status, kind, body = read_reply(sock)
    assert kind == "application/problem+json"
    assert json.loads(body)["status"] == status
    assert sock.recv(1) == b"", "the connection ends"
    return status


def seconds_until_closed(sock: socket.socket, drip: bytes = b"") -> float:
    """From now until the server ends the connection, `drip` being sent bit by bit meanwhile."""
    watch = Stopwatch()
    sock.settimeout(0.1)
    while watch.seconds < 5:
        try:
            if drip:
                sock.sendall(drip[:1])
                drip = drip[1:]
            if not sock.recv(4096):
                return watch.seconds
        except TimeoutError:
            continue
        except OSError:
            return watch.seconds
    raise AssertionError("the connection is still open")


def test_a_request_that_does_not_arrive_is_ended_at_the_deadline(served: Served) -> None:
    chunked = b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + END
    body = b"POST /x HTTP/1.1\r\nContent-Length: 10\r\n" + END
    begun = [b"", b"G", b"GET /livez HTTP/1.1\r\nHost: loc", body, body + b"12345", chunked, chunked + b"5\r\n123"]
    with ExitStack() as stack:
        slow = [stack.enter_context(served.connect()) for _ in begun]
        later = stack.enter_context(served.connect())
        later.sendall(GET)
        assert read_reply(later)[0] == 200
        start, watch = time.monotonic(), Stopwatch()
        for sock, sent in zip(slow, begun, strict=True):
            sock.sendall(sent)
        time.sleep(0.2)
        later.sendall(b"GET /liv")
        for sock in slow:
            assert problem_of(sock) == 408
            assert DEADLINE - 0.05 < time.monotonic() - start
            assert watch.seconds < DEADLINE + 1.5
        assert problem_of(later) == 408
        assert time.monotonic() - start > DEADLINE + 0.15, "a later request has a deadline of its own"


@pytest.mark.parametrize("begun", [b"GET /livez HTTP/1.1\r\nX: ", b"POST /x HTTP/1.1\r\nContent-Length: 999\r\n" + END])
def test_dripping_does_not_move_the_deadline(served: Served, begun: bytes) -> None:
    with served.connect() as sock:
        sock.sendall(begun)
        assert seconds_until_closed(sock, drip=b"a" * 100) < DEADLINE + 0.5


def test_the_deadline_ends_a_body_that_still_comes_after_its_answer(served: Served) -> None:
    for sent in (
        b"POST /x HTTP/1.1\r\nContent-Length: 999999\r\n" + END,
        b"GET /livez HTTP/1.1\r\nContent-Length: 9\r\nHost: x\r\n\r\n",
    ):
        with served.connect() as sock:
            sock.sendall(sent)
            assert read_reply(sock)[0] in (413, 421)
            assert seconds_until_closed(sock, drip=b" " * 100) < DEADLINE + 0.5


def test_half_open_sockets_do_not_block_the_unix_socket() -> None:
    deadline = 4.0  # a machine that is busy elsewhere may stand still for a second
    with serving(RequestLimits(request_seconds=deadline)) as served:
        with ExitStack() as stack:
            watch = Stopwatch()
            half_open = [stack.enter_context(served.connect()) for _ in range(200)]
            for sock in half_open:
                try:
                    sock.sendall(b"GET / HTTP/1.1\r\nHost: loc")
                except OSError:  # turned away already
                    continue
            waits = []
            for _ in range(20):
                before = Stopwatch()
                with served.connect(unix=True) as sock:
                    sock.sendall(b"GET /livez HTTP/1.1\r\n" + END)
                    assert read_reply(sock)[0] == 200
                waits.append(before.seconds)
            assert sorted(waits)[17] < 0.2, "all but two of twenty; the machine may be busy"
            assert len(served.server.server_state.connections) <= len(half_open) + 1
            assert watch.seconds < deadline, "they were open all this while"
            for sock in half_open:
                seconds_until_closed(sock)
            assert watch.seconds < deadline + 1.5, "the loops of this test take a while, too"
        with served.connect() as sock:
            sock.sendall(GET)
            assert read_reply(sock)[0] == 200


def test_connections_with_a_token_beyond_the_limit_are_refused_and_others_go_on() -> None:
    with serving(RequestLimits(request_seconds=5, connections=3)) as served, ExitStack() as stack:
        open_ones = [stack.enter_context(served.connect()) for _ in range(3)]
        for sock in open_ones:
            sock.sendall(POST_NOTHING)
            assert read_reply(sock)[0] == 200
        for _ in range(5):
            with served.connect() as sock:
                sock.sendall(POST_NOTHING)
                assert read_reply(sock)[0] == 503
        with served.connect(unix=True) as sock:
            sock.sendall(POST_NOTHING)
            assert read_reply(sock)[0] == 200
        with served.connect() as sock:
            sock.sendall(GET)
            assert read_reply(sock)[0] == 200, "probes have places of their own"
        open_ones[0].sendall(POST_NOTHING)
        assert read_reply(open_ones[0])[0] == 200, "the newest is refused, not the others"
        for connection in served.server.server_state.connections:  # anything unsent has to be sent within the deadline
            assert connection.transport.get_write_buffer_limits() == (0, 0)  # type: ignore[union-attr]
        open_ones[0].close()
        served.let_it_look()
        with served.connect() as sock:
            sock.sendall(POST_NOTHING)
            assert read_reply(sock)[0] == 200


def test_a_connection_beyond_the_limit_takes_the_place_of_the_oldest_whose_request_has_not_arrived() -> None:
    with serving(RequestLimits(request_seconds=5, arriving=3)) as served, ExitStack() as stack:
        first, second, _ = [stack.enter_context(served.connect()) for _ in range(3)]
        first.sendall(GET[:-2])
        served.let_it_look()
        newest = stack.enter_context(served.connect())
        assert problem_of(first) == 503
        for sock in (newest, second):
            sock.sendall(GET)
            assert read_reply(sock)[0] == 200


def test_a_stranger_who_only_waits_for_a_next_request_goes_first() -> None:
    with serving(RequestLimits(request_seconds=5, connections=2)) as served, ExitStack() as stack:
        idle, newer = [stack.enter_context(served.connect()) for _ in range(2)]
        for sock in (idle, newer):
            sock.sendall(GET)
            assert read_reply(sock)[0] == 200
        third = stack.enter_context(served.connect())
        newer.sendall(GET)
        assert read_reply(newer)[0] == 200, "a connection that asks for nothing takes no place of those who do"
        third.sendall(GET)
        assert read_reply(third)[0] == 200
        assert idle.recv(1) == b"", "it is ended without an answer"


def test_a_stranger_who_holds_a_body_back_goes_before_one_who_is_answered() -> None:
    with serving(RequestLimits(request_seconds=5, connections=2)) as served, ExitStack() as stack:
        idle, holding = [stack.enter_context(served.connect()) for _ in range(2)]
        idle.sendall(GET)
        assert read_reply(idle)[0] == 200
        holding.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        served.let_it_look()
        third = stack.enter_context(served.connect())
        third.sendall(GET)
        assert read_reply(third)[0] == 200
        assert problem_of(holding) == 503
        idle.sendall(GET)
        assert read_reply(idle)[0] == 200


def test_a_burst_beyond_the_limit_loses_no_request_that_was_sent() -> None:
    """All connections of a burst are accepted before any of them is read."""
    with serving(RequestLimits(request_seconds=5, connections=2, arriving=4)) as served, ExitStack() as stack:
        held = threading.Event()
        loop = served.server.servers[0].get_loop()
        loop.call_soon_threadsafe(held.wait, 5)
        burst = [stack.enter_context(served.connect()) for _ in range(60)]
        for number, sock in enumerate(burst):
            sock.sendall(POST_NOTHING if number < 2 else GET)
        held.set()
        assert [read_reply(sock)[0] for sock in burst] == [200] * 60


def test_strangers_with_half_sent_requests_lock_nobody_out() -> None:
    """70 connections that send half a request, and connect again as soon as they are ended."""
    with serving(RequestLimits(request_seconds=2)) as served, ExitStack() as stack:
        over = threading.Event()
        stack.callback(over.set)
        for _ in range(70):
            threading.Thread(target=send_halves, args=(served, over), daemon=True).start()
        time.sleep(0.5)
        for request in [GET, POST_NOTHING] * 25:
            with served.connect() as sock:
                sock.sendall(request)
                assert read_reply(sock)[0] == 200


def send_halves(served: Served, over: threading.Event) -> None:
    while not over.is_set():
        with suppress(OSError), served.connect() as sock:
            sock.settimeout(0.2)
            sock.sendall(GET[:-2])
            while not over.is_set():
                with suppress(TimeoutError):
                    if not sock.recv(4096):
                        break


@pytest.mark.parametrize("seconds", [1.0, pytest.param(3.0, marks=pytest.mark.slow)])
def test_a_flood_of_probes_does_not_refuse_a_probe(seconds: float) -> None:
    """24 connections ask for /livez as fast as they can."""
    limits = RequestLimits()
    with serving(limits) as served, ExitStack() as stack:
        over, answers, began = threading.Event(), [0] * 24, time.monotonic()
        stack.callback(over.set)
        for number in range(24):
            threading.Thread(target=flood, args=(served, over, answers, number), daemon=True).start()
        time.sleep(seconds)
        for _ in range(20):
            with served.connect() as sock:
                watch = Stopwatch()
                sock.sendall(GET)
                assert read_reply(sock)[0] == 200
                assert watch.seconds < 1
        most = limits.strangers_burst + limits.strangers_per_second * (time.monotonic() - began) + 1
        assert sum(answers) < 24 * most, "each of them was slowed down to 10 a second, after 20"


def flood(served: Served, over: threading.Event, answers: list[int], number: int) -> None:
    with suppress(OSError), served.connect() as sock:
        while not over.is_set():
            sock.sendall(GET)
            answers[number] += read_reply(sock)[0] == 200


def test_the_unix_socket_has_a_cap_of_its_own(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(UNIX_CONNECTIONS):
            stack.enter_context(served.connect(unix=True))
        served.let_it_look()
        with served.connect(unix=True) as sock:
            assert problem_of(sock) == 503
        with served.connect() as sock:
            sock.sendall(GET)
            assert read_reply(sock)[0] == 200


def test_who_does_not_read_is_ended(served: Served) -> None:
    """Once the socket's buffers are full, and only then."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(5)
        sock.connect(("127.0.0.1", served.port))
        sock.sendall(FLOOD)
        served.let_it_look()
        assert len(served.server.server_state.connections) == 1
        served.wait_until_idle()
    with served.connect() as sock:
        sock.sendall(FLOOD)
        until, count = time.monotonic() + 1.5 * DEADLINE, 0
        while time.monotonic() < until:
            count = len(sock.recv(65536))
            time.sleep(0.001)
        assert count, "a reader that keeps up with some of it goes on"


def test_who_asks_on_and_on_without_reading_is_ended(served: Served) -> None:
    with served.connect(unix=True) as sock:  # whose buffers are small
        sock.settimeout(0.3)
        try:
            while True:
                sock.sendall(GET * 1000)
        except OSError:  # the buffers of both sides are full
            assert len(served.server.server_state.connections) == 1
        served.wait_until_idle()


def test_a_connection_is_used_again_for_longer_than_the_deadline(served: Served) -> None:
    with served.connect() as sock:
        until = time.monotonic() + 2 * DEADLINE
        while time.monotonic() < until:
            sock.sendall(b"POST /x HTTP/1.1\r\nContent-Length: 3\r\n" + END + b"abc")
            assert read_reply(sock)[::2] == (200, b"3")
            time.sleep(0.3)


def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    post = b"POST /x HTTP/1.1\r\nContent-Length: 2\r\n" + END + b"ab"
    with served.connect() as sock:
        sock.sendall((GET + post) * 20 + b"GET /livez HTTP/1.1\r\nHost: evil\r\n\r\n" + GET)
        assert [read_reply(sock)[2] for _ in range(40)] == [b"0", b"2"] * 20
        assert [read_reply(sock)[0] for _ in range(2)] == [421, 200]


MALFORMED = [
    b"\r\n\r\n",
    b"nonsense\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/1.1\r\n\r\n",
]
MALFORMED += [
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET  / HTTP/1.1\r\n\r\n",
]
MALFORMED += [b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n"]
MALFORMED += [b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n"]
MALFORMED += [b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"]
MALFORMED += [
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
]


def test_a_request_that_is_not_http_gets_an_error_of_the_usual_form(served: Served) -> None:
    for sent in MALFORMED:
        with served.connect() as sock:
            sock.sendall(sent)
            assert problem_of(sock) == (501 if b"gzip" in sent else 400), sent


def test_malformed_bodies_and_followers_end_the_connection_quietly(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    chunked = b"Transfer-Encoding: chunked\r\n" + END
    with caplog.at_level(logging.DEBUG):
        for sent in (
            b"POST /x HTTP/1.1\r\n" + chunked + b"zz\r\n",
            STREAM + b"nonsense\r\n\r\n",
            GET + b"nonsense\r\n\r\n",
        ):
            with served.connect() as sock:
                sock.sendall(sent)
                assert seconds_until_closed(sock) < DEADLINE if not sent.startswith(STREAM) else sock.recv(100)
        with served.connect() as sock:
            sock.sendall(b"GET /api/v1/stream HTTP/1.1\r\n" + chunked + b"0\r\n\r\n")
            assert b"200 OK" in sock.recv(4096)
        with served.connect() as sock:  # 401 at once, then a broken body
            sock.sendall(b"POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            assert read_reply(sock)[0] == 401
            sock.sendall(b"zz\r\n")
            assert seconds_until_closed(sock) < DEADLINE
        served.wait_until_idle()
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_header_bombs(served: Served) -> None:
    bombs = [
        b"X: " + b"a" * 200_000,
        b"a:\r\n" * 60_000,
        b"\r\n".join(b"X%d: y" % n for n in range(20_000)),
        b"X: y\r\n" + b" z\r\n" * 50_000,
    ]
    watch = Stopwatch()
    for number in range(100):
        with served.connect() as sock:
            try:
                sock.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + bombs[number % 4] + b"\r\n\r\n")
                assert read_reply(sock)[0] == 431
            except (ConnectionError, BrokenPipeError):  # ended while still sending
                continue
    assert watch.seconds / 100 < 0.05 + LINGER_SECONDS
    with served.connect() as sock:
        sock.sendall(b"GET /livez?" + b"q" * 17_000 + b" HTTP/1.1\r\nHost: localhost")
        assert problem_of(sock) == 431
    with served.connect() as sock:  # small enough to arrive all at once
        sock.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 14_000 + b"\r\n")
        assert read_reply(sock)[0] == 431
    waits = []
    for _ in range(5):
        with served.connect() as sock:
            watch = Stopwatch()
            sock.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 2000 + b"\r\n")
            assert read_reply(sock)[0] == 200, "8 KiB are fine"
            waits.append(watch.seconds)
    assert min(waits) < 0.05


def test_upgrades_are_ignored(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    for upgrade in (b"websocket", b"h2c"):
        with served.connect() as sock:
            head = b"GET /livez HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: " + upgrade
            sock.sendall(
                head + b"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + END
            )
            assert read_reply(sock)[::2] == (200, b"0")
            sock.sendall(GET)
            assert read_reply(sock)[0] == 200
    assert not caplog.records


def test_head_is_answered_without_a_body_and_ended_like_others(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(b"HEAD /livez HTTP/1.1\r\n" + END + GET)
        assert read_reply(sock, "HEAD")[::2] == (200, b"")
        assert read_reply(sock)[0] == 200
    with served.connect() as sock:
        sock.sendall(b"HEAD /livez HTTP/1.1\r\nContent-Length: 5\r\n" + END)
        assert seconds_until_closed(sock) < DEADLINE + 0.5


def test_a_client_that_leaves_before_it_is_refused_leaves_no_line_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment between the answer and the end of the connection is too short to be met, so the failing call is simulated."""

    def gone(transport: object) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr("asyncio.selector_events._SelectorSocketTransport.write_eof", gone)
    limits = RequestLimits(request_seconds=20, arriving=1)
    with serving(limits) as served, ExitStack() as stack, caplog.at_level(logging.DEBUG):
        for number in range(UNIX_CONNECTIONS + 2):
            stack.enter_context(served.connect(unix=number < UNIX_CONNECTIONS + 1))
        newest = stack.enter_context(served.connect())
        newest.sendall(GET)
        assert read_reply(newest)[0] == 200
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_body_whose_length_is_given_twice_is_refused_and_ends_the_connection(served: Served) -> None:
    """RFC 9112, 6.1: what follows might be read as another request."""
    with served.connect() as sock:
        sock.sendall(b"POST /x HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n" + END + b"0\r\n\r\n" + GET)
        assert problem_of(sock) == 400
        assert seconds_until_closed(sock) < DEADLINE


def test_expect_continue(served: Served) -> None:
    for size, line in ((b"3", b"HTTP/1.1 100 Continue\r\n\r\n"), (b"99999999", b"HTTP/1.1 413 ")):
        with served.connect() as sock:
            sock.sendall(b"POST /x HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: " + size + b"\r\n" + END)
            assert sock.recv(4096).startswith(line)


def test_a_full_house_ends_within_the_grace_period() -> None:
    with serving(RequestLimits(request_seconds=5)) as served, ExitStack() as stack:
        for number in range(80):
            sock = stack.enter_context(served.connect())
            sock.sendall(STREAM if number % 2 else b"GET / HT")
        time.sleep(0.2)
        watch = Stopwatch()
        served.server.should_exit = True
        while served.server.server_state.connections:
            assert watch.seconds < 3
            time.sleep(0.02)
