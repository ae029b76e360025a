"""The sidecar as a process of its own: what it takes from the link, and when it ends."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.service import __main__ as sidecar_process
from tests.stopwatch import Stopwatch

pytestmark = pytest.mark.alone


def ready(sidecar: Any) -> None:
    """The listener is open before the process runs, so a request simply waits for it."""
    assert sidecar.http.get("/readyz").status_code == 200


def test_knobs_through_the_link(lasting_sidecar: Any) -> None:
    seen = lasting_sidecar.http.get("/api/v1/knobs")
    answer = lasting_sidecar.http.patch("/api/v1/knobs", json={"alpha": 0.8}, headers={"If-Match": seen.headers["etag"]})
    assert answer.status_code in (200, 202), answer.text  # 202 where the machine is busy
    while lasting_sidecar.http.get("/api/v1/knobs").json()["knobs"]["alpha"]["effective"] != 0.8:
        time.sleep(0.05)
    elsewhere = {**lasting_sidecar.run.knobs, "decay": 0.1}
    lasting_sidecar.say({"knobs": {"desired": elsewhere, "effective": lasting_sidecar.run.knobs, "step": 50}})
    watch = Stopwatch(lasting_sidecar.process.pid)
    while lasting_sidecar.http.get("/api/v1/knobs").json()["knobs"]["decay"]["desired"] != 0.1:
        assert watch.seconds < 5
    assert lasting_sidecar.http.get("/api/v1/knobs").json()["pending"]


def test_a_late_answer_is_202_first(lasting_sidecar: Any) -> None:
    ready(lasting_sidecar)
    begun, before = time.monotonic(), lasting_sidecar.answered
    lasting_sidecar.may_answer.clear()
    try:
        answer = lasting_sidecar.http.post("/api/v1/control/pause")
    finally:
        lasting_sidecar.may_answer.set()
    assert (answer.status_code, answer.json()["command"], answer.json()["step"]) == (202, "pause", None)
    assert answer.json()["reason"].endswith("pause is carried out at the next step boundary")
    assert 1.9 < time.monotonic() - begun
    while lasting_sidecar.answered == before:  # the late answer comes and harms nothing
        time.sleep(0.05)
    answer = lasting_sidecar.http.post("/api/v1/control/resume")  # 202 where a busy machine takes two seconds for it
    assert answer.status_code in (200, 202)
    assert answer.json()["command"] == "resume"


def test_it_ends_with_the_link_even_while_streams_are_open_and_answers_a_request_under_way(sidecar: Any) -> None:
    """The answer was a bare 500 of the web server."""
    ready(sidecar)
    heard = sidecar.heard
    sidecar.may_answer.clear()
    with ThreadPoolExecutor() as pool, sidecar.http.stream("GET", "/api/v1/stream") as stream:
        assert next(stream.iter_raw())
        waiting = pool.submit(sidecar.http.post, "/api/v1/control/pause")
        while sidecar.heard == heard:
            time.sleep(0.01)
        watch = Stopwatch()
        errors = sidecar.end()
        assert watch.seconds < 45, "it does not wait for the trainer's answer (it is nice: a busy machine is slow)"
        answer = waiting.result(timeout=120)
    assert (answer.status_code, answer.json()["detail"]) == (503, "the trainer has ended, so the service ends")
    assert sidecar.process.returncode == 0
    assert "Traceback" not in errors
    assert "c" * 43 not in errors


def test_sigterm_ends_it_and_ctrl_c_does_not(sidecar: Any) -> None:
    ready(sidecar)
    sidecar.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    ready(sidecar)
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.process.wait(timeout=300) == 0


def test_it_is_nice_and_loads_no_trainer(lasting_sidecar: Any) -> None:
    ready(lasting_sidecar)
    stat = open(f"/proc/{lasting_sidecar.process.pid}/stat").read().rpartition(")")[2].split()
    assert int(stat[16]) == min(19, os.nice(0) + 12)
    maps = open(f"/proc/{lasting_sidecar.process.pid}/maps").read()
    assert "numpy" in maps
    assert "torch" not in maps


def test_answers_do_not_name_the_web_server(lasting_sidecar: Any) -> None:
    assert "server" not in lasting_sidecar.http.get("/livez").headers


def test_a_trainer_that_dies_before_the_first_line_leaves_nothing(sidecar: Any) -> None:

    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "adaptive_rec.service", "--link", str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()
    ours.close()
    assert process.wait(timeout=300) == 0


def test_the_log_of_a_sidecar_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """However much it has to say."""
    assert sidecar_process.LOG_BYTES == 1 << 20
    monkeypatch.setattr(sidecar_process, "LOG_BYTES", 100_000)  # a MiB takes seconds to fill
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    (tmp_path / "sidecar.log").write_text("of the sidecar before\n")
    sidecar_process.bound_log(tmp_path / "sidecar.log")
    for number in range(3000):
        logging.getLogger("asyncio").error("line %d %s", number, "x" * 100)
    logging.root.handlers[0].close()
    assert capfd.readouterr() == ("", "")
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"sidecar.log", "sidecar.log.1"}
    assert max(sizes.values()) <= 100_000
    assert "line 2999" in (tmp_path / "sidecar.log").read_text()
