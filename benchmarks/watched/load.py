"""Clients of a run that is watched: streams and requests over plain sockets, in a process of its own until a signal comes."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROUTES = {
    "status": "/api/v1/status",
    "stats": "/api/v1/stats",
    "history": "/api/v1/stats/history",
    "events": "/api/v1/events",
    "knobs": "/api/v1/knobs",
    "placement": "/api/v1/placement",
    "row": "/api/v1/placement/0/rows/0",
    "1000 hot rows": "/api/v1/placement/0?class=hot&sort=estimate&limit=1000",
    "1000 cold rows": "/api/v1/placement/0?class=cold&limit=1000",
}
SCRAPE, SCRAPED_EVERY = ("metrics", "/metrics"), 20
"""Each twentieth request."""
LOST = b""
"""Status of a request whose connection ended, as it was idle during a pause."""
ASKING = 4
"""Connections that requests come on, so that a slow answer does not hold up the next request."""


class Reader(asyncio.Protocol):
    """A connection of a client: sends requests, counts messages, and ends a wait when an answer is whole."""

    def __init__(self) -> None:
        self.whole: asyncio.Future[bytes] | None = None
        self.messages = self._missing = 0
        """Messages of a stream."""
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        if self.whole is None:
            self.messages += data.count(b"event: snapshot")
            return
        if not self._missing:
            head, _, body = data.partition(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
            self._head, self._missing = head, int(length) - len(body)
        else:
            self._missing -= len(data)
        if not self._missing and not self.whole.done():
            self.whole.set_result(self._head.split(b" ", 2)[1])

    def connection_lost(self, exc: Exception | None) -> None:
        if self.whole is not None and not self.whole.done():
            self.whole.set_result(LOST)


class Clients:
    """Clients of one run in this process."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.address = urlsplit(about["url"])
        self._headers = f"Host: {self.address.netloc}\r\nAuthorization: Bearer {about['read_token']}\r\n\r\n"
        self.seconds: dict[str, list[float]] = defaultdict(list)

    async def connect(self) -> Reader:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Reader, self.address.hostname, self.address.port))[1]

    async def stream(self, hz: float) -> Reader:
        reader = await self.connect()
        self.send(reader, f"/api/v1/stream?hz={hz:g}")
        return reader

    def send(self, reader: Reader, path: str) -> None:
        reader.transport.write(f"GET {path} HTTP/1.1\r\n{self._headers}".encode())

    async def ask(self, first: int, per_second: float) -> None:
        """Send one request after the other until cancelled."""
        reader, due = await self.connect(), time.perf_counter() + first / per_second
        routes = itertools.islice(itertools.cycle(ROUTES.items()), first, None, ASKING)
        for number, route in zip(itertools.count(first, ASKING), routes, strict=False):
            name, path = SCRAPE if number % SCRAPED_EVERY == 0 else route
            due = max(due + ASKING / per_second, time.perf_counter())  # a turn's pause is not made up for
            await asyncio.sleep(due - time.perf_counter())
            if reader.transport.is_closing():
                reader = await self.connect()
            await self.answer(reader, name, path)

    async def answer(self, reader: Reader, name: str, path: str) -> None:
        """Send a request, wait for its answer, and note how long that took."""
        began = time.perf_counter()
        reader.whole = asyncio.get_running_loop().create_future()
        self.send(reader, path)
        status = await asyncio.wait_for(reader.whole, 60)
        if status != LOST:
            name = name if status == b"200" else f"{name}: {status.decode()}"
            self.seconds[name].append(time.perf_counter() - began)


def load(arguments: argparse.Namespace) -> None:
    """Read streams and send requests until a signal comes; then write seconds by route to a file."""
    from adaptive_rec.service.serve import give_way

    give_way()
    clients = Clients(json.loads(Path(arguments.about).read_text()))

    async def go() -> None:
        done = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
        streams = [await clients.stream(arguments.hz) for _ in range(arguments.viewers)]
        asking = [
            asyncio.create_task(clients.ask(first, arguments.requests))
            for first in range(ASKING if arguments.requests else 0)
        ]
        await done.wait()
        for task in asking:
            task.cancel()
        about = {"seconds": clients.seconds, "messages": [reader.messages for reader in streams]}
        Path(arguments.out).write_text(json.dumps(about))

    asyncio.run(go())


if __name__ == "__main__":
    load(argparse.Namespace(**json.loads(sys.argv[1])))
