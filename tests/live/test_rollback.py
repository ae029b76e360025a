"""A real run that is sent back to a checkpoint over HTTP and from a shell: address, tokens, sidecar and page stay."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from adaptive_rec.cli import main

from .conftest import Job, steer, wait_for

pytestmark = pytest.mark.alone


def cli(job: Job, *words: str) -> int:
    """The exit code of a command that is given in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", job.environment["XDG_RUNTIME_DIR"])
        return main([*words, "--run", str(job.process.pid)])


def refuses_what_breaks_a_rule(job: Job) -> None:
    with job.client() as client:
        for body, name in (
            ({"skip": True}, "skip"), ({"to_step": "5"}, "to_step"), ({"to_step": -1}, "to_step"), ({"why": "x" * 501}, "why"),
            ({"knobs": {"alpha": [1]}}, "alpha"), ({"knobs": {"alpha": 7}}, "alpha"), ({"knobs": {"alpa": 1}}, "alpa"),
            ({"checkpoint": "a", "to_step": 5}, "checkpoint"), ({"skip_data": None}, "skip_data"), ([], "body"),
        ):  # fmt: skip
            answer = client.post("/api/v1/control/rollback", json=body)
            assert answer.status_code == 422, (body, answer.text)
            assert name in answer.text, (body, answer.text)
        none_yet = client.post("/api/v1/control/rollback")
        assert none_yet.status_code == 409
        assert "must have a checkpoint to go back to" in none_yet.json()["detail"]
    with job.client(token="read_token") as reader:
        assert reader.post("/api/v1/control/rollback").status_code == 403


def test_a_run_goes_back_over_http_and_from_a_shell(
    start: Callable[..., Job], capsys: pytest.CaptureFixture[str]
) -> None:
    job = start("--set=checkpoint.every_seconds=0").wait_until_served()
    refuses_what_breaks_a_rule(job)
    with job.client() as client:

        def status() -> Any:
            return client.get("/api/v1/status").json()

        def back(**body: Any) -> Any:
            answer = client.post("/api/v1/control/rollback", json=body)
            wait_for(lambda: job.events("left_out") and status()["phase"] in ("training", "paused"))
            return answer

        def effective(*names: str) -> list[Any]:
            """Return knobs in effect, none while a change is pending."""
            seen = client.get("/api/v1/knobs").json()
            return [] if seen["pending"] else [seen["knobs"][name]["effective"] for name in names]

        sidecar, about = job.sidecar(), dict(job.about)
        saved = steer(client, "checkpoint")
        wait_for(lambda: status()["step"] > saved["step"] + 20)
        answer = back(skip_data=True, knobs={"alpha": 0.7, "lr_factor": 0.5}, why="a spike")
        assert answer.status_code in (200, 202), answer.text
        [event] = job.events("rolled_back")
        assert event["text"].endswith(": a spike")
        assert (event["step"], event["details"]["checkpoint"]) == (saved["step"], saved["checkpoint"])
        [left_out] = job.events("left_out")
        assert left_out["details"]["samples"] == 32 * (event["details"]["from_step"] - event["step"])
        wait_for(lambda: effective("alpha", "lr_factor") == [0.7, 0.5])
        changed = client.post("/api/v1/knobs/undo").json()["changed"]
        assert set(changed) == {"alpha", "lr_factor"}, "what the rollback changed is the last change in effect"

        steer(client, "pause")
        stands = status()["step"]
        assert cli(job, "rollback", "--to", str(event["step"]), "--json") == 0, capsys.readouterr().err
        wait_for(lambda: len(job.events("rolled_back")) == 2)
        wait_for(lambda: [status()[name] for name in ("phase", "step")] == ["paused", event["step"]])
        assert job.events("rolled_back")[1]["details"]["from_step"] == stands
        wait_for(lambda: effective("alpha") == [0.7])  # the undo was after the checkpoint
        steps = client.get("/api/v1/stats/history").json()["columns"]["step"]
        assert steps == sorted(set(steps))
        assert steps[-1] <= event["step"], "what came after it is not shown"

        for words, text in (
            (["--to", "step-999999999"], "checkpoint must be one of this run's"),
            (["--to", "yesterday"], "--to must be a step or the name of a checkpoint"),
            (["--set", "alpha=7"], "alpha"),
            (["--set", "policy=os:system"], "policy"),
        ):
            capsys.readouterr()
            assert cli(job, "rollback", *words) == 2
            assert text in capsys.readouterr().err
        steer(client, "resume")
        stands = event["step"]
        wait_for(lambda: status()["step"] > stands + 20)
        assert (job.sidecar(), json.loads(job.runtime_file.read_text())) == (sidecar, about)
        placed = client.get("/api/v1/placement").json()
        assert sum(table["hot"] for table in placed["tables"]) > 0
        assert client.post("/api/v1/control/stop").status_code in (200, 202)
    assert job.process.wait(300) == 0, job.log.read_text()
    assert json.loads((job.out / "summary.json").read_text())["resumed_at_step"] == stands
    assert "went back from step" in job.log.read_text()
    assert (job.out / "report.html").exists()
