"""A run that its watchdog acts on: what it does for each rule, once a breach, and that a replay and a resumed run do the same."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.config.watch_rule import parse_rule
from adaptive_rec.errors import ConfigError, NotFiniteError, TrainingError
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.rollback import Rollback
from adaptive_rec.live.telemetry import Event
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.past_rollbacks import rollbacks_past
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.runtime.temporary_knobs import TemporaryKnobs
from adaptive_rec.runtime.watched_rule import WatchedRule
from adaptive_rec.saved import Saved
from tests.dense.test_finite import batches, build
from tests.settings import TINY

SPIKE = "loss > 1.22x its mean of 5: "
"""The losses of the tiny run are those of single batches, which scatter: the 13th is the first that is so far above."""
SAVED = ["checkpoint.every_steps=10", "checkpoint.every_seconds=0", "checkpoint.keep=3"]


def config(*rules: str, more: tuple[str, ...] = ()) -> Config:
    return load_config(None, {}, [*TINY, *SAVED, f"watch.rules={list(rules)}", *more])


def trained(out: Path, settings: Config, **how: Any) -> TrainingRun:
    run = TrainingRun(settings, out, **how)
    for _ in run.events():
        pass
    run.finish()
    return run


def journal(out: Path, *kinds: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] in kinds]


def tables_of(run: TrainingRun) -> list[np.ndarray]:
    store = run.runtime.store
    return [part for table in range(len(store.space.tables)) for part in store.contents.export(table)]


# A rule ----------------------------------------------------------------------------------------------------------------


def broken_at(text: str, values: list[float], window_steps: int = 10) -> list[int]:
    """The steps, 1, 2, ..., at which a breach begins, with and without a save between any two values."""
    rule, resumed, found = WatchedRule(parse_rule(text)), WatchedRule(parse_rule(text)), []
    for step, value in enumerate(values, start=1):
        breach = rule.see(step, value, window_steps)
        saved = json.loads(json.dumps(resumed.state()))
        resumed = WatchedRule(parse_rule(text))
        resumed.set_state(part := Saved(saved))
        part.finish()
        assert (resumed.see(step, value, window_steps) is None) == (breach is None)
        found += [step] if breach else []
    return found


@pytest.mark.parametrize(
    ("text", "values", "steps"),
    [
        ("loss > 1: warn", [2, 3, 0.5, 2, 1, 2], [1, 4, 6]),
        ("loss > 1 for 3 reports: warn", [2, 2, 1, 2, 2, 2, 2], [6]),
        ("loss > 1 for 2 windows: warn", [1, 2, 2, 2, 2, 2, 2, 2], [7]),
        ("loss < 1: warn", [2, np.nan, 0.5, np.nan, 0.5], [3]),
        ("auc falls 0.1 below its best: warn", [0.5, 0.7, 0.61, 0.59, 0.55, 0.75, 0.6], [4, 7]),
        ("logloss rises 0.1 above its best: warn", [0.5, 0.4, 0.49, 0.51], [4]),
        ("loss > 2x its mean of 3: warn", [9, 1, 1, 1, 3, 3, 1, 2, 3], [5, 9]),
        ("auc is nan: warn", [0.5, np.nan, np.nan, 0.5, np.inf], [2, 5]),
    ],
)
def test_a_breach_begins_once_and_again_after_a_sound_value(text: str, values: list[float], steps: list[int]) -> None:
    window = 3 if "windows" in text else 10
    assert broken_at(text, values, window) == steps


# Actions ---------------------------------------------------------------------------------------------------------------


def test_rules_warn_save_and_stop_and_the_journal_says_why(tmp_path: Path) -> None:
    rules = (
        "loss < 100: warn",
        "loss < 90 for 4 reports: checkpoint",
        f"{SPIKE}stop",
        "disk_free > 1B for 6 reports: warn",
    )
    run = trained(tmp_path / "run", config(*rules, more=("checkpoint.every_steps=0",)))
    told = [(line["step"], line["details"]["action"], line["details"]["rule"]) for line in journal(run.out, "watchdog")]
    stopped = run.runtime.step_number
    assert told == [
        (2, "warn", rules[0]),
        (5, "checkpoint", rules[1]),
        (7, "warn", rules[3]),
        (stopped, "stop", rules[2]),
    ]
    assert 7 < stopped < 60
    assert [line["step"] for line in journal(run.out, "saving")] == [5, stopped]
    (end,) = journal(run.out, "watchdog")[-1:]
    assert end["details"]["breach_step"] == stopped - 1 == end["details"]["sound_step"] + 1
    assert f"; loss is {end['details']['value']:.6g}, the mean of 5 before was " in end["text"]
    assert journal(run.out, "stopping")[0]["details"]["why"] == f"rule {rules[2]}"


def test_a_rule_pauses_until_somebody_resumes(tmp_path: Path) -> None:
    run = TrainingRun(config("loss < 90 for 4 reports: pause"), tmp_path / "run")

    def resume() -> None:
        while run.runtime.state.phase != "paused":
            time.sleep(0.001)
        run.runtime.mailbox.send(Command("resume"))

    helper = threading.Thread(target=resume, daemon=True)
    helper.start()
    for _ in run.events():
        pass
    helper.join(10)
    assert run.runtime.step_number == 60
    assert [(line["step"], line["kind"]) for line in journal(run.out, "paused", "resumed")] == [
        (5, "paused"),
        (5, "resumed"),
    ]


def test_what_the_last_report_shows_is_in_the_journal(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", config("loss < 90 for 60 reports: warn", "loss < 80 for 60 reports: stop"))
    assert [line["details"]["action"] for line in journal(run.out, "watchdog")] == ["warn", "stop"]


def test_a_resumed_run_acts_as_one_that_was_never_stopped(tmp_path: Path) -> None:
    rules = ("loss rises 0.2 above its best: warn", "loss > 1.2x its mean of 7: warn", "loss < 90 for 33 reports: warn")
    whole = trained(tmp_path / "whole", config(*rules))
    trained(tmp_path / "parts", config(*rules, more=("run.steps=25",)))
    trained(tmp_path / "parts", config(*rules), resume=True)
    told = [(line["step"], line["text"]) for line in journal(whole.out, "watchdog")]
    assert len(told) > 4
    assert told == [(line["step"], line["text"]) for line in journal(tmp_path / "parts", "watchdog")]


# Rollbacks -------------------------------------------------------------------------------------------------------------


STEPS = pytest.mark.parametrize("steps", [30, pytest.param(60, marks=pytest.mark.slow)])


@STEPS
def test_a_rollback_and_its_replay_end_with_the_same_bits(tmp_path: Path, steps: int) -> None:
    rule = f"{SPIKE}rollback skipping data with lr_factor*=0.5"
    run = trained(tmp_path / "run", config(rule, more=("watch.max_rollbacks=20", f"run.steps={steps}")))
    back, knobs = journal(run.out, "rolled_back"), journal(run.out, "knobs")
    broken = journal(run.out, "watchdog")
    assert len(back) >= 1
    assert len(back) == len(broken) == len(knobs)
    for number, (line, breach) in enumerate(zip(back, broken, strict=True)):
        assert line["step"] == breach["details"]["to_step"] <= breach["details"]["sound_step"]
        assert knobs[number]["details"]["changed"]["lr_factor"]["new"] == 0.5 ** (number + 1)
        assert line["details"]["why"] == f"rule {rule}"
    again = trained(tmp_path / "again", run.config, replay=run.out)
    assert not journal(again.out, "watchdog", "rolled_back")
    assert all(np.array_equal(a, b) for a, b in zip(tables_of(run), tables_of(again), strict=True))
    plain = trained(tmp_path / "plain", config(more=(f"run.steps={run.runtime.step_number}",)))
    assert any(not np.array_equal(a, b) for a, b in zip(tables_of(run), tables_of(plain), strict=True))


@pytest.mark.slow
@STEPS
def test_knobs_that_are_changed_for_some_steps_are_then_as_before(tmp_path: Path, steps: int) -> None:
    rule = f"{SPIKE}rollback skipping data with lr_factor*=0.5, clip_norm=3 for 5 steps"
    run = trained(tmp_path / "run", config(rule, more=("watch.max_rollbacks=20", f"run.steps={steps}")))
    back = journal(run.out, "rolled_back")
    first, *_, last = journal(run.out, "knobs")
    assert {name: each["old"] for name, each in first["details"]["changed"].items()} == {"lr_factor": 1.0, "clip_norm": 0.0}
    assert {name: each["new"] for name, each in last["details"]["changed"].items()} == {"lr_factor": 1.0, "clip_norm": 0.0}
    assert 5 <= last["step"] - back[-1]["step"] <= 5 + run.config.knobs.report_every, "by the first report after 5 steps"
    assert last["details"]["why"] == "the steps for which a rule changed it are over"
    again = trained(tmp_path / "again", run.config, replay=run.out)
    assert all(np.array_equal(a, b) for a, b in zip(tables_of(run), tables_of(again), strict=True))
    # And where the run ends and is resumed meanwhile.
    shorter = config(rule, more=("watch.max_rollbacks=20", f"run.steps={back[0]['details']['from_step']}"))
    assert trained(tmp_path / "resumed", shorter).runtime.knobs.lr_factor < 1
    ended = trained(tmp_path / "resumed", run.config, resume=True)
    assert ended.runtime.knobs.lr_factor == 1
    assert all(np.array_equal(a, b) for a, b in zip(tables_of(run), tables_of(ended), strict=True))


def test_a_knob_that_somebody_has_changed_meanwhile_stays() -> None:
    rollback = Rollback(Command("rollback", note={"temporary": {}}), "step-10", 12, {})
    note = TemporaryKnobs(rollback).note_of({"lr_factor": 0.5}, Knobs(), until_step=14)
    lowered = Knobs().changed({"lr_factor": 0.5})
    new = TemporaryKnobs(Rollback(Command("rollback", note={"temporary": note}), "step-10", 12, {}))
    assert new.note_of({"lr_factor": 0.25}, lowered, 20)["lr_factor"]["before"] == 1.0
    assert new.note_of({"lr_factor": 0.15}, Knobs().changed({"lr_factor": 0.3}), 20)["lr_factor"]["before"] == 0.3
    assert new.over(13, lowered) == {}
    assert new.over(14, Knobs().changed({"lr_factor": 0.3})) == {}
    assert new.over(15, lowered) == {}, "once"


def test_a_rollback_just_as_a_knobs_steps_are_over_takes_it_back_later() -> None:
    note = {"lr_factor": {"until_step": 14, "before": 1.0, "now": 0.5}}
    temporary = TemporaryKnobs(Rollback(Command("rollback", note={"temporary": note}), "step-10", 12, {}))
    lowered = Knobs().changed({"lr_factor": 0.5})
    assert temporary.over(14, lowered) == {"lr_factor": 1.0}
    assert temporary.over(14, lowered) == {}, "once"
    again = temporary.note_of({"lr_factor": 0.25}, lowered, 20)  # before the knob has gone back
    assert again["lr_factor"] == {"until_step": 20, "before": 1.0, "now": 0.25}
    assert temporary.over(15, Knobs()) == {}
    assert temporary.note_of({"lr_factor": 0.5}, Knobs().changed({"lr_factor": 0.8}), 20)["lr_factor"]["before"] == 0.8


def test_a_rollback_to_a_checkpoint_in_which_a_knob_was_on_its_way_back_sets_it_for_all_its_steps() -> None:
    first, lowered = {"lr_factor": {"until_step": 14, "before": 1.0, "now": 0.5}}, Knobs().changed({"lr_factor": 0.5})
    temporary = TemporaryKnobs(Rollback(Command("rollback", note={"temporary": first}), "step-10", 12, {}))
    temporary.over(14, lowered)
    assert temporary.still_returning(lowered) == {"lr_factor": 1.0}, "a signal came before it went back"
    assert temporary.still_returning(Knobs()) == {}, "it has gone back"
    saved, second = json.loads(json.dumps(temporary.state())), {"lr_factor": {**first["lr_factor"], "until_step": 24}}
    later = TemporaryKnobs(Rollback(Command("rollback", note={"temporary": second}), "step-15", 19, {}))
    later.set_state(list(Saved({"temporary": saved}).parts("temporary")))
    assert (later.still_returning(lowered), later.over(20, lowered)) == ({}, {})
    assert later.over(24, lowered) == {"lr_factor": 1.0}


def test_the_same_steps_are_rolled_back_so_often_and_no_more(tmp_path: Path) -> None:
    """A rollback that changes nothing meets the same batch again. A new process counts what its predecessors did."""
    settings = config(f"{SPIKE}rollback", more=("watch.max_rollbacks=2",))
    with pytest.raises(TrainingError, match=r"no rollback, as rules have rolled back the steps after \d+ 2 times"):
        trained(tmp_path / "run", settings)
    assert [line["details"]["action"] for line in journal(tmp_path / "run", "watchdog")] == [
        "rollback",
        "rollback",
        "fail",
    ]
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    with pytest.raises(TrainingError, match="2 times"):
        trained(tmp_path / "run", settings, resume=True)
    assert [line["details"]["action"] for line in journal(tmp_path / "run", "watchdog")][3:] == ["fail"]
    assert saved == sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()), (
        "none of the state to leave"
    )


def test_a_rollback_that_a_kill_or_a_refusal_prevented_does_not_count(tmp_path: Path) -> None:
    path, broken = tmp_path / "events.jsonl", {"step": 31, "kind": "watchdog", "details": {"action": "rollback"}}
    started, back = {"step": 20, "kind": "started", "details": {}}, {"step": 20, "kind": "rolled_back", "details": {}}
    failed = {"step": 32, "kind": "watchdog", "details": {"action": "fail"}}

    def count(*events: dict[str, Any], step: int = 20) -> int:
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        return rollbacks_past(path, step)

    assert count(started, broken, started, broken, back, broken) == 1, "the first was killed, the last is under way"
    assert count(started, broken, failed, started) == 0, "refused"
    assert count(started, back, broken, back, back) == 1, "others were requested by hand"
    assert count(broken, back, broken, back) == 2
    knobs, saving, saved = ({"step": 20, "kind": kind, "details": {}} for kind in ("knobs", "saving", "checkpoint"))
    assert count(started, broken, back, knobs, saving, started) == 0, "killed before its knobs were saved"
    assert count(started, broken, back, knobs, saving, saved, started) == 1
    assert count(started, broken, back, knobs, saving, started, broken, back, knobs, saving, saved, started) == 1
    assert count(broken, back, step=31) == 0


def test_a_run_without_a_checkpoint_to_go_back_to_fails_with_the_reason(tmp_path: Path) -> None:
    from_the_start = "no rollback, as its condition has held from the start and no checkpoint is that old"
    with pytest.raises(TrainingError, match=from_the_start):
        trained(tmp_path / "run", config("loss < 90: rollback"))
    with pytest.raises(TrainingError, match=from_the_start):
        trained(tmp_path / "late", config("loss < 90 for 3 reports: rollback"))
    with pytest.raises(
        ConfigError, match="must not roll back where the run writes no checkpoints, got 'loss < 90: rollback'"
    ):
        assemble(config("loss < 90: rollback"))
    for policy in ("nonsense", "fae"):
        rule = f"loss < 90: rollback with policy={policy}"
        with pytest.raises(ConfigError, match=f"must change knobs to what the run can take, got '{rule}': .*{policy}"):
            trained(tmp_path / policy, config(rule))
    followed = ("knobs.policy=fae",)
    with pytest.raises(ConfigError, match="must not skip data where the policy arranges the stream"):
        TrainingRun(config("loss < 90: rollback skipping data", more=followed), tmp_path / "fae")


# A loss that is no number ----------------------------------------------------------------------------------------------


def watched(memory_source: Any, out: Path, rule: str, late: int | None = None) -> Any:
    """A run of 20 batches whose 13th has an infinite feature."""
    options = RunOptions(out / "checkpoints", out / "events.jsonl")
    rules = (
        f"watch.rules=['{rule}']",
        "checkpoint.every_steps=4",
        "checkpoint.every_seconds=0",
        "knobs.report_every=3",
    )
    return build(memory_source, batches(20, {13: np.inf}), *rules, late=late, options=options)


@pytest.mark.parametrize("late", [None, 1])
def test_a_rollback_comes_before_the_end_that_a_loss_that_is_no_number_is(
    memory_source: Any, tmp_path: Path, late: int | None
) -> None:
    runtime = watched(memory_source, tmp_path, "loss is nan: rollback skipping data", late)
    found = [report for report in runtime.run() if isinstance(report, Event)]
    assert runtime.state.rollback.checkpoint == "step-000000012"
    assert runtime.state.rollback.skip_to.offset >= 13
    (event,) = [event for event in found if event.kind == "watchdog"]
    assert event.details["action"] == "rollback"
    assert (
        late or "dense feature 1 of sample 2 is no finite number" in event.text
    )  # a device's report comes before that is known


def test_a_rule_leaves_the_batch_out_and_then_acts(memory_source: Any, tmp_path: Path) -> None:
    runtime = watched(memory_source, tmp_path, "loss is nan: stop")
    kinds = [report.kind for report in runtime.run() if isinstance(report, Event)]
    assert runtime.step_number == 13
    assert [kind for kind in kinds if kind != "checkpoint"][-3:] == ["nan", "watchdog", "stopping"]


@pytest.mark.parametrize("late", [None, 1])
def test_a_warning_alone_does_not_keep_the_run_from_its_end(
    memory_source: Any, tmp_path: Path, late: int | None
) -> None:
    runtime, found = watched(memory_source, tmp_path, "loss is nan: warn", late), []
    with pytest.raises(NotFiniteError):
        found.extend(runtime.run())
    assert [
        report.details["action"] for report in found if isinstance(report, Event) and report.kind == "watchdog"
    ] == ["warn"]


def test_a_device_cannot_leave_a_batch_out(memory_source: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="`loss is nan` must warn or roll back on a device, .* got 'loss is nan: pause'"
    ):
        watched(memory_source, tmp_path, "loss is nan: pause", late=1)
