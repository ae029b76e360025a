"""A real training run in a process of its own, with its sidecar, in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import forked

ENDLESS = [
    "--steps=1000000", "--set=run.threads=1", "--set=run.batch_size=32", "--set=data.table_rows=[3000, 40, 9]",
    "--set=data.synthetic.samples=100000000", "--set=data.synthetic.test_samples=2000", "--set=model.embedding_dim=4",
    "--set=model.bottom_mlp=[8]", "--set=model.top_mlp=[8]", "--set=knobs.reclassify_every=50", "--set=run.device=cpu",
    "--set=knobs.hot_budget_bytes=20000", "--policy=slipstream", "--port=0",
]  # fmt: skip


PACED, AT_FULL_SPEED = "tests.live.paced", ""
STEP_PAUSE = "PAUSE_SECONDS_OF_TESTS"
"""Variable with the seconds between two steps of a paced run, for a test that waits for something else for long."""


class Job:
    """One `adaptive-rec train`, and what a client needs to talk to it. `first` is imported in its process."""

    def __init__(
        self, folder: Path, *arguments: str, environment: dict[str, str] | None = None, first: str = PACED, fresh: bool = False
    ) -> None:
        self.out = folder / "run"
        self.log = folder / "output.txt"
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), **(environment or {})}
        words = ["train", f"--out={self.out}", *ENDLESS, *arguments]
        with open(self.log, "wb") as log:
            if fresh:  # it imports a sitecustomize as all processes do
                command = [sys.executable, "-m", "adaptive_rec", *words]
                self.process: Any = subprocess.Popen(
                    command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environment, start_new_session=True
                )
            else:
                self.process = forked.start(words, log.fileno(), self.environment, first=first)
        self.runtime_file = folder / "adaptive-rec" / f"{self.process.pid}.json"
        self.about: dict[str, Any] = {}

    def wait_until_served(self, seconds: float = 300.0) -> Job:
        wait_for(lambda: self.process.poll() is not None or self.answers(), seconds)
        assert self.process.poll() is None, self.log.read_text()
        return self

    def answers(self) -> bool:
        if not self.runtime_file.exists():
            return False
        self.about = json.loads(self.runtime_file.read_text())
        try:
            with self.client() as client:
                return client.get("/readyz").status_code == 200
        except httpx2.TransportError:
            return False

    def client(self, unix: bool = False, token: str = "control_token") -> httpx2.Client:
        transport = httpx2.HTTPTransport(uds=self.about["socket"], verify=False) if unix else None
        return httpx2.Client(
            base_url="http://localhost" if unix else self.about["url"],
            headers={"Authorization": f"Bearer {self.about[token]}"},
            transport=transport,
            timeout=300,
            trust_env=False,
            verify=False,  # no TLS here, and reading the certificates of authorities takes longer than a request
        )

    def sidecar(self) -> int | None:
        """Process id of the present sidecar."""
        for child in children(self.process.pid):
            if b"adaptive_rec.service" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
        return None

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in (self.out / "events.jsonl").read_text().splitlines())
        return [line for line in lines if line["kind"] == kind]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def children(pid: int) -> list[int]:
    try:
        return [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except FileNotFoundError:
        return []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition: Callable[[], Any], seconds: float = 300.0) -> float:
    """Wait until something is so; return how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"waited {seconds} s in vain"
        time.sleep(0.1)  # what is asked for is often an answer of the sidecar, which takes its time
    return time.monotonic() - began


def steer(client: httpx2.Client, verb: str) -> Any:
    """Send a command, again where a busy machine has kept its answer from the sidecar for long, and return the answer that says
    that it was carried out."""
    answers: list[httpx2.Response] = []

    def is_done() -> bool:
        answers.append(client.post(f"/api/v1/control/{verb}"))
        return answers[-1].status_code == 200

    wait_for(is_done)
    return answers[-1].json()


@pytest.fixture(scope="session")
def proc() -> None:
    if not hasattr(signal, "pidfd_send_signal") or not Path("/proc").exists():
        pytest.skip("these tests look into /proc, which this system has not")


@pytest.fixture
def start(proc: None, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Start a job that goes on until it is told to stop; all are ended with the test."""
    jobs: list[Job] = []

    def begin(*arguments: str, served: bool = True, **more: Any) -> Job:
        folder = tmp_path / str(len(jobs))
        folder.mkdir()
        jobs.append(Job(folder, *arguments, **more))
        return jobs[-1].wait_until_served() if served else jobs[-1]

    yield begin
    for job in jobs:
        job.end()


@pytest.fixture(scope="module")
def lasting(proc: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    job = Job(tmp_path_factory.mktemp("lasting"))
    try:
        yield job.wait_until_served()
    finally:
        job.end()


@pytest.fixture
def job(lasting: Job) -> Iterator[Job]:
    """A job for tests that leave it going, one for all of a module. It trains only while a test looks at it."""
    with lasting.client(unix=True) as client:
        steer(client, "resume")
        yield lasting
        steer(client, "pause")
