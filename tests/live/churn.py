"""Clients of a run under way as dice have them come and go: they ask, change, watch, dawdle, send nonsense and vanish."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
import time
from collections import Counter
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx2

from .conftest import Job

READS = [
    "/api/v1/status", "/api/v1/stats", "/api/v1/stats/history?since=0", "/api/v1/events?limit=50", "/api/v1/knobs", "/metrics",
    "/api/v1/placement", "/api/v1/placement/0?class=hot&limit=200", "/api/v1/placement/0?class=stale&sort=estimate",
    "/api/v1/placement/0?class=cold&limit=1000", "/api/v1/placement/1/rows/3", "/livez", "/readyz", "/", "/api/v1/nothing",
    "/api/v1/placement/0?cursor=nonsense", "/api/v1/knobs/schema", "/api/v1/openapi.json",
]  # fmt: skip
MOST = {
    "hot_budget_bytes": 200_000,
    "reclassify_every": 300,
    "report_every": 100,
    "lookahead_batches": 8,
    "min_probe_touches": 5,
}
"""Knobs without an upper end, and how far the dice go."""
NONSENSE: list[Any] = [
    -1, 0, 2, 1e300, -0.5, 2**63, "", "x", "64 potatoes", True, [], [1], {}, {"a": 1}, "fae", "slipstrem", "no.such:Policy",
]  # fmt: skip
RAW = [
    b"\0\xff\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /api/v1/control/stop HTTP/1.1\r\nHost: evil\r\n\r\n",
    b"G" * 20_000,
]
WEIGHTS = {
    "read": 30, "change": 12, "change_badly": 8, "change_policy": 3, "pause": 2, "reclassify": 3, "checkpoint": 2, "watch": 8,
    "leave": 8, "dawdle": 4, "send_nonsense": 4, "knock_without_token": 3,
}  # fmt: skip
MOST_OPEN = 24


class Churn:
    """Does one thing after the other to a run. `answers` counts what came of it, by action and status."""

    def __init__(self, job: Job, seed: int) -> None:
        self.job, self.dice = job, random.Random(seed)
        self.answers: Counter[str] = Counter()
        self._streams: list[socket.socket] = []
        self._half_open: list[socket.socket] = []
        with job.client(unix=True) as client:
            self.knobs: dict[str, Any] = client.get("/api/v1/knobs").json()["knobs"]

    # One step --------------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """One action, drawn; a client is none the worse for a sidecar that has just died."""
        action = self.dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        for stream in self._streams:
            with suppress(OSError):
                stream.recv(1 << 16)
        try:
            getattr(self, f"_{action}")()
        except (httpx2.TransportError, OSError) as error:
            self.answers[f"{action} {type(error).__name__}"] += 1

    def kill_sidecar(self) -> None:
        with suppress(OSError):
            if (sidecar := self.job.sidecar()) is not None:
                os.kill(sidecar, signal.SIGKILL)
                self.answers["kill"] += 1

    def go_away(self) -> None:
        """Every connection is closed, some with a reset."""
        while self._streams or self._half_open:
            self._leave()

    def put_back(self) -> bool:
        """Whether every knob is as it was configured, which is asked for, and the run not paused."""
        self._ask("put_back", "PATCH", "/api/v1/knobs", json=dict.fromkeys(self.knobs), headers={"If-Match": "*"})
        self._ask("put_back", "POST", "/api/v1/control/resume")
        knobs = self._ask("put_back", "GET", "/api/v1/knobs").json().get("knobs", {})
        return bool(knobs) and all(each["effective"] == each["desired"] == each["default"] for each in knobs.values())

    def read_everything(self) -> None:
        for path in READS:
            self._ask("read", "GET", path)

    # Actions ---------------------------------------------------------------------------------------------------------

    def _ask(self, action: str, method: str, path: str, **more: Any) -> httpx2.Response:
        with self.job.client(unix=self.dice.random() < 0.3) as client:
            response = client.request(method, path, **more)
        self.answers[f"{action} {response.status_code}"] += 1
        return response

    def _read(self) -> None:
        for path in self.dice.sample(READS, self.dice.randint(1, 4)):
            self._ask("read", "GET", path)

    def _change(self) -> None:
        names = [name for name in self.knobs if name != "policy"]
        self._patch("change", {name: self._value(name) for name in self.dice.sample(names, self.dice.randint(1, 3))})

    def _change_badly(self) -> None:
        name = self.dice.choice([*self.knobs, "hot_budget", "__class__"])
        self._patch("change_badly", {name: self.dice.choice(NONSENSE)})

    def _change_policy(self) -> None:
        self._patch("change_policy", {"policy": self.dice.choice(self.knobs["policy"]["choices"])})

    def _patch(self, action: str, changes: dict[str, Any]) -> None:
        with self.job.client(unix=self.dice.random() < 0.3) as client:
            tag = client.get("/api/v1/knobs").headers.get("etag", "*")
            tag = self.dice.choice([tag, tag, tag, "*", '"stale"'])
            body = json.dumps(changes).encode()
            headers = {"If-Match": tag, "Content-Type": "application/merge-patch+json"}
            response = client.patch("/api/v1/knobs", content=body, headers=headers)
        self.answers[f"{action} {response.status_code}"] += 1

    def _value(self, name: str) -> Any:
        about = self.knobs[name]
        if about["choices"] and (about["minimum"] is None or self.dice.random() < 0.5):
            return self.dice.choice(about["choices"])
        least, most = about["minimum"], about["maximum"]
        if most is None:
            most = MOST.get(name, 1 << 20)
        if about["type"] == "integer":
            return self.dice.randint(least + about["exclusive_minimum"], most)
        return self.dice.uniform(least + 1e-3 * (most - least), most - 1e-3 * (most - least))

    def _pause(self) -> None:
        self._ask("pause", "POST", "/api/v1/control/pause")
        time.sleep(self.dice.random() / 2)
        self._ask("resume", "POST", "/api/v1/control/resume")

    def _reclassify(self) -> None:
        self._ask("reclassify", "POST", "/api/v1/control/reclassify")

    def _checkpoint(self) -> None:
        self._ask("checkpoint", "POST", "/api/v1/control/checkpoint")

    def _watch(self) -> None:
        if len(self._streams) < MOST_OPEN:
            hz = self.dice.randint(1, 10)
            self._streams.append(self._send(f"GET /api/v1/stream?hz={hz} HTTP/1.1\r\n{self._head()}\r\n".encode()))
            self.answers["watch"] += 1

    def _leave(self) -> None:
        held = self.dice.choice([each for each in (self._streams, self._half_open) if each] or [[]])
        if not held:
            return
        connection = held.pop(self.dice.randrange(len(held)))
        if self.dice.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        connection.close()
        self.answers["leave"] += 1

    def _dawdle(self) -> None:
        for _ in range(self.dice.randint(1, 6)):
            if len(self._half_open) < MOST_OPEN:
                whole = f"PATCH /api/v1/knobs HTTP/1.1\r\n{self._head()}Content-Length: 60000\r\n\r\n{{".encode()
                self._half_open.append(self._send(whole[: self.dice.randint(1, len(whole))]))
                self.answers["dawdle"] += 1

    def _send_nonsense(self) -> None:
        with self._send(self.dice.choice(RAW)) as connection:
            if self.dice.random() < 0.5:
                connection.settimeout(2)
                self.answers["send_nonsense " + connection.recv(4096)[9:12].decode("ascii", "replace")] += 1

    def _knock_without_token(self) -> None:
        headers = {"Authorization": "Bearer wrong"} if self.dice.random() < 0.5 else {"Host": "example.org"}
        self._ask("knock_without_token", self.dice.choice(["GET", "POST"]), "/api/v1/control/stop", headers=headers)

    def _head(self) -> str:
        return f"Host: 127.0.0.1\r\nAuthorization: Bearer {self.job.about['control_token']}\r\n"

    def _send(self, data: bytes) -> socket.socket:
        """A connection over TCP with this sent; it waits for nothing."""
        connection = socket.create_connection(("127.0.0.1", urlsplit(self.job.about["url"]).port or 80), timeout=5)
        connection.sendall(data)
        connection.setblocking(False)
        return connection
