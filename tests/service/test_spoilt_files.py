"""Files of a run that a crash or a disk has spoilt: what can be read is shown, nothing fails."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.service.event_stream import Feed
from adaptive_rec.service.hello import Hello
from adaptive_rec.service.metric_history import WHOLE_BYTES, EventLog, MetricHistory
from adaptive_rec.service.run_view import FinishedRun, memory_at_the_end
from tests.quickest import quickest

from .conftest import on_a_disk, ranks

GOOD: dict[str, Any] = {"time": 1.0, "step": 60, "kind": "warning", "text": "look", "details": {}}
KNOBS: dict[str, Any] = {**GOOD, "kind": "knobs"}
NESTED = '{"time": 1, "step": 60, "kind": "warning", "text": "", "details": ' + '{"a":' * 300 + "1" + "}" * 301
EVENTS = [
    *({**GOOD, "time": time} for time in (None, "now", -1, 1e300, True)),
    *({**GOOD, "step": step} for step in (None, 1.5, True, "60", -1, 2**60)),
    *({**GOOD, "kind": kind} for kind in (None, 7, "", 'a"b', "\ud800", "x" * 60)),
    *({**GOOD, "details": details} for details in (None, [], "text")),
    *({**KNOBS, "details": details} for details in ({}, {"changed": None}, {"changed": {"alpha": 0.5}})),
    *({**KNOBS, "details": {"changed": {"alpha": change}}} for change in ({}, {"new": None}, {"new": [1]})),
    {**GOOD, "text": None},
    {**GOOD, "details": {"x": float("nan")}},
    {},
]
SNAPSHOTS: list[dict[str, Any]] = [
    {"step": None},
    {"step": "80"},
    {"step": 80.5},
    {"step": True},
    {"seconds": None},
    {"loss": "low"},
    {"loss": float("nan")},
    {"hot_rows": [1]},
    {"totals": None},
    {"totals": [1]},
    {"totals": {"samples_seen": "many"}},
    {"stage_seconds": {"execute": None}},
    {"stage_seconds": [1]},
    {"tables": {"lookups": 5}},
    {"tables": {"hot_rows": [None, 1, 2]}},
    {"tables": []},
    {"disk": {}},
    {"disk": {**on_a_disk(60)["disk"], "segments": -1}},
    {"ranks": None},
    {"ranks": [{}]},
    {"ranks": [{**ranks(0.1)[0], "sent_bytes": {"rows": None}}]},
    {"ranks": ranks(0.1), "straggler": {"rank": "one", "text": "rank 1"}},
]


def append(path: Path, line: dict[str, Any] | str) -> None:
    with open(path, "a") as file:
        file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")


def answers(run: Any, client: Any) -> None:
    """Everything that shows the run's files answers; the stream too."""
    for path in ("status", "stats", "stats/history", "events", "placement", "knobs"):
        assert client.get(f"/api/v1/{path}").status_code == 200, path
    assert client.get("/metrics").status_code == 200
    feed = Feed(client.view)
    feed.look()
    data = feed.message("read").partition(b"\ndata: ")[2].partition(b"\n")[0]
    assert json.loads(data)["status"]["step"] == run.step


def finished_view(run: Any, client_on: Any) -> Any:
    run.live = False
    view = FinishedRun(Hello.parse(run.hello()))
    return type(client_on(run))(view)


def test_spoilt_events_are_left_out(tmp_path: Path, run: Any, client: Any, client_on: Any) -> None:
    """All at once, each before a good one; one at a time in make check."""
    spoilt = [*EVENTS, NESTED]
    for number, line in enumerate(spoilt, start=1):
        append(tmp_path / "events.jsonl", line)
        append(tmp_path / "events.jsonl", {**GOOD, "text": f"look {number}"})
    shown = client.get("/api/v1/events?limit=500").json()["events"]
    expected = [(number, f"look {number}") for number in range(1, len(spoilt) + 1)]
    assert [(event["id"], event["text"]) for event in shown] == expected
    answers(run, client)
    answers(run, finished_view(run, client_on))


@pytest.mark.slow
@pytest.mark.parametrize("line", [*EVENTS, NESTED], ids=lambda line: str(line)[:60])
def test_a_spoilt_event_is_left_out(tmp_path: Path, run: Any, client: Any, client_on: Any, line: Any) -> None:
    append(tmp_path / "events.jsonl", line)
    append(tmp_path / "events.jsonl", GOOD)
    shown = client.get("/api/v1/events").json()
    assert [(event["id"], event["text"]) for event in shown["events"]] == [(1, "look")]
    answers(run, client)
    answers(run, finished_view(run, client_on))


