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
BRIEF_SECONDS = 2.5
PATIENCE_SECONDS = 120.0
"""A busy machine gives the sidecar, which is nice, a few hundredths of a processor: late answers are no failure here."""


class Client(threading.Thread):
    """Asks for a path again and again, on a new connection each time, and notes what went wrong."""

    def __init__(self, sidecar: Sidecar, path: str, seconds: float, token: str = "") -> None:
        super().__init__()
        self.url, self.until = f"http://127.0.0.1:{sidecar.port}{path}", time.monotonic() + seconds - 1
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.answers, self.failures = 0, list[str]()

    def run(self) -> None:
        while not self.answers + len(self.failures) or time.monotonic() < self.until:
            try:
                answer = httpx.get(self.url, headers=self.headers, timeout=PATIENCE_SECONDS, trust_env=False, verify=False)
            except httpx.TransportError as error:
                self.failures.append(repr(error))
            else:
                self.answers += 1
                if answer.status_code != 200:
                    self.failures.append(f"{answer.status_code}: {answer.text}")
            time.sleep(0.05)


KINDS = {
    "half a request": ("half", 200),
    "no request": ("silent", 200),
    "a byte, and gone": ("churn", 200),
    "byte by byte": ("drip", 50),
    "a body held back": ("body", 100),
    "probes": ("once", 60),
    "probes on and on": ("livez", 20),
    "wrong tokens": ("wrong", 20),
    "answers that nobody reads": ("pipeline", 5),
}


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        pytest.param("half a request", BRIEF_SECONDS, id="briefly"),
        *(pytest.param(kind, SECONDS, id=kind, marks=pytest.mark.slow) for kind in KINDS),
    ],
)
def test_a_flood_of_strangers_makes_no_request_fail(sidecar: Sidecar, kind: str, seconds: float) -> None:
    while sidecar.http.get("/readyz").status_code != 200:
        time.sleep(0.1)
    script = Path(__file__).with_name("strangers.py")
    name, rate = KINDS[kind]
    command = [sys.executable, str(script), str(sidecar.port), name, str(seconds), str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flood:
        paths = {"/livez": "", "/readyz": "", "/api/v1/status": READ}
        clients = [Client(sidecar, path, seconds, token) for path, token in paths.items()]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        came_of, _ = flood.communicate()
    assert json.loads(came_of)["connected"] > 0
    assert [client.failures for client in clients] == [[], [], []]
    assert all(client.answers for client in clients)
