"""/metrics: names, values, labels. What is made of them is in test_deploy.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from adaptive_rec.service.metric_families import LABEL_LIMIT, WATCHDOG_ACTIONS, label_value

from .conftest import on_a_disk, ranks

LABELS = {"action", "run", "table", "tier", "policy", "stage", "phase", "kind", "knob", "version", "rank", "metric"}
UNITS = re.compile(
    r"seconds|bytes|ratio|info|timestamp|rows|steps|step|samples|lookups|updates|events|checkpoints|segments|per_second"
)
WITHOUT_UNIT = {
    "loss", "evaluation_auc", "evaluation_logloss", "placement_version", "stale_threshold", "phase", "knob", "rank_is_straggler",
    "watchdog", "evaluation_ranking", "evaluation_groups",
    "best_evaluation_auc", "overfit", "dense_lr", "embedding_lr", "process_threads", "process_cores",
}  # fmt: skip


RANKED = {
    "step": 60, "auc": 0.7, "logloss": 0.5,
    "ranking": {
        "groups": 9, "groups_with_positive": 7, "groups_with_both": 5, "metrics": {"gauc": None, "recall@20": 0.25, "mrr": 0.5},
    },
}  # fmt: skip


def families(client: Any) -> dict[str, Any]:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def test_names_follow_the_rules(client: Any, run: Any) -> None:
    run.event("warning", "look")
    run.report(60, ranks=ranks(0.1, 0.2), **on_a_disk(60))
    run.board("training", run.snapshot(60, ranks=ranks(0.1, 0.2), **on_a_disk(60)), evaluation=RANKED)
    found = families(client)
    assert {"adaptive_rec_evaluation_ranking", "adaptive_rec_evaluation_groups"} <= found.keys()
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
            assert sample.labels["run"] == run.folder.name


def test_metrics_that_rank_are_series_by_their_names(client: Any, run: Any) -> None:
    run.report(60)
    assert "adaptive_rec_evaluation_ranking" not in families(client)
    run.board("training", run.snapshot(60), evaluation=RANKED)
    found = families(client)
    ranked = {each.labels["metric"]: each.value for each in found["adaptive_rec_evaluation_ranking"].samples}
    assert ranked == {"recall@20": 0.25, "mrr": 0.5}, "one that has no value has no series"
    groups = {each.labels["kind"]: each.value for each in found["adaptive_rec_evaluation_groups"].samples}
    assert groups == {"all": 9, "with_positive": 7, "with_both": 5}
    status = client.get("/api/v1/status").json()["evaluation"]
    assert status["ranking"] == RANKED["ranking"]


def test_values_are_those_of_the_snapshot(client: Any, run: Any) -> None:
    run.event("warning", "look")
    run.report(60, stale_threshold=0.25)
    found = families(client)

    def value(name: str, **labels: str) -> float:
        samples = found["adaptive_rec_" + name].samples
        (sample,) = [s for s in samples if s.labels == {"run": run.folder.name, **labels}]
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
    assert "adaptive_rec_stale_threshold" not in found, "as it is null in /stats"
    assert (value("device_staging_bytes"), value("device_peak_bytes")) == (0, 0)
    run.board("training", run.snapshot(80), placement={"staging_bytes": 5000, "peak_bytes": 70_000})
    found = families(client)
    assert (value("device_staging_bytes"), value("device_peak_bytes")) == (5000, 70_000)


def test_each_rank_has_series_of_its_own_where_there_are_several(client: Any, run: Any) -> None:
    assert not [name for name in families(client) if "rank" in name]
    run.report(60, ranks=ranks(0.02, 0.07), straggler={"rank": 1, "text": "rank 1 holds up the others"})
    found = {
        (name, sample.labels["rank"], sample.labels.get("kind")): sample.value
        for name, family in families(client).items()
        for sample in family.samples
        if "rank" in sample.labels
    }
    assert len(found) == 2 * 6
    assert found["adaptive_rec_rank_work_seconds", "1", None] == pytest.approx(2.1)
    assert found["adaptive_rec_rank_wait_seconds", "1", None] == 1.5
    assert found["adaptive_rec_rank_sent_bytes", "0", "dense"] == 500
    assert found["adaptive_rec_rank_hot_lookup_ratio", "0", None] == 0.75
    assert [found["adaptive_rec_rank_is_straggler", rank, None] for rank in "01"] == [0, 1]


def test_rows_on_a_disk_are_counted_where_there_are_some(client: Any, run: Any) -> None:
    assert not [name for name in families(client) if "disk" in name]
    run.report(60, **on_a_disk(60))
    found = {name.removeprefix("adaptive_rec_disk_"): family for name, family in families(client).items() if "disk" in name}
    assert {name: family.samples[0].value for name, family in found.items()} == {
        "rows_ahead": 60, "rows_again": 120, "rows_read": 180, "rows_found": 240, "rows_drawn": 300, "rows_written": 360,
        "rows_moved": 420, "written_bytes": 60 << 20, "wait_seconds": 0.3, "size_bytes": 9 << 20, "segments": 3,
    }  # fmt: skip
    assert {name for name, family in found.items() if family.type == "gauge"} == {"size_bytes", "segments"}


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


def test_every_kind_of_event_is_counted_from_zero(client: Any, run: Any) -> None:
    counts = families(client)["adaptive_rec_events"].samples
    assert {sample.value for sample in counts} == {0}
    run.event("nan", "a batch was left out")
    counts = families(client)["adaptive_rec_events"].samples
    assert {sample.labels["kind"]: sample.value for sample in counts if sample.value} == {"nan": 1}


def test_the_watchdog_is_counted_by_what_it_did_from_zero(client: Any, run: Any) -> None:
    def counts() -> dict[str, float]:
        return {each.labels["action"]: each.value for each in families(client)["adaptive_rec_watchdog"].samples}

    assert counts() == dict.fromkeys(WATCHDOG_ACTIONS, 0)
    run.event("watchdog", "rule loss > 3: rollback", action="rollback")
    run.event("watchdog", "rule loss > 3: rollback", action="rollback")
    run.event("watchdog", "what some later version does", action="else")
    assert counts() == {**dict.fromkeys(WATCHDOG_ACTIONS, 0), "rollback": 2}


def test_the_interval_and_the_time_of_checkpoints(client: Any, run: Any) -> None:
    found = families(client)
    assert "adaptive_rec_checkpoint_interval_seconds" not in found, "a loop of the user's own saves by itself"
    figures = {"failed": 2, "stall_seconds": 0.5, "every_seconds": 600.0, "every_steps": 0}
    run.board("training", run.snapshot(40), checkpoints={**figures, "newest_timestamp_seconds": None})
    found = families(client)
    assert found["adaptive_rec_checkpoint_interval_seconds"].samples[0].value == 600
    assert found["adaptive_rec_checkpoint_interval_steps"].samples[0].value == 0
    assert found["adaptive_rec_start_timestamp_seconds"].samples[0].value == 1_770_000_000
    assert "adaptive_rec_checkpoint_timestamp_seconds" not in found
    run.board("training", run.snapshot(40), checkpoints={**figures, "newest_timestamp_seconds": 1_770_000_100.5})
    assert families(client)["adaptive_rec_checkpoint_timestamp_seconds"].samples[0].value == 1_770_000_100.5


ODD = ["half\udcff", 'a"b', "a\nb", "a\\nb", "a\u202eb", "a\u2028b", "\x00", "x" * 300, "\U0001f600" * 300, "日本", "\\"]


@pytest.mark.parametrize("name", ODD)
def test_a_name_may_hold_anything(tmp_path: Path, client_on: Any, make_run: Any, name: str) -> None:
    """A name of a directory is bytes, and those that are no UTF-8 arrive as lone surrogates."""
    run = make_run(tmp_path, (name, 50, 4), ("C2", 50, 4))
    hello = run.hello
    run.hello = lambda port=8470: {**hello(port), "run_name": name, "version": name}
    found = families(client_on(run))
    values = {label for family in found.values() for sample in family.samples for label in sample.labels.values()}
    assert all(value.isprintable() and len(value) <= LABEL_LIMIT for value in values)
    tables = {sample.labels["table"] for sample in found["adaptive_rec_hot_rows"].samples}
    assert len(tables) == 2
    (shown,) = tables - {"C2"}
    assert {sample.labels["run"] for family in found.values() for sample in family.samples} == {shown}


def test_the_trainer_learns_of_scrapes_and_the_phase_they_saw(view: Any, client: Any, run: Any) -> None:
    scrape = {"X-Prometheus-Scrape-Timeout-Seconds": "10"}
    families(client)
    assert view.link.messages == [], "a look by curl is no scrape"
    for _ in range(5):
        client.get("/metrics", headers=scrape)
    assert view.link.messages == [{"id": 0, "command": "scraped", "phase": "training"}], "at most once a second"
    run.board("finished", run.snapshot(40))
    client.get("/metrics", headers=scrape)
    assert view.link.messages[1:] == [{"id": 0, "command": "scraped", "phase": "finished"}]


def test_a_run_that_has_ended_is_scraped_too(finished: Any) -> None:
    answer = finished.get("/metrics", headers={"X-Prometheus-Scrape-Timeout-Seconds": "10"})
    assert answer.status_code == 200
    assert re.search(r'adaptive_rec_phase\{phase="finished",run="\w+"\} 1.0', answer.text)


def test_label_values_are_as_different_as_the_names() -> None:
    names = [*ODD, "half\\udcff", "x" * 301, "x" * 299 + "y", "a\\u202eb"]
    assert len({label_value(name) for name in names}) == len(names)
    assert [label_value(name) for name in ("C1", "日本", "<img onerror=x>", 'a"b')] == ["C1", "日本", "<img onerror=x>", 'a"b']
    assert label_value("a\u202eb\udcff") == "a\\u202eb\\udcff"


def test_every_metric_and_route_is_in_the_documents(client: Any, run: Any) -> None:
    run.report(60, ranks=ranks(0.1, 0.2), **on_a_disk(60))
    text = (Path(__file__).parents[2] / "docs" / "live.md").read_text()
    names = [line.split()[2] for line in client.get("/metrics").text.splitlines() if line.startswith("# TYPE")]
    assert len(names) > 30
    assert [name for name in names if f"`{name}`" not in text] == []
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    routes = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    assert [route for route in routes if f"`{route}`" not in text] == []
