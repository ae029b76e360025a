"""A rule pauses a run that no command can reach: it ends with a checkpoint and an exit code of its own, and is resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.errors import SUSPENDED
from adaptive_rec.live.life import is_suspended
from adaptive_rec.run.follower import Follower
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.system.group import Group
from adaptive_rec.system.late_threads import LateThreads
from tests.finished_runs import settings
from tests.run.spoilt_commands import serve
from tests.runtime.test_watchdog import config

RULE = "loss < 90 for 3 reports: pause"
"""Broken at the third report, and for good: a run that is resumed acts on it no more."""
WARNS = RULE.replace("pause", "warn")


def train(out: Path, rule: str, *words: str) -> int:
    given = [f"--set={each}" for each in (*settings("plain"), f"watch.rules=['{rule}']", "run.precision=float64")]
    return main(["train", "tiny", "--no-serve", f"--out={out}", *given, *words])


def resume(out: Path, *words: str) -> int:
    return main(["train", "--resume", "--no-serve", f"--out={out}", *words])


def journal(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]


def test_a_suspended_run_says_why_and_goes_on_bit_by_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, plain, again = tmp_path / "run", tmp_path / "plain", tmp_path / "again"
    assert train(run, RULE, "--dry-run") == 0
    assert not run.exists()
    assert train(run, RULE) == SUSPENDED == 7
    said = capsys.readouterr()
    assert f"suspended by rule {RULE}: train --resume --out {run} goes on\n" in said.err
    answers = serve(run)
    assert '"phase":"suspended"' in answers
    assert f'"error":"suspended by rule {RULE}; train --resume goes on"' in answers
    assert is_suspended(run / "events.jsonl")
    events = journal(run)
    kinds = [event["kind"] for event in events if event["kind"] in ("started", "watchdog", "stopping", "checkpoint", "suspended")]
    assert kinds == ["started", "watchdog", "stopping", "checkpoint", "suspended"]
    (stopping,) = (event for event in events if event["kind"] == "stopping")
    assert stopping["details"]["why"] == f"rule {RULE}"
    assert next(event["details"]["action"] for event in events if event["kind"] == "watchdog") == "pause"
    step = json.loads((run / "summary.json").read_text())["steps"]
    assert 10 <= step < 40
    assert resume(run) == 0
    assert not is_suspended(run / "events.jsonl")
    assert [event["kind"] for event in journal(run)].count("suspended") == 1
    assert train(plain, WARNS) == 0
    capsys.readouterr()
    assert main(["checkpoint", "diff", str(run), str(plain)]) == 0, capsys.readouterr().out
    assert main(["train", "--replay", str(run), "--no-serve", f"--out={again}"]) == 0
    assert main(["checkpoint", "diff", str(run), str(again)]) == 0, capsys.readouterr().out
    assert resume(run) == 0, "nothing is left to do"


def test_a_rule_that_may_not_roll_back_any_more_suspends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also after a rollback, which has made another runtime."""
    run = tmp_path / "run"
    rule = "hot_lookup_ratio > 0.1: rollback"
    more = ("--set=watch.at_limit=pause", "--set=watch.max_rollbacks=1", "--set=checkpoint.every_steps=5")
    assert train(run, rule, *more) == SUSPENDED
    kinds = [event["kind"] for event in journal(run)]
    assert kinds.count("rolled_back") == 1
    assert kinds[-1] == "suspended"
    assert f"suspended by rule {rule}" in capsys.readouterr().err
    assert resume(run) == 0


def test_ranks_are_suspended_at_one_step(tmp_path: Path) -> None:
    steps: dict[int, int] = {}

    def of_rank(group: Group) -> None:
        out, rules = tmp_path / "run", config(RULE, "loss < 90 for 3 reports: rollback", more=("run.steps=30",))
        if group.rank:
            follower = Follower(rules, out, False, (), group)
            follower.train()
            steps[group.rank] = follower.present.state.step
            return
        run = TrainingRun(rules, out, group=group)
        run.runtime.state.pause_as_saved(reachable=group.tell(False))
        list(run.events())
        run.finish()
        assert run.suspended_by == f"rule {RULE}"
        steps[0] = run.runtime.step_number

    LateThreads.train(2, of_rank)
    assert steps[0] == steps[1] < 30
    assert is_suspended(tmp_path / "run" / "events.jsonl")
    actions = [event["details"]["action"] for event in journal(tmp_path / "run") if event["kind"] == "watchdog"]
    assert actions == ["pause", "warn"], "where a run ends, other rules only warn"
