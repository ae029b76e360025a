"""Commands that a run cannot carry out soon are answered at once, with the reason; an undo takes the newest change."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.stopwatch import Stopwatch

URL = "/api/v1/knobs"


def busy(run: Any, phase: str, seconds: float, **more: Any) -> None:
    """Put a phase on the board that began some seconds ago, without a step boundary to come."""
    run.at_boundary = False
    run.board(phase, None, phase_since=time.monotonic() - seconds, **more)


def change(client: Any, values: dict[str, Any]) -> Any:
    return client.patch(URL, json=values, headers={"If-Match": "*"})


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("evaluating", "the run has been evaluating for"),
        ("starting", "the run has been starting for"),
        ("checkpointing", "the run has been copying a checkpoint for"),
    ],
)
def test_a_busy_run_says_at_once_why_a_change_waits(client: Any, run: Any, phase: str, words: str) -> None:
    busy(run, phase, 12)
    watch = Stopwatch()
    answer = change(client, {"alpha": 0.8})
    assert watch.seconds < 1
    assert (answer.status_code, answer.json()["pending"], answer.json()["applied_at_step"]) == (202, True, None)
    assert re.fullmatch(rf"{words} 1[2-9] s; the change takes effect at the next step boundary", answer.json()["reason"])
    shown = client.get(URL).json()
    assert shown["pending"]
    assert re.fullmatch(rf"{words} 1[2-9] s; changes take effect at the next step boundary", shown["reason"])


def test_a_short_evaluation_is_waited_for(client: Any, view: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptive_rec.service.waiting.REPLY_SECONDS", 0.3)
    busy(run, "evaluating", 0.0)
    begun = time.monotonic()
    assert change(client, {"alpha": 0.8}).status_code == 202
    assert time.monotonic() - begun >= 0.3


def test_what_is_wrong_is_refused_while_the_run_is_busy(client: Any, run: Any) -> None:
    busy(run, "evaluating", 12)
    assert change(client, {"alpha": 8}).status_code == 422
    assert client.get(URL).json()["pending"] is False


def test_a_command_waits_for_the_trainer_to_accept_it(
    client: Any, view: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer comes at once where the trainer accepts, long before it is waited for in vain, also on a busy machine."""
    busy(run, "evaluating", 12)
    for accepted, patience, least in ((True, 30.0, 0.0), (False, 0.3, 0.3)):
        monkeypatch.setattr("adaptive_rec.service.waiting.REPLY_SECONDS", patience)
        view.link.answers = lambda message, accepted=accepted: (
            [{"id": message["id"], "accepted": {}}] if accepted else []
        )
        begun = time.monotonic()
        answer = client.post("/api/v1/control/pause")
        assert (answer.status_code, answer.json()["pending"]) == (202, True)
        assert answer.json()["reason"].startswith("the run has been evaluating for 1")
        assert least <= time.monotonic() - begun < 15
    view.link.answers = lambda message: [{"id": message["id"], "status": 409, "error": "the run is finishing"}]
    assert client.post("/api/v1/control/pause").status_code == 409


def test_a_rollback_reaches_the_trainer_with_its_reason(client: Any, view: Any) -> None:
    sent: list[dict[str, Any]] = []

    def refuse(message: dict[str, Any]) -> list[dict[str, Any]]:
        sent.append(message)
        return [{"id": message["id"], "status": 409, "error": "there is no checkpoint"}]

    view.link.answers = refuse
    body = {"checkpoint": None, "to_step": 5, "skip_data": True, "knobs": {"alpha": 0.5}, "why": "a spike"}
    assert client.post("/api/v1/control/rollback", json=body).json()["detail"] == "there is no checkpoint"
    assert sent == [{"id": sent[0]["id"], "command": "rollback", **body}]
    assert client.post("/api/v1/control/rollback", json={"knobs": {"alpha": [1]}}).status_code == 422


def test_a_long_first_step_may_be_compiling(client: Any, view: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run.step = 0
    busy(run, "training", 60, began_at_step=0)
    monkeypatch.setattr("adaptive_rec.service.waiting.REPLY_SECONDS", 0.1)
    monkeypatch.setattr(view, "pulse", lambda: (0, time.monotonic() - 9))
    reason = change(client, {"alpha": 0.8}).json()["reason"]
    assert re.search(r"the first step has been under way for (9|1\d) s, kernels may be compiled", reason)
    monkeypatch.setattr(view, "pulse", lambda: (7, time.monotonic() - 9))
    assert re.match(r"step 8 has been under way for (9|1\d) s;", change(client, {"alpha": 0.7}).json()["reason"])


def test_undo_takes_the_pending_changes_from_the_newest_on_then_those_in_effect(
    client: Any, view: Any, run: Any
) -> None:
    assert change(client, {"alpha": 0.8}).status_code == 200
    busy(run, "evaluating", 12, knobs=run.knobs)
    assert change(client, {"decay": 0.5}).status_code == 202
    assert change(client, {"target_skip_ratio": 0.2}).status_code == 202
    undone = [client.post(f"{URL}/undo") for _ in range(3)]
    assert [answer.status_code for answer in undone] == [202, 202, 202]
    assert [list(answer.json()["changed"]) for answer in undone] == [["target_skip_ratio"], ["decay"], ["alpha"]]
    assert client.get(URL).json()["knobs"]["alpha"]["desired"] == 0.9
    refused = client.post(f"{URL}/undo")
    assert (refused.status_code, refused.json()["detail"]) == (409, "there is no change of knobs left to undo")
    for message in run.boundary():
        view.link.take(message)
    assert client.get(URL).json()["pending"] is False
    events = client.get("/api/v1/events?kind=knobs").json()["events"]
    assert [each["details"].get("undoes") for each in events] == [None, None, None, 3, 2, 1]
    assert client.post(f"{URL}/undo").status_code == 409
