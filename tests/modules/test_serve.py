"""A user's training loop is watched and steered over HTTP and from the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from adaptive_rec import AdaptiveEmbedding
from adaptive_rec.cli import main
from tests.stopwatch import Stopwatch

from . import raw_keys
from .training import CASES, Loop, data


def turn(http: httpx2.Client, **changes: Any) -> Any:
    headers = {"If-Match": http.get("/api/v1/knobs").headers["ETag"], "Content-Type": "application/merge-patch+json"}
    return http.patch("/api/v1/knobs", content=json.dumps(changes), headers=headers)


class Client(threading.Thread):
    """What a user does meanwhile; the loop goes on until it is done."""

    def __init__(self, url: str, home: Path) -> None:
        super().__init__(daemon=True)
        self.url, self.home = url, home
        self.steered = threading.Event()
        self.seen: dict[str, Any] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.look_and_turn()
        except BaseException as error:  # raised again by the waiting thread
            self.error = error

    def look_and_turn(self) -> None:
        about = json.loads((self.home / "adaptive-rec" / f"{os.getpid()}.json").read_text())
        headers = {"Authorization": f"Bearer {about['control_token']}"}
        with httpx2.Client(base_url=about["url"], headers=headers, timeout=120, trust_env=False, verify=False) as http:
            self.until(lambda: http.get("/readyz").status_code == 200)
            self.seen["stranger"] = httpx2.get(
                f"{about['url']}/api/v1/status", trust_env=False, verify=False
            ).status_code
            self.until(lambda: http.get("/api/v1/stats").json().get("step", 0) > 20)
            self.seen["status"], self.seen["stats"] = (
                http.get(f"/api/v1/{what}").json() for what in ("status", "stats")
            )
            self.seen["placement"] = http.get("/api/v1/placement").json()
            self.seen["changed"] = turn(http, hot_budget_bytes=4096).json()
            self.seen["refused"] = turn(http, policy="fae")
            self.seen["paused"] = http.post("/api/v1/control/pause").status_code
            self.seen["resumed"] = http.post("/api/v1/control/resume").status_code
            self.seen["metrics"] = http.get("/metrics").text
            self.seen["stopped"] = http.post("/api/v1/control/stop")
        self.steered.set()
        command = [sys.executable, "-m", "adaptive_rec", "status", "--json"]
        self.seen["command"] = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    def until(self, condition: Any) -> None:
        watch = Stopwatch()
        while not condition():
            assert watch.seconds < 300, "waited in vain"
            time.sleep(0.05)


@pytest.mark.alone
def test_a_loop_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    batches = list(data.clicks(40, 32))
    loop = Loop(CASES["dlrm"], "adagrad", {"report_every": 5})
    out = tmp_path / "run"
    url = loop.runtime.serve(out=out, port=0)
    client = Client(url, tmp_path)
    client.start()
    watch, losses, budgets = Stopwatch(), [], []
    while client.is_alive():
        assert watch.seconds < 600
        batch = batches[len(losses) % len(batches)]
        loop.zero_grad()
        loss = loop.forward_backward(loop.model, batch, loop)
        loop.update()
        loop.runtime.record_loss(loss)
        losses.append(loss.item())
        budgets.append(loop.runtime.stats().budget_bytes)
        loop.check_budget()
        time.sleep(0.2 if client.steered.is_set() else 0.02)  # for the others
    if client.error is not None:
        raise client.error
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    seen = client.seen
    assert url.startswith("http://127.0.0.1:")
    assert seen["stranger"] == 401
    assert seen["status"]["step"] > 0
    assert seen["stats"]["totals"]["lookups_hot"] > 0
    assert min(losses) <= seen["status"]["loss"] <= max(losses)
    assert seen["changed"]["changed"]["hot_budget_bytes"] == {"old": 48 << 10, "new": 4096}
    assert {table["table"] for table in seen["placement"]["tables"]} == {f"emb_l.{number}" for number in range(4)}
    assert budgets[0] == 48 << 10
    assert budgets[-1] == loop.runtime.knobs.hot_budget_bytes == 4096
    assert loop.runtime.stats().device_bytes <= 4096
    assert seen["refused"].status_code >= 400
    assert "fae" in seen["refused"].text
    assert seen["paused"] in (200, 202)
    assert seen["resumed"] in (200, 202)
    assert "adaptive_rec_steps_total" in seen["metrics"]
    assert "adaptive_rec_planned_steps" not in seen["metrics"]
    assert seen["status"]["steps_total"] is None, "no end of this loop is known"
    assert seen["status"]["eta_seconds"] is None
    assert "left" not in shown
    assert re.search(r"step +[\d,]+\n", shown), shown
    assert seen["stopped"].status_code == 409
    assert "stop_requested" in seen["stopped"].text
    assert seen["command"].returncode == 0, seen["command"].stderr
    assert json.loads(seen["command"].stdout)["run"]
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert not any(event["kind"] == "stopping" for event in events)
    assert all(json.loads(line)["steps_total"] is None for line in (out / "metrics.jsonl").read_text().splitlines())
    assert any("hot_budget_bytes" in json.dumps(event["details"]) for event in events)
    loop.runtime.close()
    assert not list((tmp_path / "adaptive-rec").glob("*.json")), "a run that has ended is found by no client"


@pytest.mark.alone
def test_a_served_loop_shows_its_raw_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    how = raw_keys.options(knobs={"admit_after": 2, "report_every": 5}, optimizer="sgd", lr=0.1)
    table: Any = AdaptiveEmbedding(50, 4, ids="raw", **how)
    url = table.runtime.serve(out=tmp_path / "run", port=0)
    for places in raw_keys.drawn(20):
        table(raw_keys.keys_at(places)).sum().backward()
    about = json.loads((tmp_path / f"adaptive-rec/{os.getpid()}.json").read_text())
    headers = {"Authorization": f"Bearer {about['control_token']}"}
    with httpx2.Client(base_url=url, headers=headers, timeout=120, trust_env=False, verify=False) as http:
        keys = http.get("/api/v1/stats").json()["keys"]
        key, row = next(iter(zip(*table.runtime.raw_ids.keys_and_rows(0), strict=True)))
        found = http.get(f"/api/v1/placement/weight/keys/{key}").json()
        assert http.get("/api/v1/placement").json()["raw_ids"]
    table.runtime.close()
    assert keys["keys"] == 50
    assert (found["id"], found["own_row"]) == (row, True)
    assert 0 < keys["shared_lookup_ratio"] < 1
    figures = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["keys"]["keys"] for line in figures if "keys" in line][-1] == 50
