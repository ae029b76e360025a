"""What is shipped for Prometheus and Grafana: every metric and label exists, and promtool's own tests of the alerts pass."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from adaptive_rec.live.life import STATES
from adaptive_rec.service.metric_families import EVENT_KINDS

from .conftest import on_a_disk

DEPLOY = Path(__file__).parents[2] / "deploy"
BY_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to every series."""
Series = dict[str, list[dict[str, str]]]


def dashboard() -> dict[str, Any]:
    return dict(json.loads((DEPLOY / "grafana.json").read_text()))


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"] for rule in group["rules"]]


def recorded() -> list[dict[str, str]]:
    groups = yaml.safe_load((DEPLOY / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panel_queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


def variables() -> dict[str, str]:
    listed = dashboard()["templating"]["list"]
    return {each["name"]: each["query"] for each in listed if each["type"] == "query"}


@pytest.fixture
def exported(client: Any, run: Any) -> Series:
    """The labels of every series that /metrics can have, by the name of the sample."""
    evaluation = {"step": 40, "auc": 0.7, "logloss": 0.5}
    snapshot = run.snapshot(40, stale_threshold=0.1, **on_a_disk(40))
    about = {"phase": "training", "step": 40, "steps_total": 1000, "snapshot": snapshot, "knobs": run.knobs}
    newest = {"name": "step-000000040", "step": 40, "size_bytes": 5, "seconds": 0.5}
    figures = {"failed": 0, "newest_timestamp_seconds": 1.0, "every_steps": 0, "every_seconds": 600.0}
    run.append("metrics.jsonl", {"event": "evaluation", **evaluation})
    run.writer.write_board({**about, "evaluation": evaluation, "checkpoint": newest, "checkpoints": figures})
    found: Series = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def check_query(query: str, exported: Series) -> None:
    """Check that a query selects series that exist: names, labels, and values of labels that are compared by `=`, or listed."""
    selected = re.findall(r"(adaptive_rec_\w+)(?:{([^}]*)})?", query)
    assert selected, query
    labels: set[str] = set(BY_PROMETHEUS)
    for name, selector in selected:
        assert name in exported, f"{name} in {query}"
        series = exported[name]
        labels |= set(series[0])
        for label, value in re.findall(r'(\w+)=~?"([^"]*)"', selector):
            assert label in BY_PROMETHEUS | set(series[0]), f"{label} in {query}"
            if not value.startswith("$"):
                known = {each[label] for each in series}
                assert set(value.split("|")) <= known, f"{value} in {query}"
    grouped = re.findall(r"(?:by|without|ignoring|on) \(([\w, ]+)\)", query)
    assert {label for part in grouped for label in part.split(", ")} <= labels, query


def test_every_query_of_the_dashboard_hits_a_metric(exported: Series) -> None:
    assert len(panel_queries()) > 25
    for query in [*panel_queries(), *variables().values()]:
        check_query(re.sub(r"label_values\((\w+(?:{[^}]*})?), (\w+)\)", r"sum by (\2) (\1)", query), exported)


def test_every_panel_can_show_one_run() -> None:
    assert {"job", "instance", "run", "table"} == set(variables())
    for query in panel_queries():
        for _, selector in re.findall(r"(adaptive_rec_\w+)({[^}]*})?", query):
            assert 'run=~"$run"' in selector, query


def test_a_legend_names_only_labels_of_its_series(exported: Series) -> None:
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"adaptive_rec_\w+", target["expr"])
            shown = set(re.findall(r"{{(\w+)}}", target.get("legendFormat", "")))
            assert shown <= BY_PROMETHEUS | set(exported[names[0]][0]), panel["title"]


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + 8)}
        assert not own & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= own


def test_every_alert_hits_metrics_and_says_what_to_do(exported: Series) -> None:
    assert len(rules()) >= 10
    for rule in rules():
        check_query(rule["expr"], exported)
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description", "action"}
        assert "{{ $labels.run }}" in rule["annotations"]["summary"]
        named = {name for text in rule["annotations"].values() for name in re.findall(r"\$labels\.(\w+)", text)}
        assert named <= {"run", "instance"}


def test_a_query_of_what_is_not_there_is_found(exported: Series) -> None:
    for query in (
        "adaptive_rec_no_such_metric > 1",
        'adaptive_rec_phase{phase="sleeping"} == 1',
        'adaptive_rec_phase{phase=~"finished|gone"} == 1',
        'adaptive_rec_steps_total{table="C1"}',
        "sum by (table) (adaptive_rec_steps_total)",
    ):
        with pytest.raises(AssertionError):
            check_query(query, exported)


def test_phases_and_kinds_are_those_of_the_rules() -> None:
    assert {"starting", "training", "paused", "evaluating", "checkpointing", "finishing", "finished", "failed"} <= set(STATES)
    assert {"nan", "sidecar"} <= set(EVENT_KINDS)


def test_every_alert_is_tested_to_fire() -> None:
    text = (DEPLOY / "alerts_test.yml").read_text()
    assert [rule["alert"] for rule in rules() if f'alertname="{rule["alert"]}"' not in text] == []


def test_every_recorded_rate_hits_metrics_and_is_tested(exported: Series) -> None:
    text = (DEPLOY / "rules_test.yml").read_text()
    for rule in recorded():
        assert set(rule) == {"record", "expr"}
        check_query(rule["expr"], exported)
        assert re.fullmatch(r"adaptive_rec:\w+:(ratio_)?rate5m", rule["record"])
        assert rule["record"] in text


VARIABLES = {"$__rate_interval": "5m", "$__interval": "5m", "$job": ".*", "$instance": ".*", "$run": ".*", "$table": ".*"}


def test_prometheus_evaluates_every_query(exported: Series, tmp_path: Path) -> None:
    """On series of all that a run exports, so that a join that matches too much is an error here."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    panels = []
    for number, query in enumerate(panel_queries()):
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        panels.append({"record": f"panel_{number}", "expr": query})
    by_prometheus = {"job": "adaptive-rec", "instance": "127.0.0.1:8470"}
    series = []
    for name, found in exported.items():
        for labels in found:
            inside = ", ".join(f"{key}={json.dumps(value)}" for key, value in {**labels, **by_prometheus}.items())
            series.append({"series": f"{name}{{{inside}}}", "values": "1+1x60"})
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": panels}]}))
    here = [each["record"] for each in [*panels, *recorded()] if "phase" not in each["expr"]]  # no phase is 1 for ever
    test = {
        "rule_files": ["panels.yml", str(DEPLOY / "rules.yml"), str(DEPLOY / "alerts.yml")],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": series,
                "promql_expr_test": [
                    {"expr": f"absent({name})", "eval_time": "14m", "exp_samples": []} for name in here
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    command = [promtool, "test", "rules", "test.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


CHECKS = (
    "check rules alerts.yml", "check rules rules.yml", "test rules rules_test.yml", "check config --syntax-only prometheus.yml",
    pytest.param("test rules alerts_test.yml", marks=pytest.mark.slow),
)  # fmt: skip


@pytest.mark.parametrize("command", CHECKS)
def test_promtool_finds_the_alerts_right(command: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    done = subprocess.run([promtool, *command.split()], cwd=DEPLOY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
