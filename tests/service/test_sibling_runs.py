"""The runs beside the one that is served, as clients see them: state, quality, curves; odd files harm nobody."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.service import sibling_runs
from tests.stopwatch import Stopwatch

from .conftest import READ, Client, FakeRun, view_of


def snapshot(step: int, loss: float = 0.5, tables: int = 2) -> dict[str, Any]:
    lookups = {"lookups": [10 * step] * tables, "lookups_hot": [step * (4 + each) for each in range(tables)]}
    rows = {"hot_rows": [step, 7][:tables], "stale_rows": [1, 2][:tables]}
    about = {"event": "snapshot", "step": step, "steps_total": 100, "seconds": step / 10, "loss": loss}
    return {**about, "totals": {}, "tables": {**lookups, **rows}}


RANKING = {
    "groups": 3, "groups_with_positive": 2, "groups_with_both": 0, "metrics": {"gauc": None, "recall@20": 0.25},
}  # fmt: skip


def evaluation(step: int, auc: float | None) -> dict[str, Any]:
    return {"event": "evaluation", "step": step, "auc": auc, "logloss": 0.4}


def event(step: int, kind: str, **details: Any) -> dict[str, Any]:
    return {"time": 1.0, "step": step, "kind": kind, "text": kind, "details": details}


def make(folder: Path, metrics: list[dict[str, Any]], events: list[dict[str, Any]], **about: Any) -> Path:
    """A run's directory with these lines."""
    folder.mkdir()
    tables = [{"name": "C1", "rows": 9}, {"name": "C2/a", "rows": 9}]
    facts = {"started": 1_770_000_000.0, "effective": {"policy": "hotline"}, "tables": tables, **about}
    (folder / "run.json").write_text(json.dumps(facts))
    for name, lines in (("metrics.jsonl", metrics), ("events.jsonl", events)):
        add(folder / name, *lines)
    return folder


