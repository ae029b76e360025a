"""Clients that open connections and never finish their request: they cost little, and the run's own user goes first."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.stopwatch import Stopwatch

from .conftest import Job, steer, wait_for

pytestmark = pytest.mark.alone

SOCKETS = 200
HALF = b"GET /api/v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorizat"


class HalfOpen:
    """Connections with half a header sent on each; a thread notes after how many seconds each was ended."""

    def __init__(self, port: int, sidecar: int) -> None:
        self.watch = Stopwatch(sidecar)
        self.selector = selectors.DefaultSelector()
        self.sockets: list[socket.socket] = []
        self.open_seconds: list[float] = []
        for _ in range(SOCKETS):
            connection = socket.create_connection(("127.0.0.1", port), timeout=10)
            self.sockets.append(connection)
            self.selector.register(connection, selectors.EVENT_READ, (connection, self.watch.seconds))
            with suppress(ConnectionError):
                connection.sendall(HALF)
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        while len(self.open_seconds) < SOCKETS and self.watch.seconds < 20:
            for key, _ in self.selector.select(1):
                connection, opened = key.data
                if self._ended(connection):
                    self.selector.unregister(connection)
                    self.open_seconds.append(self.watch.seconds - opened)

    @staticmethod
    def _ended(connection: socket.socket) -> bool:
        try:
            return not connection.recv(65536)
        except ConnectionError:
            return True

    def close(self) -> None:
        self.thread.join()
        for connection in self.sockets:
            connection.close()
        self.selector.close()


def memory_MiB(pid: int) -> float:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def sockets_of(pid: int) -> int:
    found = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found += link.readlink().name.startswith("socket:")
    return found


def request_seconds(client: httpx2.Client, sidecar: int) -> float:
    watch = Stopwatch(sidecar)
    assert client.get("/api/v1/status").status_code == 200
    return watch.seconds


@pytest.mark.parametrize("requests", [40, pytest.param(100, marks=pytest.mark.slow)])
def test_half_open_connections_do_not_keep_others_out(job: Job, requests: int) -> None:
    """Whoever asks through the Unix socket meanwhile is answered within 0.2 s, but for the slowest request."""
    sidecar = job.sidecar()
    assert sidecar is not None
    with job.client(unix=True) as unix, job.client() as tcp:
        for client in (unix, tcp):
            request_seconds(client, sidecar)
        while unix.get("/api/v1/status").json()["step"] < 3:  # a first run compiles its kernels, on both cores
            time.sleep(0.1)
    sockets, memory = sockets_of(sidecar), memory_MiB(sidecar)
    with job.client(unix=True) as client:
        step = client.get("/api/v1/status").json()["step"]
        held = HalfOpen(urlsplit(job.about["url"]).port or 80, sidecar)
        seconds, while_all_are_open = [], 0
        began = time.monotonic()
        for number in range(requests):
            seconds.append(request_seconds(client, sidecar))
            while_all_are_open += not held.open_seconds  # a busy machine takes longer than they last for all requests
            time.sleep(max(0.0, began + number * 0.06 - time.monotonic()))
        stepped = client.get("/api/v1/status").json()["step"] - step
        steer(client, "pause")
    grown = memory_MiB(sidecar) - memory
    held.close()
    seconds.sort()
    p50, p99, longest = seconds[requests // 2], seconds[requests - 2], max(held.open_seconds)
    print(f"p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, worst {seconds[-1] * 1e3:.1f} ms;")
    print(f"{while_all_are_open} answered while all open, longest {longest:.2f} s; {grown:+.1f} MiB; {stepped} steps meanwhile")
    assert while_all_are_open >= 8, "no fewer than these may wait for their first request"
    assert stepped > 0
    assert p99 <= 0.2
    assert len(held.open_seconds) == SOCKETS, "all were ended"
    assert longest <= 10.5
    assert grown <= 16
    wait_for(lambda: sockets_of(sidecar) <= sockets)
    with job.client() as client:
        assert request_seconds(client, sidecar) < 1
