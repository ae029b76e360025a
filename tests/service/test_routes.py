"""The routes that tell how a run is doing, and what every error looks like."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from adaptive_rec.service import control_api, control_schemas, placement_schemas, run_view, schemas
from adaptive_rec.service.app import create_app
from adaptive_rec.service.documented import Problem
from adaptive_rec.service.hello import Hello
from adaptive_rec.service.run_view import FinishedRun

from .conftest import Client, FakeRun, on_a_disk, ranks

MODELS = {
    "/livez": schemas.Health,
    "/readyz": schemas.Health,
    "/version": schemas.Version,
    "/api/v1/status": schemas.Status,
    "/api/v1/stats": schemas.Stats,
    "/api/v1/stats/history": schemas.StatsHistory,
    "/api/v1/events": schemas.Events,
    "/api/v1/placement": placement_schemas.Placement,
    "/api/v1/placement/0": placement_schemas.PlacementPage,
    "/api/v1/placement/0?class=cold": placement_schemas.PlacementPage,
    "/api/v1/placement/C1/rows/7": placement_schemas.RowDetail,
    "/api/v1/knobs": control_schemas.KnobList,
}


def test_answers_are_as_described(client: Any, run: Any) -> None:
    run.event("warning", "look")
    run.append("metrics.jsonl", {"event": "evaluation", "step": 40, "auc": 0.7, "logloss": None})
    for path, model in MODELS.items():
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        described = model.model_validate(answer.json())
        assert set(answer.json()) == {field.alias or name for name, field in type(described).model_fields.items()}, path


FINISHED_409 = {"/api/v1/placement/0", "/api/v1/placement/0?class=cold", "/api/v1/placement/C1/rows/7"}


def test_a_finished_run_answers_from_its_files(finished: Any) -> None:
    for path, model in MODELS.items():
        answer = finished.get(path)
        assert answer.status_code == (409 if path in FINISHED_409 else 200), (path, answer.text)
        if answer.status_code == 200:
            model.model_validate(answer.json())


def test_status_has_pace_and_time_left(client: Any, run: Any) -> None:
    status = client.get("/api/v1/status").json()
    assert status["steps_per_second"] == pytest.approx(50)
    assert status["eta_seconds"] == pytest.approx((1000 - 40) / 50)
    assert (status["phase"], status["step"], status["samples_seen"]) == ("training", 40, 40 * 512)
    assert status["run"]["started"] == "2026-02-02T02:40:00+00:00"
    assert 0 <= status["last_step_age_seconds"] < 30
    run.writer.pulse(47)
    assert client.get("/api/v1/status").json()["step"] == 47
    run.report(60, phase="paused")
    assert client.get("/api/v1/status").json()["eta_seconds"] is None


def test_status_has_each_rank_of_several_and_the_straggler(client: Any, run: Any) -> None:
    status = client.get("/api/v1/status").json()
    assert (status["ranks"], status["straggler"]) == ([], None)
    straggler = {"rank": 1, "text": "rank 1 holds up the others"}
    run.report(60, ranks=ranks(0.02, 0.07), straggler=straggler)
    status = client.get("/api/v1/status").json()
    schemas.Status.model_validate(status)
    assert [(rank["rank"], rank["work_seconds_per_step"]) for rank in status["ranks"]] == [(0, 0.02), (1, 0.07)]
    assert set(status["ranks"][0]) == set(schemas.RankStatus.model_fields)
    assert status["straggler"] == straggler
    assert FinishedRun(Hello.parse(run.hello())).board()["snapshot"]["ranks"] == ranks(0.02, 0.07)


def test_statistics_have_the_disk_where_rows_lie_on_one(client: Any, run: Any) -> None:
    assert client.get("/api/v1/stats").json()["disk"] is None
    run.report(60, **on_a_disk(60))
    stats = client.get("/api/v1/stats").json()
    schemas.Stats.model_validate(stats)
    assert set(stats["disk"]) == set(schemas.DiskStats.model_fields)
    assert (stats["disk"]["segments"], stats["disk"]["rows_again_per_step"]) == (3, 2)
    assert stats["totals"]["disk_rows_again"] == 120
    assert FinishedRun(Hello.parse(run.hello())).board()["snapshot"]["disk"] == stats["disk"]


def test_status_has_device_memory_where_the_board_has_it(client: Any, run: Any) -> None:
    def told() -> tuple[int, int]:
        status = client.get("/api/v1/status").json()
        return status["staging_bytes"], status["peak_bytes"]

    assert told() == (0, 0), "a trainer that does not tell"
    run.board("training", run.snapshot(40), placement={"staging_bytes": 5000, "peak_bytes": 70_000})
    assert told() == (5000, 70_000)


def test_nothing_is_known_before_the_first_step(client: Any, run: Any) -> None:
    run.board("starting", None)
    assert client.get("/readyz").status_code == 503
    assert client.get("/livez").status_code == 200
    for path in ("status", "stats", "placement"):
        answer = client.get(f"/api/v1/{path}")
        assert answer.status_code == 200
        MODELS[f"/api/v1/{path}"].model_validate(answer.json())
    assert client.get("/metrics").status_code == 200


def test_livez_turns_red_when_steps_stop_coming(client: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.get("/livez").status_code == 200
    assert control_api.STALL_AFTER_SECONDS == 300
    monkeypatch.setattr(control_api, "STALL_AFTER_SECONDS", 0.05)
    time.sleep(0.1)
    assert client.get("/livez").status_code == 503
    run.board("paused", run.snapshot(40))
    time.sleep(0.1)
    assert client.get("/livez").status_code == 200


def test_status_says_whether_a_cookie_let_the_request_in(client: Any) -> None:
    """Where a program or a proxy sends the token, there is no session that a page could end."""
    assert client.get("/api/v1/status").json()["session"] is False
    assert client.post("/api/v1/session").status_code == 204
    assert client.get("/api/v1/status").json()["session"] is False
    del client.headers["Authorization"]
    assert client.get("/api/v1/status").json()["session"] is True
    client.cookies.clear()
    assert client.get("/api/v1/status").status_code == 401


def test_the_evaluation_is_the_newest_up_to_the_step(client: Any, run: Any) -> None:
    """A run that is resumed at its end was saved before its final evaluation; one resumed earlier makes steps again."""
    run.board("finished", run.snapshot(40), evaluation={"step": 20, "auc": 0.7, "logloss": 0.5})
    assert client.get("/api/v1/status").json()["evaluation"]["step"] == 20
    for step, expected in ((40, 40), (60, 40)):
        run.append("metrics.jsonl", {"event": "evaluation", "step": step, "auc": 0.8, "logloss": 0.4})
        assert client.get("/api/v1/status").json()["evaluation"]["step"] == expected


def test_a_finished_run_that_is_resumed_elsewhere_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, held = FakeRun(tmp_path, live=False), False
    monkeypatch.setattr(run_view, "is_held", lambda run: held)
    run.append("metrics.jsonl", {"event": "snapshot", **run.snapshot(40)})
    run.event("finished", "the run has ended")
    client = Client(FinishedRun(Hello.parse(run.hello())))

    def shown() -> tuple[str, int, int]:
        status, stats = (client.get(f"/api/v1/{name}").json() for name in ("status", "stats"))
        return status["phase"], status["step"], stats["step"]

    assert shown() == ("finished", 40, 40)
    held = True
    run.event("started", "20 steps to go")
    run.append("metrics.jsonl", {"event": "snapshot", **run.snapshot(50)})
    assert shown() == ("training", 50, 50)
    held = False
    assert shown() == ("killed", 50, 50)
    run.event("started", "10 steps to go")
    run.append("metrics.jsonl", {"event": "snapshot", **run.snapshot(60)})
    run.event("finished", "the run has ended")
    assert shown() == ("finished", 60, 60)
    run.writer.close()


def test_answers_hold_no_character_that_cannot_be_seen(client: Any, run: Any) -> None:
    """A terminal shows what there is; programs read the same text."""
    odd = "a\u202eb\u200b\x7f\U000e0041"
    run.event("warning", odd)
    for answer in (
        client.get("/api/v1/events"),
        client.get(f"/api/v1/placement/{quote(odd)}"),
        client.get(f"/api/v1/events?limit={quote(odd)}"),
    ):
        assert answer.text.isprintable()
    assert client.get("/api/v1/events").json()["events"][-1]["text"] == odd
    assert "\\u202e" in client.get("/api/v1/events").text


def test_finished_status(finished: Any) -> None:
    status = finished.get("/api/v1/status").json()
    assert (status["live"], status["phase"], status["step"]) == (False, "finished", 40)
    assert status["error"] is None
    assert status["eta_seconds"] is None
    knobs = finished.get("/api/v1/knobs").json()
    assert knobs["knobs"]["alpha"]["effective"] == 0.8  # as last changed, not as configured
    assert knobs["effective_since_step"] == 40


def test_commands_reach_the_trainer(client: Any, view: Any, finished: Any) -> None:
    for command in ("pause", "resume", "stop", "reclassify", "checkpoint"):
        view.link.messages.clear()
        answer = client.post(f"/api/v1/control/{command}")
        assert answer.status_code == 200, command
        assert answer.json()["command"] == command
        assert answer.json()["step"] == 40, command
        assert [message["command"] for message in view.link.messages] == [command]
        assert ("checkpoint" in answer.json()) == (command == "checkpoint")
        over = finished.post(f"/api/v1/control/{command}")
        assert over.status_code == 409, command


def test_commands_may_take_longer_than_the_client_waits_or_fail(
    client: Any, view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    view.link.answers = lambda message: [{"id": message["id"], "status": 507, "error": "no space left"}]
    answer = client.post("/api/v1/control/checkpoint")
    assert (answer.status_code, answer.json()["detail"]) == (507, "no space left")
    monkeypatch.setattr("adaptive_rec.service.waiting.REPLY_SECONDS", 0.05)
    monkeypatch.setattr(view, "pulse", lambda: (40, time.monotonic()))
    view.link.answers = lambda message: []
    answer = client.post("/api/v1/control/checkpoint")
    why = "the checkpoint is being written beside training; the event checkpoint reports its end"
    assert (answer.status_code, answer.json()) == (
        202, {"command": "checkpoint", "step": None, "pending": True, "reason": why}
    )  # fmt: skip


ERRORS = [
    ("GET", "/nowhere", 404),
    ("GET", "/api/v1/placement/C9", 404),
    ("GET", "/api/v1/placement/3", 404),
    ("GET", "/api/v1/placement/-1", 404),
    ("GET", "/api/v1/placement/0/rows/1000", 404),
    ("GET", "/api/v1/placement/0/rows/-1", 422),
    ("GET", "/api/v1/placement/0/rows/x", 422),
    ("GET", "/api/v1/placement/0?limit=1001", 422),
    ("GET", "/api/v1/placement/0?class=warm", 422),
    ("GET", "/api/v1/placement/0?class=cold&sort=estimate", 422),
    ("GET", "/api/v1/stats/history?since=x", 422),
    ("GET", "/api/v1/events?limit=0", 422),
    ("GET", "/api/v1/stream?hz=11", 422),
    ("POST", "/api/v1/control/explode", 422),
    ("PUT", "/api/v1/knobs", 405),
    ("GET", "/assets/../app.py", 404),
    ("GET", "/assets/%2e%2e/app.py", 404),
]


def test_every_error_is_a_problem(client: Any) -> None:
    for method, path, status in ERRORS:
        answer = client.request(method, path)
        assert answer.status_code == status, (method, path)
        assert answer.headers["content-type"] == "application/problem+json", (method, path)
        assert answer.json()["status"] == status, (method, path)
        Problem.model_validate(answer.json())


def test_405_names_all_methods_of_the_path(client: Any) -> None:
    assert client.put("/api/v1/knobs").headers["allow"] == "GET, PATCH"
    assert client.get("/api/v1/control/pause").headers["allow"] == "POST"
    assert client.put("/api/v1/placement/query").headers["allow"] == "POST"
    assert client.put("/api/v1/placement/0").headers["allow"] == "GET"


def test_an_internal_error_is_a_500_without_details(view: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(view, "refresh", fail)
    quiet = TestClient(client.app, client.base_url, headers=client.headers, raise_server_exceptions=False)
    answer = quiet.get("/api/v1/status")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "secret" not in answer.text


def test_dashboard_files_come_from_memory(
    tmp_path: Any, view: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adaptive_rec.service import dashboard_files

    folder = tmp_path / "files"
    (folder / "vendor").mkdir(parents=True)
    (folder / "index.html").write_text("<p>hello")
    (folder / "vendor" / "plot.js").write_text("1")
    (folder / "notes.py").write_text("no")
    routes = dashboard_files.router(folder)
    monkeypatch.setattr(dashboard_files, "router", lambda: routes)
    app = create_app(view, client.security)
    client = TestClient(app, client.base_url, headers=client.headers)
    (folder / "index.html").unlink()  # read once
    page = client.get("/")
    assert (page.text, page.headers["content-type"]) == ("<p>hello", "text/html; charset=utf-8")
    assert page.headers["cache-control"] == "no-cache"
    tag = page.headers["etag"]
    for named in (tag, f"W/{tag}", f'"other", {tag}', f'"a,b",W/{tag}', "*"):
        assert client.get("/", headers={"If-None-Match": named}).status_code == 304, named
    for named in ('"other"', tag.strip('"'), tag[:-1], 'W/"*"'):
        assert client.get("/", headers={"If-None-Match": named}).status_code == 200, named
    assert client.get("/assets/vendor/plot.js").headers["content-type"].startswith("text/javascript")
    assert client.get("/assets/notes.py").status_code == 404
    assert client.get("/assets/../index.html").status_code == 404


@pytest.mark.parametrize(
    ("kinds", "summary", "phase"),
    [
        (["started", "failed"], False, "failed"),
        (["started", "finished", "started", "failed"], True, "failed"),
        (["started", "failed", "started", "finished"], True, "finished"),
        (["started", "finished"], False, "finished"),  # a user's loop writes no summary
        (["started", "finished", "started"], True, "killed"),
        (["started", "stopping", "finished"], True, "finished"),
        ([], True, "finished"),
        ([], False, "killed"),
    ],
)
def test_how_a_run_ended_is_told_by_its_journal(
    tmp_path: Path, kinds: list[str], summary: bool, phase: str
) -> None:
    fake = FakeRun(tmp_path, live=False)
    for kind in kinds:
        fake.event(kind, "ValueError: a batch is broken" if kind == "failed" else kind)
    if summary:
        (tmp_path / "summary.json").write_text("{}")
    client = Client(FinishedRun(Hello.parse(fake.hello())))
    status = client.get("/api/v1/status").json()
    assert (status["phase"], status["error"]) == (phase, "ValueError: a batch is broken" if phase == "failed" else None)
    metrics = client.get("/metrics").text
    assert re.findall(r'adaptive_rec_phase{phase="(\w+)",run="[^"]*"} 1.0', metrics) == [phase]
    fake.writer.close()


def test_a_run_that_fails_says_why(client: Any, run: Any) -> None:
    run.event("failed", "ValueError: a batch is broken")
    assert client.get("/api/v1/status").json()["error"] is None
    run.board("failed", run.snapshot(40))
    assert client.get("/api/v1/status").json()["error"] == "ValueError: a batch is broken"
