"""Commands to a run, the list of runs, and which run is meant."""

from __future__ import annotations

import json
import os

import pytest

from adaptive_rec.cli import main
from adaptive_rec.live.runtime_file import remove, write_runtime_file
from adaptive_rec.live.sign_in_code import code_clock, made_at

EVERY = [["status"], ["knobs"], ["knobs", "set", "alpha=1"], ["placement"], ["pause"], ["resume"], ["stop"]]
EVERY += [["reclassify"], ["checkpoint"], ["rollback"], ["dashboard"]]


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_without_a_run_a_command_says_how_to_start_one(refused, words):
    assert "no run is under way (adaptive-rec train starts one)" in refused(*words)


@pytest.mark.parametrize("words", EVERY[:-1], ids=" ".join)
def test_a_refusal_is_one_line_and_an_exit_code(refused, service, words):
    for method, path in [*service.answers, *(("POST", f"/api/v1/control/{word}") for word in words)]:
        service.refuse(method, path, 409, "the run is over")
    assert refused(*words, code=1) == "error: the run is over\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pause", "paused at step 1,437"),
        ("resume", "resumed at step 1,437"),
        ("stop", "stopping at step 1,437"),
        ("reclassify", "reclassified at step 1,437"),
        ("checkpoint", "checkpoint step-000001437 written at step 1,437"),
    ],
)
def test_a_command_prints_its_outcome_and_step(told, service, name, text):
    path = f"/api/v1/control/{name}"
    more = {"checkpoint": "step-000001437"} if name == "checkpoint" else {}
    service.answer("POST", path, {"command": name, "step": 1437, **more})
    assert told(name) == f"{text}\n"
    assert json.loads(told(name, "--json"))["step"] == 1437
    reason = "the run has been evaluating for 12 s; it happens at the next step boundary"
    service.answer("POST", path, {"command": name, "step": None, "pending": True, "reason": reason}, 202)
    assert told(name) == f"{name} is pending: {reason}\n"
    assert service.paths() == [f"POST {path}"] * 3


def test_rollback_sends_what_was_typed_and_prints_where_the_run_goes_on(told, refused, service):
    path = "/api/v1/control/rollback"
    knobs = {"lr_factor": {"unit": ""}, "hot_budget_bytes": {"unit": "bytes"}}
    service.answer("GET", "/api/v1/knobs", {"knobs": knobs})
    back = {"command": "rollback", "step": 4000, "checkpoint": "step-000004000", "from_step": 4321}
    service.answer("POST", path, back)
    assert told("rollback") == "went back from step 4,321 to step-000004000, step 4,000\n"
    words = ["--to", "4100", "--skip-data", "--set", "lr_factor=0.5", "--set", "hot_budget_bytes=64MiB", "--why", "a spike"]
    assert json.loads(told("rollback", *words, "--json")) == back
    told("rollback", "--to", "step-000004000.1", "--set", "lr_factor=default")
    assert [request["body"] for request in service.requests if request["method"] == "POST"] == [
        {"skip_data": False},
        {"to_step": 4100, "skip_data": True, "knobs": {"lr_factor": 0.5, "hot_budget_bytes": 64 << 20}, "why": "a spike"},
        {"checkpoint": "step-000004000.1", "skip_data": False, "knobs": {"lr_factor": None}},
    ]
    service.answer("POST", path, {"command": "rollback", "step": None}, 202)
    assert "rollback is pending: it happens at the next step boundary" in told("rollback")
    assert "--to must be a step or the name of a checkpoint (step-...), got now" in refused("rollback", "--to", "now", code=2)
    assert "unknown knob lr_facto; did you mean lr_factor?" in refused("rollback", "--set", "lr_facto=1", code=2)


def test_runs_under_way_are_listed_without_their_tokens(rows_of, told, capsys, service):
    text = told("runs")
    assert rows_of(text)[1][:2] == [str(os.getpid()), "criteo"]
    listed = json.loads(told("runs", "--json"))
    assert [(run["name"], run["url"]) for run in listed] == [("criteo", service.url)]
    assert "token" not in text + json.dumps(listed)
    remove(os.getpid())
    assert main(["runs"]) == 0
    assert "no run is under way" in capsys.readouterr().err
    assert told("runs", "--json") == "[]\n"


def test_a_link_holds_a_code_of_the_control_token_and_only_the_header_shows_the_token(told, service):
    service.answer("POST", "/api/v1/control/pause", {"command": "pause", "step": 1})
    links = [told("dashboard").strip(), json.loads(told("dashboard", "--json"))["dashboard"]]
    for link in links:
        address, _, code = link.partition("/#c=")
        assert address == service.url
        assert abs(made_at("control-token-of-the-tests", code.encode()) - code_clock()) < 5
    assert links[0] != links[1]
    assert told("dashboard", "--header") == "Authorization: Bearer control-token-of-the-tests\n"
    for words in (["status"], ["status", "--json"], ["knobs"], ["placement"], ["pause"], ["runs"], ["dashboard"]):
        assert "token-of-the-tests" not in told(*words)


def test_run_says_which_one(told, refused, service):
    assert "criteo" in told("status", "--run", "criteo")
    assert "criteo" in told("status", f"--run={os.getpid()}")
    assert "no run critoe is under way; did you mean criteo?" in refused("status", "--run", "critoe")
    assert "not allowed with" in refused("status", "--run", "criteo", "--url", service.url)


def test_url_says_where(told, service, monkeypatch):
    monkeypatch.setenv("ADAPTIVE_REC_TOKEN", "another-token")
    assert "criteo" in told("status", "--url", service.url)
    assert {request["headers"]["authorization"] for request in service.requests} == {"Bearer another-token"}


def test_an_insecure_folder_is_an_error(refused, service, runtime_folder):
    runtime_folder.chmod(0o755)
    assert "must have mode 700" in refused("status", code=1)
    runtime_folder.chmod(0o700)


def test_a_run_without_its_service_is_an_error(refused, service, answers):
    service.stop()
    write_runtime_file(answers.runtime_file("http://127.0.0.1:9"))
    assert "http://127.0.0.1:9 cannot be reached" in refused("status", code=1)