@pytest.mark.parametrize(
    "wrong", [pytest.param(SNAPSHOTS, id="all"), *(pytest.param([one], id=str(one), marks=pytest.mark.slow) for one in SNAPSHOTS)]
)
def test_a_spoilt_snapshot_is_left_out(tmp_path: Path, run: Any, client: Any, client_on: Any, wrong: Any) -> None:
    for one in wrong:
        append(tmp_path / "metrics.jsonl", {"event": "snapshot", **run.snapshot(60), **one})
    append(tmp_path / "metrics.jsonl", {"event": "evaluation", "step": 40, "auc": "good"})
    answers(run, client)
    over = finished_view(run, client_on)
    answers(run, over)
    columns = over.get("/api/v1/stats/history").json()
    assert (columns["columns"]["step"], columns["evaluations"]) == ([20, 40], [])


@pytest.mark.parametrize(
    ("summary", "told"),
    [
        ('{"device_staging_bytes": 5000, "device_peak_bytes": 70000}', (5000, 70_000)),
        ("{}", (0, 0)),
        ("", None),
        ("[]", None),
        ('{"device_staging_bytes": 5000, "device_peak_bytes": "much"}', None),
        ('{"device_staging_bytes": -1}', None),
    ],
)
def test_device_memory_is_as_the_summary_has_it_if_it_does(
    tmp_path: Path, run: Any, client_on: Any, summary: str, told: tuple[int, int] | None
) -> None:
    """A damaged summary has none, and shows no good end: it is named."""
    (tmp_path / "summary.json").write_text(summary)
    over = finished_view(run, client_on)
    answers(run, over)
    status = over.get("/api/v1/status").json()
    phase, named = ("killed", ["summary.json"]) if told is None else ("finished", [])
    assert (status["phase"], status["staging_bytes"], status["peak_bytes"]) == (phase, *(told or (0, 0)))
    assert [each["file"] for each in status["damaged"] if each["file"] == "summary.json"] == named
    hot = [table["hot"] for table in over.get("/api/v1/placement").json()["tables"]]
    assert hot == run.snapshot(40)["tables"]["hot_rows"]


def test_each_damaged_file_is_named_with_the_lines_that_are_left_out(
    tmp_path: Path, run: Any, client: Any, client_on: Any
) -> None:
    def damaged(client: Any) -> dict[str, tuple[int, list[int]]]:
        found = client.get("/api/v1/status").json()["damaged"]
        return {each["file"]: (each["lines_left_out"], each["first_lines"]) for each in found}

    (tmp_path / "config.toml").write_text("[run]\n")
    assert damaged(client) == {}
    whole = len((tmp_path / "metrics.jsonl").read_text().splitlines())
    append(tmp_path / "metrics.jsonl", "{")
    append(tmp_path / "metrics.jsonl", {"event": "snapshot", "step": "many"})
    append(tmp_path / "events.jsonl", GOOD)
    for _ in range(30):
        append(tmp_path / "events.jsonl", {**GOOD, "step": -1})
    with open(tmp_path / "events.jsonl", "a") as file:
        file.write('{"time": 1.0, "st')
    lines = {"metrics.jsonl": (2, [whole + 1, whole + 2]), "events.jsonl": (30, list(range(2, 22)))}
    assert damaged(client) == lines
    (tmp_path / "config.toml").write_text("[run")
    (tmp_path / "summary.json").write_text("[]")
    over = finished_view(run, client_on)
    torn = {**lines, "events.jsonl": (31, list(range(2, 22)))}  # nobody goes on with its last line
    assert damaged(over) == {**torn, "summary.json": (0, []), "config.toml": (0, [])}
    faults = {each["file"]: each["fault"] for each in over.get("/api/v1/status").json()["damaged"]}
    assert faults["metrics.jsonl"] == f"2 lines cannot be read and are left out: {whole + 1}, {whole + 2}"
    assert faults["config.toml"].startswith("must be TOML: ")


def test_a_journal_of_garbage_is_no_good_end(tmp_path: Path, run: Any, client_on: Any) -> None:
    (tmp_path / "summary.json").write_text("{}")
    assert finished_view(run, client_on).get("/api/v1/status").json()["phase"] == "finished"
    (tmp_path / "events.jsonl").write_text("garbage\n")
    assert finished_view(run, client_on).get("/api/v1/status").json()["phase"] == "killed"


def test_a_summary_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "summary.json")
    assert memory_at_the_end(tmp_path) == {}


def test_odd_numbers_are_null_in_the_stream(tmp_path: Path, run: Any, client_on: Any) -> None:
    append(tmp_path / "metrics.jsonl", '{"event": "evaluation", "step": 40, "own": 1e999}')
    over = finished_view(run, client_on)
    answers(run, over)
    assert over.get("/api/v1/status").json()["evaluation"] == {"step": 40, "own": None}


