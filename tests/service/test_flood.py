"""Strangers who flood the sidecar: they make no probe fail, and keep nobody with a token out."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2 as httpx
import pytest

from .conftest import READ, Sidecar

pytestmark = pytest.mark.alone

SECONDS = 6.0
PATIENCE_SECONDS = 20.0
"""A busy machine gives the sidecar, which is nice, a few hundredths of a processor: late answers are no failure here."""


class Client(threading.Thread):
    """Asks for a path again and again, on a new connection each time, and notes what went wrong."""

    def __init__(self, sidecar: Sidecar, path: str, token: str = "") -> None:
        super().__init__()
        self.url, self.until = f"http://127.0.0.1:{sidecar.port}{path}", time.monotonic() + SECONDS - 1
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.answers, self.failures = 0, list[str]()

    def run(self) -> None:
        while time.monotonic() < self.until:
            try:
                answer = httpx.get(self.url, headers=self.headers, timeout=PATIENCE_SECONDS, trust_env=False, verify=False)
            except httpx.TransportError as error:
                self.failures.append(repr(error))
            else:
                self.answers += 1
                if answer.status_code != 200:
                    self.failures.append(f"{answer.status_code}: {answer.text}")
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("kind", "rate"),
    [
        pytest.param("half", 200, id="half a request"),
        pytest.param("silent", 200, id="no request"),
        pytest.param("churn", 200, id="a byte, and gone"),
        pytest.param("drip", 50, id="byte by byte"),
        pytest.param("body", 100, id="a body held back"),
        pytest.param("once", 60, id="probes"),
        pytest.param("livez", 20, id="probes on and on"),
        pytest.param("wrong", 20, id="wrong tokens"),
        pytest.param("pipeline", 5, id="answers that nobody reads"),
    ],
)
def test_a_flood_of_strangers_makes_no_request_fail(sidecar: Sidecar, kind: str, rate: int) -> None:
    while sidecar.http.get("/readyz").status_code != 200:
        time.sleep(0.1)
    script = Path(__file__).with_name("strangers.py")
    command = [sys.executable, str(script), str(sidecar.port), kind, str(SECONDS), str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flood:
        clients = [Client(sidecar, "/livez"), Client(sidecar, "/readyz"), Client(sidecar, "/api/v1/status", READ)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        came_of, _ = flood.communicate()
    assert json.loads(came_of)["connected"] > 0
    assert [client.failures for client in clients] == [[], [], []]
    assert all(client.answers for client in clients)
