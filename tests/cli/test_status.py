"""``status``, once and all the time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.live.runtime_file import write_runtime_file
from adaptive_rec.units import printable
from tests.cli.conftest import runtime_file


def test_status_is_a_line_for_each_thing(rows_of, told, service):
    rows = rows_of(told("status"))
    assert ["run", "criteo"] in rows
    assert ["policy", "slipstream, seed 3, cpu, float32"] in rows
    assert ["phase", "training"] in rows
    assert ["step", "1,437 of 5,000 (29%), 1:32 left"] in rows
    assert ["speed", "19.7 k samples/s, 1:15 so far"] in rows
    assert ["loss", "0.5425"] in rows
    assert ["quality", "AUC 0.7143", "logloss 0.5373", "at step 1,000"] in rows
    assert ["hot", "95% of lookups, 50% of samples are popular"] in rows
    assert ["skipped", "18% of row updates, 0% of samples"] in rows
    assert ["rows", "61.7 k hot, 1,451 of them stale"] in rows
    assert ["dashboard", service.url] in rows


def test_status_copes_with_what_is_not_known_yet(rows_of, told, service, answers):
    early = {"loss": None, "evaluation": None, "eta_seconds": None, "samples_per_second": None, "seconds": None}
    service.answer("GET", "/api/v1/status", answers.status | early | {"step": 0, "steps_total": 0})
    ratios = dict.fromkeys(answers.stats["ratios"])
    service.answer("GET", "/api/v1/stats", answers.stats | {"ratios": ratios})
    rows = rows_of(told("status"))
    assert ["step", "0"] in rows
    assert ["skipped", "- of row updates, - of samples"] in rows
    assert not {"loss", "quality"} & {row[0] for row in rows}


def test_status_reports_training_that_hangs(rows_of, told, service, answers):
    service.answer("GET", "/api/v1/status", answers.status | {"last_step_age_seconds": 75.3})
    assert ["phase", "training, no step for 1:15"] in rows_of(told("status"))
    service.answer("GET", "/api/v1/status", answers.status | {"last_step_age_seconds": 75.3, "phase": "paused"})
    assert ["phase", "paused"] in rows_of(told("status"))


def test_status_shows_device_memory_where_there_is_some(rows_of, told, service, answers):
    memory = ["memory", "staging 34 MiB, device 1.5 GiB peak"]
    service.answer("GET", "/api/v1/status", answers.status | {"staging_bytes": 34 << 20, "peak_bytes": 3 << 29})
    assert memory in rows_of(told("status"))
    service.answer("GET", "/api/v1/status", answers.status | {"staging_bytes": 0, "peak_bytes": 0})
    assert "memory" not in {row[0] for row in rows_of(told("status"))}


RANK = {
    **{"work_seconds": 30, "wait_seconds": 10, "sent_bytes": {"rows": 6000}},
    **{"work_seconds_per_step": 0.0312, "wait_seconds_per_step": 1.25, "hot_lookup_ratio": 0.75},
    "sent_bytes_per_sample": {"rows": 1260.2, "dense": 5.0, "other": 0.2},
}


def test_status_shows_each_rank_of_several_and_names_a_straggler(rows_of, told, service, answers):
    assert not [row for row in rows_of(told("status")) if row[0].startswith(("rank", "straggler"))]
    ranks = [{"rank": 0, **RANK}, {"rank": 1, **RANK, "work_seconds_per_step": 0.05}]
    straggler = {"rank": 1, "text": "rank 1 holds up the others"}
    service.answer("GET", "/api/v1/status", answers.status | {"ranks": ranks, "straggler": straggler})
    rows = rows_of(told("status"))
    figures = "own work a step, 1,250.0 ms waiting, 1,265 bytes sent a sample (rows 1,260, dense 5), 75% hot lookups"
    assert ["rank 0", f"31.2 ms {figures}"] in rows
    assert ["rank 1", f"50.0 ms {figures}"] in rows
    assert ["straggler", "rank 1 holds up the others"] in rows


def test_status_shows_the_disk_where_rows_lie_on_one(rows_of, told, service, answers):
    assert not [row for row in rows_of(told("status")) if row[0] == "disk"]
    rows = {"ahead": 4100.4, "again": 12, "read": 1999.6, "found": 80, "drawn": 0, "written": 3000, "moved": 0.2}
    figures = {f"rows_{name}_per_step": value for name, value in rows.items()}
    disk = {"size_bytes": 9 << 20, "segments": 3, "wait_seconds_per_step": 0.0021, **figures}
    service.answer("GET", "/api/v1/stats", answers.stats | {"disk": disk})
    asked = "4,100 rows ahead of a step and 12 in it, 2,000 read from files, 2.1 ms waiting"
    assert ["disk", f"{asked}, 3,000 written, 0 moved, 9.0 MiB in 3 segments"] in rows_of(told("status"))


def test_status_as_json_is_the_answer_of_the_service(told, service, answers):
    assert json.loads(told("status", "--json")) == answers.status
    assert service.paths() == ["GET /api/v1/status"]


def test_names_of_strangers_do_not_steer_the_terminal(told, service, answers):
    service.answer("GET", "/api/v1/status", answers.status | {"run": answers.status["run"] | {"name": "\x1b[2Jx\ny"}})
    text = told("status")
    assert "\x1b" not in text
    assert "\\x1b[2Jx\\ny" in text


@pytest.fixture
def quickly(monkeypatch):
    monkeypatch.setattr("adaptive_rec.cli.status.WATCH_SECONDS", 0.01)


def phases(service: Any, status: dict[str, Any], *names: str) -> None:
    """The service tells one phase after the other."""
    left = list(names)
    service.answers["GET", "/api/v1/status"] = lambda _: (200, status | {"phase": left.pop(0)}, {})


def test_watching_in_a_pipe_gives_a_line_each_time_until_the_end(rows_of, told, service, answers, quickly):
    phases(service, answers.status, "training", "paused", "finished")
    lines = rows_of(told("status", "--watch"))
    assert [line[1] for line in lines] == ["training", "paused", "finished"]
    assert lines[0][2:4] == ["step 1,437 of 5,000 (29%), 1:32 left", "19.7 k samples/s"]


def test_watching_as_json_gives_an_object_a_line(told, service, answers, quickly):
    phases(service, answers.status, "training", "killed")
    lines = told("status", "--watch", "--json").splitlines()
    assert [json.loads(line)["phase"] for line in lines] == ["training", "killed"]


def test_watching_on_a_terminal_redraws(rows_of, told, service, answers, quickly, terminal):
    phases(service, answers.status, "training", "failed")
    terminal()
    text = told("status", "--watch")
    assert ["phase", "failed"] in rows_of(text)


def test_watching_ends_in_peace_on_ctrl_c(told, service, monkeypatch):
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("adaptive_rec.cli.status.time.sleep", interrupt)
    assert len(told("status", "--watch").splitlines()) == 1


def test_watching_outlives_a_service_that_comes_back(told, service, answers, quickly):
    left = [
        (200, answers.status, {}),
        (503, {"detail": "starting"}, {}),
        (200, answers.status | {"phase": "finished"}, {}),
    ]
    service.answers["GET", "/api/v1/status"] = lambda _: left.pop(0)
    assert len(told("status", "--watch").splitlines()) == 2


def test_watching_ends_with_a_service_that_does_not(capsys, service, answers, quickly, monkeypatch):
    monkeypatch.setattr("adaptive_rec.cli.status.PATIENCE_SECONDS", 0.05)
    left = [(200, answers.status, {})]
    service.answers["GET", "/api/v1/status"] = lambda _: left.pop(0) if left else (503, {"detail": "gone"}, {})
    assert main(["status", "--watch"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    assert "the run is over, or its service is gone" in captured.err


def test_watching_needs_a_first_answer(refused, service):
    service.refuse("GET", "/api/v1/status", 503, "starting")
    assert "starting" in refused("status", "--watch", code=1)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", r"a\u202eb"),
        ("half\udcff", r"half\udcff"),
        ("  ", r"\x20\x20"),
        ("", ""),
        ("two words", "two words"),
        ("\x1b[2J\U000e0041", r"\x1b[2J\U000e0041"),
        ("a\nb", r"a\nb"),
        ("日本", "日本"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable("a\nb", keep="\n") == "a\nb"


def test_errors_quote_words_of_the_user_printably(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["sta\u202etus"],
        ["status", "--ru\u202en"],
        ["report", "no\u202e\udcff"],
        ["train", "--set=knobs.al\u202e=1"],
    ):
        assert main(words) != 0
        said = capsys.readouterr().err
        assert r"\u202e" in said, words
        assert all(line.isprintable() for line in said.splitlines()), words


def test_status_and_the_list_of_runs_say_where_a_branch_comes_from(rows_of, told, service, answers, tmp_path):
    parent = {"run": "/data/runs/long", "checkpoint": "step-000000800", "step": 800}
    service.answer("GET", "/api/v1/status", answers.status | {"run": answers.status["run"] | {"parent": parent}})
    assert ["branch of", "/data/runs/long at step 800"] in rows_of(told("status"))

    (tmp_path / "run.json").write_text(json.dumps({"parent": {**parent, "seconds": 1, "samples_seen": 9}}))
    write_runtime_file(replace(runtime_file(service.url), run=str(tmp_path)))
    assert "long@800" in rows_of(told("runs"))[1]
    assert json.loads(told("runs", "--json"))[0]["parent"] == parent
    (tmp_path / "run.json").write_text('{"parent": 7}')
    assert json.loads(told("runs", "--json"))[0]["parent"] is None
