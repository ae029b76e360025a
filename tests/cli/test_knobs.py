"""``knobs``: what is shown, what is sent, and what is told of the answer."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest


def test_knobs_are_a_table_in_pipes(rows_of, told, service):
    rows = rows_of(told("knobs"))
    assert rows[0] == ["knob", "value", "default", "range", "unit", "what it does"]
    why = "What turning it does."
    assert rows[1] == ["hot_budget_bytes", "8MiB", "8MiB", ">= 0", why]
    assert rows[2] == ["alpha", "0.9 -> 0.7 pending", "0.9", "0 < .. <= 1", "ratio", why]
    assert rows[3] == ["action", "freeze", "freeze", "freeze, drop", why]
    assert rows[4] == ["stale_threshold", "search", "search", ">= 0 or search", "movement", why]
    assert len(rows) == 5


def test_knobs_fit_a_terminal(told, service, answers, terminal):
    long = answers.knobs["knobs"]["alpha"] | {"why": "word " * 40, "default": 0.5}
    service.answer("GET", "/api/v1/knobs", {**answers.knobs, "knobs": {"alpha": long}})
    terminal()
    text = told("knobs")
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("word") == 40
    assert re.search(r"alpha +0.9 -> 0.7 pending +default 0.5 +0 < .. <= 1 ratio", text)


def test_knobs_can_be_named(rows_of, told, refused, service):
    rows = rows_of(told("knobs", "get", "action", "alpha"))
    assert sorted(row[0] for row in rows[1:]) == ["action", "alpha"]
    assert "did you mean alpha?" in refused("knobs", "get", "alhpa")
    assert "did you mean knobs get alpha?" in refused("knobs", "alpha")
    assert "did you mean knobs set alpha=1?" in refused("knobs", "alpha=1")
    body = json.loads(told("knobs", "get", "alpha", "--json"))
    assert list(body["knobs"]) == ["alpha"]
    assert body["pending"] is True


def accept(service: Any, step: int | None = 437, **changed: tuple[Any, Any]) -> None:
    values = {name: {"old": old, "new": new} for name, (old, new) in changed.items()}
    desired = {"alpha": 0.8, "action": "freeze"}
    body = {"dry_run": False, "applied_at_step": step, "changed": values, "desired": desired, "effective": {}}
    service.answer("PATCH", "/api/v1/knobs", body, 200 if step else 202)


def test_a_change_is_printed_with_its_step(told, service):
    accept(service, alpha=(0.9, 0.8), hot_budget_bytes=(8 << 20, 256 << 20))
    text = told("knobs", "set", "alpha=0.8", "hot_budget_bytes=256MiB", "action=freeze")
    assert text.splitlines() == [
        "alpha 0.9 -> 0.8, took effect at step 437",
        "hot_budget_bytes 8MiB -> 256MiB, took effect at step 437",
        "action is already freeze",
    ]
    request = service.requests[-1]
    assert request["body"] == {"alpha": 0.8, "hot_budget_bytes": 256 << 20, "action": "freeze"}
    assert request["headers"]["if-match"] == '"one"'
    assert request["query"] == ""


def test_a_change_that_is_not_in_effect_yet_is_pending(told, service):
    accept(service, None, alpha=(0.9, 0.8))
    assert told("knobs", "set", "alpha=0.8") == "alpha 0.9 -> 0.8, pending\n"


def test_a_dry_run_is_requested_and_reported_wherever_the_option_stands(told, refused, service):
    accept(service, None, alpha=(0.9, 0.8))
    for words in (
        ["set", "alpha=0.8", "--dry-run"],
        ["set", "--dry-run", "alpha=0.8"],
        ["--dry-run", "set", "alpha=0.8"],
    ):
        assert told("knobs", *words) == "alpha 0.9 -> 0.8, would be accepted\n"
        assert service.requests[-1]["query"] == "dry_run=1"
    assert "--dry-run goes with" in refused("knobs", "--dry-run")


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ("alpha=1", 1),
        ("alpha=1e-3", 0.001),
        ("alpha=true", True),  # for the service to refuse
        ("alpha=nan", "nan"),
        ("alpha=default", None),
        ("alpha= 0.5 ", 0.5),
        ("action=drop", "drop"),
        ('action="drop"', "drop"),
        ("action=a=b", "a=b"),
        ("action=1979-05-27", "1979-05-27"),
        ("action=[1]", "[1]"),
        ("action=1\nx = 2", "1\nx = 2"),
        ("stale_threshold=search", "search"),
        ("stale_threshold=.5", 0.5),
        ("stale_threshold=-5.", -5.0),
        ("stale_threshold=.", "."),
        ("hot_budget_bytes=1024", 1024),
        ("hot_budget_bytes=1.5KiB", 1536),
        ("hot_budget_bytes=2 MB", 2_000_000),
        ("hot_budget_bytes=2g", 2_000_000_000),
        ("hot_budget_bytes=1ti", 1 << 40),
        ("hot_budget_bytes=lots", "lots"),
    ],
)
def test_values_are_read_as_a_configuration_would(told, service, typed, sent):
    accept(service, **{typed.partition("=")[0]: (None, None)})
    told("knobs", "set", typed)
    value = service.requests[-1]["body"][typed.partition("=")[0]]
    assert value == sent
    assert type(value) is type(sent)


@pytest.mark.parametrize("words", [[], ["alpha"], ["alpha="], ["=1"], ["alpha=1", "alpha=2"]])
def test_invalid_changes_are_refused_before_any_request(refused, service, words):
    assert "knobs set takes" in refused("knobs", "set", *words)
    assert service.requests == []


def test_a_change_is_repeated_after_another_client_s_change(told, service, answers):
    left = ["two", "three"]

    def patch(request: dict[str, Any]) -> Any:
        if left:
            service.answer("GET", "/api/v1/knobs", answers.knobs, ETag=f'"{left.pop(0)}"')
            return 412, {"detail": "the knobs have changed since"}, {}
        return 200, {"applied_at_step": 5, "changed": {"alpha": {"old": 0.9, "new": 0.8}}, "desired": {}}, {}

    service.answers["PATCH", "/api/v1/knobs"] = patch
    assert "step 5" in told("knobs", "set", "alpha=0.8")
    tags = [request["headers"]["if-match"] for request in service.requests if request["method"] == "PATCH"]
    assert tags == ['"one"', '"two"', '"three"']


def test_repeating_ends_after_some_attempts_and_at_other_refusals(refused, service):
    service.refuse("PATCH", "/api/v1/knobs", 412, "the knobs have changed since")
    assert "changed since" in refused("knobs", "set", "alpha=0.8", code=1)
    assert service.paths().count("PATCH /api/v1/knobs") == 5
    service.refuse("PATCH", "/api/v1/knobs", 422, "alpha: must be at most 1")
    assert "alpha: must be at most 1" in refused("knobs", "set", "alpha=8", code=2)
    assert service.paths().count("PATCH /api/v1/knobs") == 6


def test_a_reason_and_an_undo_are_sent(told, refused, service):
    accept(service, alpha=(0.9, 0.8))
    told("knobs", "set", "alpha=0.8", "--why", "loss spikes")
    assert service.requests[-1]["query"] == "why=loss+spikes"
    changed = {"alpha": {"old": 0.8, "new": 0.9}}
    body = {"dry_run": False, "applied_at_step": 9, "changed": changed, "desired": {}, "effective": {}}
    service.answer("POST", "/api/v1/knobs/undo", body)
    assert told("knobs", "undo", "12").splitlines() == ["alpha 0.8 -> 0.9, took effect at step 9"]
    assert service.requests[-1]["query"] == "event=12"
    assert "knobs undo takes the id of one event, got alpha" in refused("knobs", "undo", "alpha")
    assert "--why goes with knobs set" in refused("knobs", "--why", "x")
