"""/metrics and the Grafana dashboard that is made of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana.json"
LABELS = {"table", "tier", "policy", "stage", "phase", "kind", "knob", "version"}
UNITS = re.compile(
    r"seconds|bytes|ratio|info|timestamp|rows|steps|step|samples|lookups|updates|events|checkpoints|per_second"
)
WITHOUT_UNIT = {"loss", "evaluation_auc", "evaluation_logloss", "placement_version", "stale_threshold", "phase", "knob"}


def families(client: Any) -> dict[str, Any]:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def test_names_follow_the_rules(client: Any, run: Any) -> None:
    run.event("warning", "look")
    found = families(client)
    assert len(found) > 30
    for name, family in found.items():
        assert name.startswith("adaptive_rec_")
        own = name.removeprefix("adaptive_rec_")
        assert UNITS.search(own) or own in WITHOUT_UNIT, name
        assert not re.search(r"milli|micro|kilo|mega|percent|count$", own)
        assert family.documentation
        assert family.type in ("counter", "gauge")
        assert not own.endswith("_total")
        for sample in family.samples:
            assert sample.name == name + ("_total" if family.type == "counter" else "")
            assert set(sample.labels) <= LABELS


def test_values_are_those_of_the_snapshot(client: Any, run: Any) -> None:
    run.event("warning", "look")
    run.report(60, stale_threshold=0.25)
    found = families(client)

    def value(name: str, **labels: str) -> float:
        samples = found["adaptive_rec_" + name].samples
        (sample,) = [s for s in samples if s.labels == labels]
        return float(sample.value)

    assert value("steps") == 60
    assert value("planned_steps") == 1000
    assert value("samples_seen") == 60 * 512
    assert value("lookups", table="<img onerror=x>", tier="hot") == 80 * 60
    assert value("lookups", table="C1", tier="cold") == 20 * 60
    assert value("hot_rows", table="C2") == run.count(1, ("hot", "stale"))
    assert value("stage_seconds", stage="gather (ahead)") == 0.1
    assert value("phase", phase="training") == 1
    assert value("phase", phase="paused") == 0
    assert value("events", kind="warning") == 1
    assert value("knob", knob="alpha") == 0.9
    assert value("stale_threshold") == 0.25
    run.report(80)
    found = families(client)
    assert value("stale_threshold") == float("inf")
    assert (value("device_staging_bytes"), value("device_peak_bytes")) == (0, 0)
    run.board("training", run.snapshot(80), placement={"staging_bytes": 5000, "peak_bytes": 70_000})
    found = families(client)
    assert (value("device_staging_bytes"), value("device_peak_bytes")) == (5000, 70_000)


@pytest.mark.parametrize("tables", [26])
def test_so_many_series_and_no_more(tmp_path: Path, tables: int, client_on: Any, make_run: Any) -> None:
    run = make_run(tmp_path, *((f"C{number}", 50, 4) for number in range(tables)))
    for kind in ("started", "knobs", "reclassified", "checkpoint", "warning", "finished"):
        run.event(kind)
    series = sum(len(family.samples) for family in families(client_on(run)).values())
    assert 26 * 6 < series <= 2000


def test_a_finished_run_has_metrics(finished: Any) -> None:
    found = families(finished)
    assert found["adaptive_rec_steps"].samples[0].value == 40
    assert "adaptive_rec_last_step_timestamp_seconds" not in found


def queries() -> list[str]:
    board = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return found + [each["query"] for each in board["templating"]["list"] if each["type"] == "query"]


def test_every_query_of_the_dashboard_hits_a_metric(client: Any, run: Any) -> None:
    run.event("warning", "look")
    run.append("metrics.jsonl", {"event": "evaluation", "step": 40, "auc": 0.7, "logloss": 0.5})
    snapshot = run.snapshot(40)
    about = {"phase": "training", "step": 40, "steps_total": 1000, "snapshot": snapshot}
    run.writer.write_board({**about, "evaluation": {"step": 40, "auc": 0.7, "logloss": 0.5}})
    exported = {sample.name: sample.labels for family in families(client).values() for sample in family.samples}
    assert len(queries()) > 25
    for query in queries():
        names = re.findall(r"adaptive_rec_\w+", query)
        assert names, query
        for name in names:
            assert name in exported, query
        used = set(re.findall(r"(\w+)=~?\"", query)) | set(re.findall(r"by \((\w+)\)", query))
        assert used - {"job", "instance"} <= set(exported[names[0]]), query


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + 8)}
        assert not own & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= own


def test_every_metric_and_route_is_in_the_documents(client: Any) -> None:
    text = (Path(__file__).parents[2] / "docs" / "live.md").read_text()
    names = [line.split()[2] for line in client.get("/metrics").text.splitlines() if line.startswith("# TYPE")]
    assert len(names) > 30
    assert [name for name in names if f"`{name}`" not in text] == []
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    routes = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    assert [route for route in routes if f"`{route}`" not in text] == []
