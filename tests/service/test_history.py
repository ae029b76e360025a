"""Files that grow while they are read, kept in bounded memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.service.lines import Tail
from adaptive_rec.service.metric_history import EventLog, MetricHistory
from adaptive_rec.service.table_history import ThinnedSeries


def write(path: Path, *lines: dict[str, Any]) -> None:
    with open(path, "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_a_line_is_read_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    tail = Tail(path)
    assert list(tail.new_lines()) == []
    write(path, {"n": 1})
    with open(path, "a") as file:
        file.write('{"n": 2')
    assert list(tail.new_lines()) == [{"n": 1}]
    assert list(tail.new_lines()) == []
    with open(path, "a") as file:
        file.write("}\n")
    assert list(tail.new_lines()) == [{"n": 2}]


def test_torn_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"n": 1\n\xff\n[1]\n' + b"[" * 100_000 + b'\n{"n": 2}\n')
    assert list(Tail(path).new_lines()) == [{"n": 2}]


@pytest.mark.parametrize("every", [1, 20])
def test_a_series_is_thinned_evenly_and_keeps_both_ends(every: int) -> None:
    series = ThinnedSeries(limit=64)
    for number in range(10_000):
        series.add({"step": number * every})
        assert len(series.points) <= 64
        assert series.points[-1] == {"step": number * every}
    steps = [point["step"] for point in series.points]
    gaps = {b - a for a, b in zip(steps[:-2], steps[1:-1], strict=True)}
    assert steps[0] == 0
    assert len(steps) > 16
    assert min(gaps) >= series.spacing
    assert max(gaps) < 2 * series.spacing + every


def test_steps_a_resumed_run_makes_again_replace_the_earlier_ones(tmp_path: Path) -> None:
    history = MetricHistory(tmp_path)
    point = {"event": "snapshot", "totals": {}, "seconds": 1.0}
    write(tmp_path / "metrics.jsonl", *({**point, "step": step, "loss": 1.0} for step in (20, 40, 60)))
    write(tmp_path / "metrics.jsonl", {"event": "evaluation", "step": 60, "auc": 0.5})
    history.refresh()
    write(tmp_path / "metrics.jsonl", {**point, "step": 40, "loss": 2.0})
    write(tmp_path / "metrics.jsonl", {"event": "evaluation", "step": 40, "auc": 0.6})
    history.refresh()
    assert [(p["step"], p["loss"]) for p in history.snapshots.points] == [(20, 1.0), (40, 2.0)]
    assert [(p["step"], p["auc"]) for p in history.evaluations.points] == [(40, 0.6)]
    assert history.steps_per_second() is None  # the clock has not moved on


def test_history_over_http(client: Any, run: Any) -> None:
    for step in range(60, 420, 20):
        run.report(step)
    run.append("metrics.jsonl", {"event": "evaluation", "step": 100, "auc": 0.7})
    run.append("metrics.jsonl", {"event": "evaluation", "step": 200, "auc": 0.8})
    columns = client.get("/api/v1/stats/history").json()["columns"]
    assert columns["step"] == list(range(20, 420, 20))
    assert columns["host_to_device_bytes"] == [10 * step for step in columns["step"]]
    part = client.get("/api/v1/stats/history?since=100&step=100").json()
    assert part["columns"]["step"] == [120, 220, 320, 400]
    assert [evaluation["step"] for evaluation in part["evaluations"]] == [200]
    assert part["spacing_steps"] == 100


def test_events_by_page(client: Any, run: Any) -> None:
    for number in range(5):
        run.event("warning" if number % 2 else "checkpoint", f"event {number + 1}")
    newest = client.get("/api/v1/events?limit=2").json()
    assert [event["id"] for event in newest["events"]] == [4, 5]
    assert newest["last_id"] == 5
    first = client.get("/api/v1/events?since=0&limit=3").json()
    assert [event["text"] for event in first["events"]] == ["event 1", "event 2", "event 3"]
    assert first["last_id"] == 3
    rest = client.get("/api/v1/events?since=3&limit=3").json()
    assert ([event["id"] for event in rest["events"]], rest["last_id"]) == ([4, 5], 5)
    warnings = client.get("/api/v1/events?since=0&kind=warning").json()
    assert [event["id"] for event in warnings["events"]] == [2, 4]
    assert warnings["last_id"] == 5
    run.event("warning", "one more")
    assert client.get("/api/v1/events?since=5").json()["events"][0]["text"] == "one more"


def test_ids_of_events_outlive_the_sidecar_and_the_ring(tmp_path: Path, run: Any) -> None:
    for number in range(10):
        run.event("warning", f"event {number + 1}")
    log = EventLog(tmp_path, limit=4)
    log.refresh()
    assert [event["id"] for event in log.events] == [7, 8, 9, 10]
    assert log.events[-1]["text"] == "event 10"
    assert log.counts == {"warning": 10}


def test_knobs_of_a_start_before_are_forgotten(tmp_path: Path, run: Any) -> None:
    """A run started anew has the knobs of its own description."""
    log = EventLog(tmp_path)
    run.event("started")
    run.event("knobs", changed={"alpha": {"old": 0.9, "new": 0.8}})
    log.refresh()
    assert log.knobs == {"alpha": 0.8}
    run.event("started")
    run.event("knobs", changed={"decay": {"old": 0.6, "new": 0.5}})
    log.refresh()
    assert log.knobs == {"decay": 0.5}
