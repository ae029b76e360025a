"""Requests of the very bytes of one before: they are answered without parsing, and as all others are."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from adaptive_rec.service.security import RequestLimits
from adaptive_rec.service.written import RepeatedAnswer, Template, WrittenAnswers

from .conftest import READ
from .test_protocol import END, Served, serving

GET = b"GET /again HTTP/1.1\r\n" + END
Answer = tuple[int, dict[str, str], bytes]


class Counted:
    """A route whose answers are remembered: how often it was reached, and what it says."""

    def __init__(self) -> None:
        self.reached, self.text = 0, "one"
        self.knows, self.fails = True, False

    async def __call__(self, request: Request) -> Response:
        self.reached += 1
        return RepeatedAnswer(PlainTextResponse(self.text), self._again)

    def _again(self) -> Response | None:
        if self.fails:
            raise RuntimeError("planted")
        return PlainTextResponse(self.text) if self.knows else None


@contextmanager
def counted(**limits: float) -> Iterator[tuple[Counted, Served]]:
    route = Counted()

    async def again(request: Request) -> Response:
        return await route(request)

    many = {"reads_per_second": 1e6, "reads_burst": 1e6} | limits
    with serving(RequestLimits(**many), Route("/again", again)) as served:  # type: ignore[arg-type]
        yield route, served


def read(sock: socket.socket, method: str = "GET") -> Answer:
    """Status, headers and body of the next answer; the date is left out."""
    reply = HTTPResponse(sock, method=method)
    reply.fp = sock.makefile("rb", buffering=0)
    reply.begin()
    headers = {name: value for name, value in reply.headers.items() if name != "date"}
    body = b""
    while method != "HEAD" and len(body) < int(headers["content-length"]):
        body += sock.recv(min(1 << 16, int(headers["content-length"]) - len(body)))
    return reply.status, headers, body


def ask(sock: socket.socket, sent: bytes = GET) -> Answer:
    sock.sendall(sent)
    return read(sock)


@pytest.mark.alone
def test_a_request_of_the_same_bytes_is_answered_without_the_application() -> None:
    with counted() as (route, served), served.connect() as one, served.connect() as other, served.connect(unix=True) as unix:
        first = ask(one)
        assert ask(one) == ask(other) == first
        assert route.reached == 1
        route.text = "two"
        assert ask(other)[2] == b"two"
        assert ask(unix)[2] == b"two"
        assert (route.reached, ask(unix)[2], route.reached) == (2, b"two", 2), "the Unix socket is let in by itself"
        route.knows = False
        assert (ask(one)[2], route.reached) == (b"two", 3), "where there is no answer, the application makes one"
        route.fails = True
        assert (ask(one)[2], route.reached) == (b"two", 4)


@pytest.mark.alone
def test_only_whole_reads_that_come_alone_are_remembered() -> None:
    with counted() as (route, served), served.connect() as sock:
        for _ in range(2):
            sock.sendall(GET + GET)
            assert [read(sock)[2], read(sock)[2]] == [b"one", b"one"]
        assert route.reached == 4
        for part in (GET[:20], GET[20:]):
            sock.sendall(part)
        assert (read(sock)[2], route.reached) == (b"one", 5)
        head = GET.replace(b"GET", b"HEAD", 1)
        for _ in range(2):
            sock.sendall(head)
            assert read(sock, "HEAD")[2] == b""
        assert route.reached == 7
        long = GET.replace(b"\r\n\r\n", b"\r\nX-Long: " + b"x" * 5000 + b"\r\n\r\n")
        assert [ask(sock, long)[2], ask(sock, long)[2], route.reached] == [b"one", b"one", 9]
        last = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        for number in (10, 11):
            with served.connect() as closing:
                assert ask(closing, last)[2] == b"one"
                assert closing.recv(1) == b""
                assert route.reached == number


@pytest.mark.alone
def test_rates_and_sessions_count_as_for_all_requests() -> None:
    with counted(reads_per_second=0.01, reads_burst=3) as (route, served), served.connect() as sock:
        assert [ask(sock)[0] for _ in range(5)] == [200, 200, 200, 429, 429]
        assert route.reached == 1


@pytest.mark.alone
def test_a_client_that_does_not_read_gets_whole_answers_in_order() -> None:
    with counted() as (route, served), served.connect() as sock:
        ask(sock)
        route.text = "x" * (8 << 20)
        for _ in range(3):
            sock.sendall(GET)
        assert all(read(sock)[2] == route.text.encode() for _ in range(3))
        route.text = "y"
        assert ask(sock)[2] == b"y"


@pytest.mark.alone
def test_every_answer_that_is_repeated_is_that_of_the_route(lasting_sidecar: Any) -> None:
    run = lasting_sidecar.run
    paths = (
        "status", "stats", "stats/history", "events", "knobs", "placement", "placement/C1?limit=1000",
        "placement/0?class=cold", "placement/C1/rows/3",
    )  # fmt: skip
    host = f"Host: 127.0.0.1:{lasting_sidecar.port}\r\n"
    with socket.create_connection(("127.0.0.1", lasting_sidecar.port), timeout=120) as sock:
        for path in paths:
            sent = f"GET /api/v1/{path} HTTP/1.1\r\n{host}Authorization: Bearer {READ}\r\n\r\n".encode()
            other = sent.replace(b"\r\n\r\n", b"\r\nX-Other: %d\r\n\r\n" % run.step)  # it goes the long way
            for _ in range(2):
                status, headers, body = ask(sock, sent)
                again, fresh = ask(sock, sent), ask(sock, other)
                assert (status, headers.pop("content-length")) == (200, str(len(body)))
                for each in (again, fresh):
                    assert each[1].pop("content-length") == str(len(each[2]))
                    assert (each[0], each[1], known(each[2])) == (200, headers, known(body)), path
                run.event("warning", path)
                run.report(run.step + 20)
                run.publish()
                other = sent.replace(b"\r\n\r\n", b"\r\nX-Other: %d\r\n\r\n" % run.step)


def known(body: bytes) -> Any:
    """An answer without the age of the last step."""
    found = json.loads(body)
    found.pop("last_step_age_seconds", None)
    return found


@pytest.mark.alone
def test_a_session_that_has_ended_is_refused_its_request(lasting_sidecar: Any) -> None:
    port = lasting_sidecar.port
    origin = {"Origin": f"http://127.0.0.1:{port}"}
    cookie = lasting_sidecar.http.post("/api/v1/session", headers=origin).headers["set-cookie"].partition(";")[0]
    sent = f"GET /api/v1/stats HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), timeout=120) as sock:
        assert [ask(sock, sent)[0] for _ in range(3)] == [200] * 3
        assert lasting_sidecar.http.delete("/api/v1/session", headers={"Cookie": cookie, **origin}).status_code == 204
        assert ask(sock, sent)[0] == 401


def test_answers_are_kept_until_there_is_a_new_version() -> None:
    version, made = [1], iter(range(100))
    answers: WrittenAnswers[int] = WrittenAnswers(lambda: version[0], most=3)
    assert [answers.get("a", lambda: next(made)) for _ in range(2)] == [0, 0]
    version[0] = 2
    assert answers.known("a") is None
    assert answers.get("a", lambda: next(made)) == 1
    assert answers.keep("b", 1, 7) == 7, "it was made while the version changed"
    assert answers.known("b") is None
    for name in "abcdefgh":
        answers.get(name, lambda: next(made))
        assert len(answers._answers) <= 3


def test_a_template_is_the_object_with_its_open_members() -> None:
    content = {"name": 'a"b\\c\u202e', "step": None, "eta": None, "list": [1, None]}
    template = Template(content, ("step", "eta"))
    for values in ({"step": 3, "eta": None}, {"step": 2**53, "eta": 0.25}):
        text = template.fill(values)
        assert json.loads(text) == {**content, **values}
        assert list(json.loads(text)) == list(content)
        assert text.isascii(), "what cannot be seen is escaped"