def test_a_knob_that_no_run_can_have_is_not_in_effect(tmp_path: Path, run: Any, client_on: Any) -> None:
    changed = {"alpha": {"new": 0.8}, "decay": {"new": "much"}, "policy": {"new": 7}, "gone": {"new": 1}}
    append(tmp_path / "events.jsonl", {**KNOBS, "details": {"changed": changed}})
    over = finished_view(run, client_on)
    answers(run, over)
    effective = {name: knob["effective"] for name, knob in over.get("/api/v1/knobs").json()["knobs"].items()}
    assert effective == {**run.knobs, "alpha": 0.8}


SPOILT: list[tuple[dict[str, Any], str]] = [
    ({"tables": None}, "NoneType"),
    ({"tables": [{"name": "C1"}]}, "rows"),
    ({"started": "yesterday"}, "started"),
    ({"started": 1e300}, "started"),
    ({"defaults": {"alpha": "x"}}, "knobs.alpha"),
    ({"policies": [{"name": 1}]}, "policies"),
    ({"run_name": None}, "run_name"),
]


def test_a_spoilt_description_is_an_error(run: Any) -> None:
    """Of the kind that ends the process with one line."""
    for wrong, named in SPOILT:
        with pytest.raises(ValueError, match=named):
            Hello.parse({**run.hello(), "mode": "finished", **wrong})


@pytest.mark.parametrize(
    ("wrong", "named"),
    [pytest.param(*case, id=str(case[0]), marks=[pytest.mark.slow] if number else []) for number, case in enumerate(SPOILT)],
)
def test_a_spoilt_description_is_an_error_of_one_line(run: Any, wrong: dict[str, Any], named: str) -> None:
    run.live = False
    errors = ended(run, **wrong)
    assert "run.json" in errors
    assert named in errors


@pytest.mark.slow
def test_an_unfit_allowed_host_is_an_error_at_the_start(run: Any) -> None:
    assert "allowed host" in ended(run, allow_hosts=["http://a"])


def ended(run: Any, **wrong: Any) -> str:
    """What the process says, in one line, before it ends with exit code 2."""
    ours, theirs = socket.socketpair()
    fds = [theirs.fileno(), run.writer.fd]
    command = [sys.executable, "-m", "adaptive_rec.service", "--link", str(fds[0])]
    with subprocess.Popen(command, pass_fds=fds, stderr=subprocess.PIPE, text=True) as process, ours:
        theirs.close()
        ours.sendall(json.dumps({**run.hello(), "listeners": [], **wrong}).encode() + b"\n")
        errors = process.communicate(timeout=120)[1]
    assert process.returncode == 2, errors
    assert errors.count("\n") == 1, errors
    assert errors.startswith("sidecar: ")
    return errors


def test_a_run_of_another_version_is_shown(run: Any) -> None:
    values = {**run.hello(), "defaults": {"alpha": 0.5, "knob_of_old": 1, "report_every": 10**12}}
    assert Hello.parse(values).defaults == {**run.knobs, "alpha": 0.5, "report_every": 10**9}


@pytest.mark.parametrize("size", [2 * WHOLE_BYTES, pytest.param(120 << 20, marks=pytest.mark.slow)])
def test_of_a_long_file_a_sample_is_read(tmp_path: Path, run: Any, size: int) -> None:
    path, step = tmp_path / "metrics.jsonl", 40
    text = json.dumps({"event": "snapshot", **run.snapshot(0, text="x" * 1000)})
    with open(path, "a") as file:
        while file.tell() < size:
            file.writelines(text.replace('"step": 0', f'"step": {step + 20 * n}') + "\n" for n in range(1, 1001))
            step += 20_000
    assert quickest(lambda: MetricHistory(tmp_path).refresh()) < 1
    history = MetricHistory(tmp_path)
    history.refresh()
    assert history.newest is not None
    assert history.newest["step"] == step
    steps = [point["step"] for point in history.snapshots.points]
    assert steps[0] == 20
    assert max(b - a for a, b in zip(steps, steps[1:], strict=False)) < step / 20, "all of the run is covered"
    append(path, {"event": "snapshot", **run.snapshot(step + 20)})
    history.refresh()
    assert history.snapshots.points[-1]["step"] == step + 20


def test_a_file_without_a_line_in_it_is_soon_done_with(tmp_path: Path) -> None:
    with open(tmp_path / "metrics.jsonl", "wb") as file:
        file.truncate(60 << 20)
    assert quickest(lambda: MetricHistory(tmp_path).refresh()) < 1
    history = MetricHistory(tmp_path)
    history.refresh()
    assert history.newest is None


def test_events_that_can_be_read_keep_their_order(tmp_path: Path) -> None:
    for number in range(3):
        append(tmp_path / "events.jsonl", {**GOOD, "text": str(number)})
        append(tmp_path / "events.jsonl", {"time": None})
    log = EventLog(tmp_path)
    log.refresh()
    assert [(event["id"], event["text"]) for event in log.events] == [(1, "0"), (2, "1"), (3, "2")]
