"""How trainer and sidecar live and die together: nobody waits, nobody stays behind, nothing asked for is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from adaptive_rec.cli import main
from adaptive_rec.live.sign_in_code import new_code
from tests.stopwatch import Stopwatch

from .conftest import Job, alive, steer, wait_for

pytestmark = pytest.mark.alone

Start = Callable[..., Job]


def patch(client: httpx2.Client, **changes: Any) -> httpx2.Response:
    """A knob changed as a client does it: whatever goes wrong on the way, until it is answered."""
    while True:
        try:
            etag = client.get("/api/v1/knobs").headers["etag"]
            response = client.patch("/api/v1/knobs", json=changes, headers={"If-Match": etag})
        except httpx2.TransportError:
            continue
        if response.status_code not in (412, 429):
            return response


def is_back(job: Job, before: int) -> bool:
    return job.sidecar() not in (None, before) and job.answers()


def sign_in(client: httpx2.Client, code: str) -> int:
    """Return the status of the answer to a sign-in code."""
    status: int = client.post("/api/v1/session", headers={"Authorization": f"Code {code}"}).status_code
    return status


@contextmanager
def keeps_knobs(job: Job, asked: int) -> Iterator[None]:
    """A knob that was changed just before is in effect afterwards, and sign-in codes stay used."""
    with job.client() as client:
        response = patch(client, min_probe_touches=asked)
        assert response.status_code in (200, 202)
        used = new_code(job.about["control_token"])
        assert sign_in(client, used) == 204
        yield
        assert [sign_in(client, code) for code in (used, new_code(job.about["control_token"]))] == [401, 204]
        wait_for(lambda: not client.get("/api/v1/knobs").json()["pending"])
        knob = client.get("/api/v1/knobs").json()["knobs"]["min_probe_touches"]
        assert (knob["desired"], knob["effective"]) == (asked, asked)


@contextmanager
def keeps_sessions(job: Job) -> Iterator[None]:
    """Sessions outlive the sidecar, and signing out does, too."""
    origin, replies = {"Origin": job.about["url"]}, []
    for _ in range(2):
        with job.client() as client:  # each has cookies of its own
            replies.append(client.post("/api/v1/session", headers=origin))
    out, kept = ("Cookie: " + reply.headers["set-cookie"].partition(";")[0] for reply in replies)

    def ask(cookie: str, method: str = "GET", path: str = "/api/v1/status") -> int:
        name, _, value = cookie.partition(": ")
        headers = {name: value, **origin}
        return httpx2.request(method, job.about["url"] + path, headers=headers, trust_env=False, verify=False).status_code

    assert [ask(out), ask(kept), ask(out, "DELETE", "/api/v1/session")] == [200, 200, 204]
    yield
    assert [ask(out), ask(kept)] == [401, 200]


def kill_sidecar(job: Job) -> int:
    """Kill the sidecar and wait until the next one answers. Return the step of the run then."""
    before = job.sidecar()
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_for(partial(is_back, job, before))
    with job.client() as client:
        return int(client.get("/api/v1/status").json()["step"])


def has_lost_nothing(job: Job, kills: int) -> None:
    """Every step was reported and every change of the knob, and each death of a sidecar; to be asked when the run has ended."""
    metrics = [json.loads(line) for line in (job.out / "metrics.jsonl").read_text().splitlines()]
    snapshots = [line for line in metrics if line["event"] == "snapshot"]
    steps, due = [line["step"] for line in snapshots], [line["step"] for line in snapshots if "interim" not in line]
    assert steps == sorted(steps)
    assert due == list(range(20, steps[-1] + 1, 20)), "every step was reported once; a pause and the end besides"
    changed = [event["details"]["changed"]["min_probe_touches"]["new"] for event in job.events("knobs")]
    assert changed == [100 + kill for kill in range(kills)]
    assert len(job.events("sidecar")) == kills


@pytest.mark.slow
def test_killing_the_sidecar_loses_no_step_and_no_knob(start: Start) -> None:
    job, steps = start(), []
    kills = 20 if os.environ.get("ADAPTIVE_REC_LONG") else 3
    for kill in range(kills):
        with keeps_knobs(job, 100 + kill):
            steps.append(kill_sidecar(job))
    assert steps == sorted(steps)
    job.process.terminate()
    assert job.process.wait(300) == 143
    has_lost_nothing(job, kills)


def ends_in_good_order(job: Job, number: int, code: int) -> None:
    """A signal ends a run in good order, also with streams open."""
    sidecar = job.sidecar()
    assert sidecar is not None
    with ExitStack() as stack:
        for _ in range(16):
            client = stack.enter_context(job.client())
            response = stack.enter_context(client.stream("GET", "/api/v1/stream?hz=10"))
            assert response.status_code == 200
            assert "snapshot" in next(response.iter_text())
        watch = Stopwatch(job.process.pid, sidecar)
        os.kill(job.process.pid, number)
        assert watch.wait(job.process) == code
        seconds = watch.seconds
    assert seconds < 12
    assert list((job.out / "checkpoints").glob("step-*/MANIFEST.json")), "the final checkpoint was written"
    summary = json.loads((job.out / "summary.json").read_text())
    assert summary["eval"] is None, "scoring is left out when there is no time"
    assert not alive(sidecar)
    assert not job.runtime_file.exists()
    assert not Path(job.about["socket"]).exists()
    with pytest.raises(httpx2.TransportError), job.client() as client:
        client.get("/livez")


@pytest.mark.slow
def test_ctrl_c_ends_the_run_in_good_order_with_streams_open(start: Start) -> None:
    ends_in_good_order(start(), signal.SIGINT, 130)


def listens_on_loopback_only(job: Job) -> None:
    inodes = set()
    for pid in (job.process.pid, job.sidecar()):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
            except OSError:
                continue
            inodes |= {found[1]} if found else set()
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening.append(fields[1].split(":")[0])
    assert listening == ["0100007F"]


def keeps_its_tokens_to_itself(job: Job) -> None:
    """No answer has a token, nor what others see of a process."""
    token, read_token = job.about["control_token"], job.about["read_token"]
    with job.client() as client:
        for path in (
            "/metrics",
            "/api/v1/status",
            "/api/v1/nothing",
            "/api/v1/openapi.json",
            "/api/v1/events",
            f"/{token}",
        ):
            assert token not in client.get(path).text
        steer(client, "pause")
        steer(client, "resume")
        client.get("/api/v1/status", headers={"Authorization": "Bearer wrong"})
        sidecar = job.sidecar()
        for pid in (job.process.pid, sidecar):
            for name in ("cmdline", "environ"):
                content = Path(f"/proc/{pid}/{name}").read_bytes()
                assert token.encode() not in content
                assert read_token.encode() not in content


def has_left_no_token(job: Job, folder: Path) -> None:
    """To be asked when the run has ended, which takes the runtime file away."""
    tokens = [job.about[name].encode() for name in ("control_token", "read_token")]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert job.log in files
    for path in files:
        content = path.read_bytes()
        assert not [token for token in tokens if token in content], path


def gives_way(job: Job) -> None:
    """The sidecar is nice, and the trainer is not."""
    sidecar = job.sidecar()
    assert sidecar is not None
    assert os.getpriority(os.PRIO_PROCESS, sidecar) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 12)
    group = Path(f"/proc/{sidecar}/autogroup")
    if group.exists() and Path("/proc/sys/kernel/sched_autogroup_enabled").read_text() == "1\n":
        assert group.read_text().endswith("nice 12\n"), "niceness counts within a session only"
    assert os.getpriority(os.PRIO_PROCESS, job.process.pid) == os.getpriority(os.PRIO_PROCESS, 0)


@contextmanager
def systemd_hears(folder: Path) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Give the environment of a service of systemd, and what it tells systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(folder / "notify"))
        heard: list[str] = []

        def listen() -> None:
            systemd.settimeout(0.2)
            while not done.is_set():
                try:
                    heard.append(systemd.recv(4096).decode())
                except TimeoutError:
                    continue

        done = threading.Event()
        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": "400000"}, heard
        finally:
            time.sleep(0.3)
            done.set()
            thread.join()


def is_well_while_paused(job: Job, heard: list[str]) -> None:
    with job.client() as client:
        steer(client, "pause")
        paused_at = heard.count("WATCHDOG=1")
        wait_for(lambda: heard.count("WATCHDOG=1") >= paused_at + 3)  # a paused run is well
        client.post("/api/v1/control/resume").raise_for_status()


def test_a_served_run_from_its_start_to_its_end(start: Start, tmp_path: Path) -> None:
    """All that does not need a run of its own, of one run that systemd has started where its port was taken."""
    with ExitStack() as stack:
        environment, heard = stack.enter_context(systemd_hears(tmp_path))
        port = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        job = start(f"--port={port}", environment=environment)
        served = int(job.about["url"].rpartition(":")[2])
        assert port < served < port + 50
        assert re.search(rf"port {port} is taken.*{served}", job.log.read_text()), "the next free one is said"
        listens_on_loopback_only(job)
        gives_way(job)
        with job.client() as client:
            step = client.get("/api/v1/status").json()["step"]
        with keeps_knobs(job, 100), keeps_sessions(job):
            assert kill_sidecar(job) >= step
        keeps_its_tokens_to_itself(job)
        is_well_while_paused(job, heard)
        ends_in_good_order(job, signal.SIGTERM, 143)
    has_lost_nothing(job, kills=1)
    has_left_no_token(job, tmp_path)
    assert heard[0].startswith("READY=1")
    assert heard.count("WATCHDOG=1") > 3
    assert sum("READY=1" in message for message in heard) == 1, "the sidecar says nothing to systemd"


@pytest.mark.slow
def test_a_second_signal_ends_everything_at_once(start: Start) -> None:
    job = start("--set=data.table_rows=[3000000, 40, 9]", "--set=data.max_table_rows=3000000")  # slow to write
    sidecar = job.sidecar()
    os.kill(job.process.pid, signal.SIGTERM)
    time.sleep(0.05)
    watch = Stopwatch(job.process.pid)
    os.kill(job.process.pid, signal.SIGTERM)
    assert watch.wait(job.process) == 143
    assert watch.seconds < 1
    assert sidecar is not None
    wait_for(lambda: not alive(sidecar))


def test_a_killed_trainer_leaves_no_process_behind(start: Start) -> None:
    job = start()
    sidecar = job.sidecar()
    job.process.kill()
    assert sidecar is not None
    wait_for(lambda: not alive(sidecar))
    job.process.wait()


@pytest.mark.slow
def test_a_sidecar_that_hangs_does_not_hold_up_training(start: Start) -> None:
    job = start()
    sidecar = job.sidecar()
    assert sidecar is not None
    wait_for((job.out / "metrics.jsonl").exists)  # the first report may come after the run is served
    os.kill(sidecar, signal.SIGSTOP)
    try:
        before = len((job.out / "metrics.jsonl").read_text().splitlines())
        wait_for(lambda: len((job.out / "metrics.jsonl").read_text().splitlines()) > before + 3)
        watch = Stopwatch(job.process.pid)
        job.process.terminate()
        assert watch.wait(job.process) == 143
        assert watch.seconds < 9
    finally:
        if alive(sidecar):
            os.kill(sidecar, signal.SIGCONT)
    wait_for(lambda: not alive(sidecar))


@pytest.mark.slow
def test_a_run_lingers_until_it_is_stopped(start: Start) -> None:
    job = start("--linger", "--steps=60")
    with job.client() as client:
        wait_for(lambda: client.get("/api/v1/status").json()["phase"] == "finished")
        assert client.get("/api/v1/status").json()["step"] == 60
        assert client.get("/api/v1/placement").json()["tables"][0]["hot"] > 0
        assert client.post("/api/v1/control/pause").status_code == 409
        assert patch(client, alpha=0.5).status_code == 409
        stopped = client.post("/api/v1/control/stop")
        assert stopped.status_code == 200, stopped.text
    assert job.process.wait(300) == 0


def test_training_works_without_the_web_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As if fastapi were not installed: said, and that is all."""
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(["train", "tiny", "--steps=20", f"--out={tmp_path / 'run'}"]) == 0
    printed = capsys.readouterr()
    assert "fastapi" in printed.out + printed.err
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.slow
def test_a_fresh_process_trains_without_the_web_framework(tmp_path: Path) -> None:
    """As if fastapi were not installed: said, and that is all."""
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text("import sys\nsys.modules['fastapi'] = None\n")
    command = [sys.executable, "-m", "adaptive_rec", "train", "tiny", "--steps=20", f"--out={tmp_path / 'run'}"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "fastapi" in done.stdout + done.stderr
    assert (tmp_path / "run" / "summary.json").exists()
