"""The live stream: the newest snapshot, a bounded number of clients, and slots that always come back."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from adaptive_rec.service import event_stream
from adaptive_rec.service.event_stream import (
    FRESH_SECONDS,
    Feed,
    LiveStream,
    StreamClock,
    StreamSlots,
    Subscriber,
    messages,
)
from tests.stopwatch import Stopwatch

CONTROL = b"c" * 43


def data(message: bytes) -> Any:
    return json.loads(next(line[6:] for line in message.decode().splitlines() if line.startswith("data: ")))


def test_messages_come_when_something_has_changed(view: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(event_stream, "time", SimpleNamespace(monotonic=lambda: now))
    feed = Feed(view)
    one, other = messages(feed, "read"), messages(feed, "read")

    def message() -> bytes:
        nonlocal now
        now += 1.1 * FRESH_SECONDS
        text = one()
        assert other() == text, "all streams get the same"
        return text

    first = message()
    assert first.startswith(b"event: snapshot\n")
    assert b"\nretry: 1000\n" in first
    assert b"\nid: 40\n" in first
    assert set(data(first)) == {"status", "stats", "last_event_id", "knobs_etag"}
    assert message() == b""
    run.report(60)
    run.report(80)
    assert data(message())["stats"]["step"] == 80  # only the newest
    assert message() == b""
    run.event("warning", "look")
    assert data(message())["last_event_id"] == 1
    before = data(first)["knobs_etag"]
    view.knobs.take_report({"desired": {**run.knobs, "alpha": 0.8}, "effective": run.knobs, "step": 80})
    assert data(message())["knobs_etag"] != before
    now += 11
    assert message() == b": nothing new\n\n"


class Connection:
    """A client that reads, unless it is told not to, or that is broken."""

    def __init__(self, broken: bool = False) -> None:
        self.parts: list[bytes] = []
        self.is_read, self.broken = True, broken

    def push(self, part: bytes) -> None:
        if self.broken:
            raise OSError("gone")
        self.parts.append(part)


def serve(response: LiveStream, receive: Any, send: Any, connection: Connection | None = None) -> Any:
    state = {"lane": "bearer", "connection": connection or Connection()}
    return response({"type": "http", "state": state}, receive, send)


async def never() -> Any:
    await asyncio.Event().wait()


async def ignore(message: Any) -> None:
    pass


def test_a_slot_comes_back_however_a_stream_ends() -> None:
    async def all_endings() -> None:
        slots, clock, connection = StreamSlots(4), StreamClock(), Connection()
        stream = LiveStream(slots, clock, lambda: b": x\n\n", 0.001)

        async def stuck(message: Any) -> None:
            await asyncio.Event().wait()

        async def leave() -> Any:
            while len(connection.parts) < 3:
                await asyncio.sleep(0.001)
            return {"type": "http.disconnect"}

        await asyncio.wait_for(serve(stream, leave, ignore, connection), 60)
        assert slots.taken["bearer"] == 0
        for ending in (serve(stream, never, stuck), serve(stream, never, ignore)):
            task = asyncio.create_task(ending)
            await asyncio.sleep(0.01)
            assert slots.taken["bearer"] == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert slots.taken["bearer"] == 0
        with pytest.raises(OSError, match="gone"):
            await serve(stream, never, ignore, Connection(broken=True))
        assert slots.taken["bearer"] == 0
        failing = LiveStream(slots, clock, lambda: 1 // 0, 0.001)  # type: ignore[arg-type, return-value]
        with pytest.raises(ZeroDivisionError):
            await serve(failing, never, ignore)
        assert slots.taken["bearer"] == 0
        assert clock._timer is None, "a clock without streams stands still"

    asyncio.run(all_endings())


def test_a_client_that_does_not_read_gets_the_newest_message_later_and_holds_up_nobody() -> None:
    async def read_late() -> None:
        clock, slow, other, number = StreamClock(), Connection(), Connection(), itertools.count()

        def newest() -> Callable[[], bytes]:
            return lambda: b"%d" % next(number)

        tasks = [
            asyncio.create_task(serve(LiveStream(StreamSlots(4), clock, newest(), 0.002), never, ignore, each))
            for each in (slow, other)
        ]
        await asyncio.sleep(0)
        slow.is_read = False
        while len(other.parts) < 20:
            await asyncio.sleep(0.002)
        assert len(slow.parts) == 1
        slow.is_read = True
        while len(slow.parts) < 2:
            await asyncio.sleep(0.002)
        assert int(slow.parts[1]) >= 20, "none of the messages meanwhile was kept for it"
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(asyncio.wait_for(read_late(), 60))


def test_streams_of_one_rate_are_due_together() -> None:
    async def due() -> None:
        streams = [Subscriber(Connection(), lambda: b"", 0.1, lambda: True) for _ in range(3)]
        for stream, now in zip(streams, (50.01, 50.06, 49.995), strict=True):
            stream.serve(now)
        assert [round(stream.due, 6) for stream in streams] == [50.1, 50.1, 50.1]

    asyncio.run(due())


def test_a_stream_ends_when_its_browser_signs_out() -> None:
    async def end() -> None:
        answers, connection = iter([True, True, False]), Connection()
        stream = LiveStream(StreamSlots(4), StreamClock(), lambda: b": x\n\n", 0.001, lambda: next(answers))
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await asyncio.wait_for(serve(stream, never, send, connection), 60)
        assert connection.parts == [b": x\n\n", b": x\n\n"]
        assert [message.get("body") for message in sent] == [None, b""]
        assert not sent[-1].get("more_body")

    asyncio.run(end())


@pytest.mark.alone
def test_a_stream_of_a_session_ends_with_it(lasting_sidecar: Any) -> None:
    origin = {"Origin": f"http://127.0.0.1:{lasting_sidecar.port}"}
    cookie = lasting_sidecar.http.post("/api/v1/session", headers=origin).headers["set-cookie"].partition(";")[0]
    with socket.create_connection(("127.0.0.1", lasting_sidecar.port), timeout=120) as stream:
        request = f"GET /api/v1/stream?hz=10 HTTP/1.1\r\nHost: 127.0.0.1:{lasting_sidecar.port}\r\nCookie: {cookie}\r\n\r\n"
        stream.sendall(request.encode())
        received = stream.recv(4096)
        assert received.startswith(b"HTTP/1.1 200")
        assert lasting_sidecar.http.delete("/api/v1/session", headers={"Cookie": cookie, **origin}).status_code == 204
        while not received.endswith(b"\r\n0\r\n\r\n"):
            part = stream.recv(65536)
            assert part, "the stream ends as HTTP says"
            received += part


@pytest.mark.alone
def test_head_answers_the_headers_of_a_stream_and_ends(lasting_sidecar: Any) -> None:
    answer = lasting_sidecar.http.head("/api/v1/stream")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")


def open_stream(port: int) -> socket.socket:
    """A client with a small buffer that has read no more than the first bytes."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect(("127.0.0.1", port))
    request = b"GET /api/v1/stream?hz=10 HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\n\r\n"
    client.sendall(request % (port, CONTROL))
    client.settimeout(120)
    return client


@pytest.mark.alone
def test_sixty_four_streams_and_no_more(lasting_sidecar: Any) -> None:
    clients = [open_stream(lasting_sidecar.port) for _ in range(64)]
    assert all(client.recv(15) == b"HTTP/1.1 200 OK" for client in clients)
    refused = lasting_sidecar.http.get("/api/v1/stream")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert refused.headers["content-type"] == "application/problem+json"
    for number in range(50):  # they read nothing while much is said
        lasting_sidecar.run.report(60 + number)
        time.sleep(0.01)
    for client in clients:
        client.close()
    watch = Stopwatch(lasting_sidecar.process.pid)
    while True:
        client = open_stream(lasting_sidecar.port)
        answered = client.recv(15)
        client.close()
        if answered == b"HTTP/1.1 200 OK":
            break
        assert watch.seconds < 3
        time.sleep(0.1)