def add(path: Path, *lines: dict[str, Any]) -> None:
    with open(path, "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[FakeRun]:
    folder = tmp_path / "runs" / "own"
    folder.mkdir(parents=True)
    fake = FakeRun(folder)
    (folder / "run.json").write_text(json.dumps(fake.hello()))
    yield fake
    fake.writer.close()


@pytest.fixture
def runs(own: FakeRun) -> Path:
    """The folder of all runs."""
    return own.folder.parent


@pytest.fixture
def client(own: FakeRun) -> Client:
    return Client(view_of(own), READ)


def listed(client: Client, **parameters: Any) -> dict[str, Any]:
    answer = client.get("/api/v1/runs", params=parameters)
    assert answer.status_code == 200, answer.text
    return {run["name"]: run for run in answer.json()["runs"]}


def test_a_finished_run_is_listed_with_its_best_and_its_last_evaluation(client: Client, runs: Path) -> None:
    parent = {"run": "/elsewhere/first", "checkpoint": "step-000000010", "step": 10}
    lines = [
        snapshot(20),
        evaluation(20, 0.7),
        evaluation(40, None),
        snapshot(40),
        {**evaluation(60, 0.6), "ranking": RANKING},
        snapshot(60, 0.3),
    ]
    make(runs / "done", lines, [event(0, "started"), event(60, "finished")], parent=parent, steps_per_epoch=30)
    assert listed(client)["done"] == {
        **{"name": "done", "own": False, "policy": "hotline", "state": "finished", "step": 60, "steps_total": 100},
        **{
            "steps_per_epoch": 30,
            "seconds": 6.0,
            "loss": 0.3,
            "started": "2026-02-02T02:40:00+00:00",
            "complete": True,
        },
        "best": {"step": 20, "auc": 0.7, "logloss": 0.4, "metrics": {}},
        "last": {"step": 60, "auc": 0.6, "logloss": 0.4, "metrics": {"gauc": None, "recall@20": 0.25}},
        "parent": {"run": "first", "checkpoint": "step-000000010", "step": 10},
        "tables": ["C1", "C2/a"],
    }


def test_the_served_run_is_in_the_list_as_it_stands_now(client: Client, own: FakeRun) -> None:
    own.step = 47
    own.board("paused", own.snapshot(47), evaluation={"step": 40, "auc": 0.9, "logloss": 0.2})
    found = listed(client)["own"]
    assert (found["own"], found["state"], found["step"], found["last"]["auc"]) == (True, "paused", 47, 0.9)


HOLDS_THE_LOCK = """
import fcntl, sys
lock = open(sys.argv[1], "a")
fcntl.lockf(lock, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


def test_what_a_run_does_is_known_from_its_lock_and_its_journal(client: Client, runs: Path) -> None:
    run = make(runs / "r", [snapshot(20)], [event(0, "started")])
    state = lambda: listed(client)["r"]["state"]  # noqa: E731
    assert state() == "killed"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_THE_LOCK, str(run / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdin
        process.stdout.readline()
        assert state() == "training"
        with open(run / ".lock", "a") as lock, pytest.raises(BlockingIOError):
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the question has taken nothing from the run
        for kind, seen in (
            ("paused", "paused"),
            ("resumed", "training"),
            ("failed", "failed"),
            ("started", "training"),
        ):
            add(run / "events.jsonl", event(20, kind))
            assert state() == seen, kind
        process.stdin.close()
        process.wait(60)
    assert state() == "killed"
    add(run / "events.jsonl", event(20, "finished"))
    assert state() == "finished"


def test_curves_of_another_run_follow_it_and_leave_out_what_it_lost(client: Client, runs: Path) -> None:
    run = make(runs / "r", [snapshot(20), snapshot(40), evaluation(40, 0.6), snapshot(60), evaluation(60, 0.9)], [])
    curves = lambda: client.get("/api/v1/runs/r/history").json()  # noqa: E731
    assert set(curves()["columns"]) == set(client.get("/api/v1/stats/history").json()["columns"])
    assert curves()["columns"]["step"] == [20, 40, 60]
    assert listed(client)["r"]["best"]["step"] == 60
    add(run / "metrics.jsonl", snapshot(50, 0.25))  # resumed, or rolled back, at 40
    found = curves()
    assert (found["columns"]["step"], found["columns"]["loss"]) == ([20, 40, 50], [0.5, 0.5, 0.25])
    assert [each["step"] for each in found["evaluations"]] == [40]
    assert listed(client)["r"]["best"]["step"] == listed(client)["r"]["last"]["step"] == 40
    part = client.get("/api/v1/runs/r/history?since=20&step=30").json()
    assert (part["columns"]["step"], part["spacing_steps"]) == ([40, 50], 30)
    alone = client.get("/api/v1/runs/r/evaluations?since=39").json()["evaluations"]
    assert [(each["step"], each["auc"]) for each in alone] == [(40, 0.6)]


def test_a_run_that_went_back_ends_where_it_went_back_to(client: Client, runs: Path) -> None:
    went_back = {"event": "rolled_back", "step": 30}
    lines = [snapshot(20), evaluation(20, 0.6), snapshot(40), evaluation(40, 0.9), went_back]
    told = [event(0, "started"), event(44, "reclassified"), event(30, "rolled_back", from_step=45)]
    run = make(runs / "r", lines, told)
    assert client.get("/api/v1/runs/r/history").json()["columns"]["step"] == [20]
    assert client.get("/api/v1/runs/r/history/C1").json()["columns"]["step"] == [20]
    found = listed(client)["r"]
    assert (found["step"], found["best"]["step"], found["last"]["step"]) == (30, 20, 20)
    add(run / "metrics.jsonl", snapshot(50), evaluation(50, 0.7))
    assert client.get("/api/v1/runs/r/history").json()["columns"]["step"] == [20, 50]
    assert listed(client)["r"]["best"]["step"] == 50


def test_a_table_has_curves_of_its_own(client: Client, own: FakeRun, runs: Path) -> None:
    make(runs / "r", [snapshot(20), snapshot(40)], [])
    found = client.get("/api/v1/runs/r/history/C1").json()
    assert found["table"] == "C1"
    assert found["columns"] == {
        **{"step": [20, 40], "seconds": [2, 4], "hot_rows": [20, 40], "stale_rows": [1, 1], "lookups": [200, 400]},
        "hot_lookup_ratio": [0.4, 0.4],
    }
    assert client.get("/api/v1/runs/r/history/C9").status_code == 404
    own.report(60)
    mine = client.get("/api/v1/stats/history/C1?since=20").json()
    assert (mine["columns"]["step"], mine["columns"]["hot_lookup_ratio"]) == ([40, 60], [0.8, 0.8])
    assert mine == {**client.get("/api/v1/stats/history/0?since=20").json()}
    assert client.get("/api/v1/stats/history/C9").status_code == 404


@pytest.mark.parametrize(
    "name", ["..", ".", ".hidden", "link", "no", "no%2F..%2Fr", "%2e%2e", "file", "a" * 255, "pipe", "%00", "%ff"]
)
def test_only_runs_in_the_folder_are_read(client: Client, runs: Path, name: str) -> None:
    elsewhere = make(runs.parent / "secret", [snapshot(20)], [])
    make(runs / ".hidden", [snapshot(20)], [])
    make(runs / "r", [snapshot(20)], [])
    (runs / "link").symlink_to(elsewhere)
    (runs / "file").write_text("")
    os.mkfifo(runs / "pipe")
    (runs.parent / "run.json").write_text("{}")
    os.mkdir(os.fsencode(runs) + b"/\xff")
    (Path(os.fsdecode(os.fsencode(runs) + b"/\xff")) / "run.json").write_text("{}")
    assert set(listed(client)) == {"own", "r"}
    for path in ("history", "evaluations", "history/C1"):
        assert client.get(f"/api/v1/runs/{name}/{path}").status_code == 404, path


def damage(run: Path, how: str) -> None:
    if how == "fifo":
        for name in ("metrics.jsonl", "events.jsonl"):
            (run / name).unlink()
            os.mkfifo(run / name)
    elif how == "links":
        for name in ("metrics.jsonl", "events.jsonl", ".lock"):
            (run / name).rename(run.parent.parent / f"other-{name}") if (run / name).exists() else None
            (run / name).symlink_to(run.parent.parent / f"other-{name}")
    elif how == "folders":
        for name in ("metrics.jsonl", "events.jsonl"):
            (run / name).unlink()
            (run / name).mkdir()
    elif how == "noise":
        for name in ("metrics.jsonl", "events.jsonl", "run.json"):
            (run / name).write_bytes(os.urandom(1 << 16) + b'\n{"event": "evaluation", "step": 9, "auc": "x"}\n[]\n{')
    elif how == "sparse":
        for name in ("metrics.jsonl", "events.jsonl"):
            with open(run / name, "wb") as file:
                file.truncate(4 << 40)
    elif how == "missing":
        for name in ("metrics.jsonl", "events.jsonl"):
            (run / name).unlink()


@pytest.mark.parametrize("how", ["fifo", "links", "folders", "noise", "sparse", "missing"])
def test_files_that_are_no_run_s_neither_fail_nor_hang(client: Client, runs: Path, how: str) -> None:
    run = make(runs / "r", [snapshot(20), evaluation(20, 0.7)], [event(20, "paused")])
    damage(run, how)
    watch = Stopwatch()
    found = listed(client)["r"]
    assert (found["best"], found["state"], found["loss"]) == (None, "killed", None)
    assert found["complete"] is (how != "sparse")
    answer = client.get("/api/v1/runs/r/history")
    assert (answer.status_code, answer.json()["columns"]["step"]) == (200, [])
    assert watch.seconds < 5


def test_a_long_file_is_read_a_part_at_a_time(client: Client, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sibling_runs, "PART_BYTES", 4096)
    lines = [line for step in range(1, 100) for line in (snapshot(step), evaluation(step, step / 1000))]
    make(runs / "r", lines, [])
    steps = []
    while not (found := listed(client)["r"])["complete"]:
        steps.append(found["last"]["step"])
        assert len(steps) < 100
    assert len(steps) > 3
    assert steps == sorted(set(steps))
    assert found["best"]["step"] == 99


def test_a_directory_made_anew_is_another_run(client: Client, runs: Path) -> None:
    run = make(runs / "r", [snapshot(step) for step in range(1, 50)], [event(0, "started"), event(49, "finished")])
    assert listed(client)["r"]["step"] == 49
    assert len(client.get("/api/v1/runs/r/history").json()["columns"]["step"]) == 49
    run.rename(runs.parent / "gone")
    assert "r" not in listed(client)
    assert client.get("/api/v1/runs/r/history").status_code == 404
    make(runs / "r", [snapshot(2)], [event(0, "started")])
    assert (listed(client)["r"]["step"], listed(client)["r"]["state"]) == (2, "killed")
    assert client.get("/api/v1/runs/r/history").json()["columns"]["step"] == [2]


def test_thousands_of_runs_come_by_page_and_a_cut_is_told(
    client: Client, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        run = make(runs / f"R{number:03d}", [], [])
        os.utime(run / "run.json", (10**9 + number, 10**9 + number))
    first = client.get("/api/v1/runs?contains=r&limit=200").json()
    rest = client.get("/api/v1/runs?contains=r&limit=200&offset=200").json()
    names = [run["name"] for run in first["runs"] + rest["runs"]]
    assert names == [f"R{number:03d}" for number in reversed(range(300))]
    assert (first["total"], first["cut"]) == (300, False)
    monkeypatch.setattr(sibling_runs, "MOST_ENTRIES", 50)
    few = client.get("/api/v1/runs").json()
    assert few["cut"]
    assert few["total"] <= 50


def test_a_malformed_snapshot_is_no_step_and_garbage_no_good_end(own: FakeRun) -> None:
    folder = own.folder.parent
    spoilt = make(folder / "spoilt", [snapshot(10), evaluation(10, 0.6), snapshot(20)], [event(0, "started")])
    with open(spoilt / "metrics.jsonl", "a") as file:
        file.write('{"event": "snapshot", "step": 900, "sec\n{"event": "snapshot", "step": 1, "sec\n')
    garbage = make(folder / "garbage", [], [])
    (garbage / "events.jsonl").write_text("garbage\n")
    (garbage / "summary.json").write_text("{}")
    listed = {run["name"]: run for run in Client(view_of(own)).get("/api/v1/runs").json()["runs"]}
    assert (listed["spoilt"]["step"], listed["spoilt"]["last"]["step"]) == (20, 10)
    assert listed["garbage"]["state"] == "killed"
    add(spoilt / "metrics.jsonl", snapshot(15))
    listed = {run["name"]: run for run in Client(view_of(own)).get("/api/v1/runs").json()["runs"]}
    assert listed["spoilt"]["step"] == 15
