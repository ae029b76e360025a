"""A run that goes back to a checkpoint of its own: the same bits as a run that never left it, and as its replay."""

from __future__ import annotations

import gc
import json
import os
import weakref
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.batch import Position
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.rollback_target import newest_up_to
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.left_out import WithoutParts
from adaptive_rec.data.synthetic import SyntheticSource
from adaptive_rec.embedding.disk import row_log
from adaptive_rec.errors import AdaptiveRecError, ConfigError, ConflictError, DataError
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.rollback import rollback_command
from adaptive_rec.live.telemetry import Event, Snapshot
from adaptive_rec.run import rollback
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.runtime.loop import Runtime
from tests import forked
from tests.checkpoint.test_resume_run import assert_same_end, begin, go_on, steered
from tests.run import killed_after_answer

EVERY_5 = "checkpoint.every_steps=5"
SHORT = "run.steps=24"
DISK_ROWS = ["run.host_memory=1MiB", "knobs.hot_budget_bytes=9000", "checkpoint.keep=9"]
RAW = ["data.ids=raw", "knobs.evict_ratio=0.2", "data.max_table_rows=300", "knobs.admit_after=2"]


class Client:
    """Sends commands at steps, once each, and keeps the answers."""

    def __init__(self, **at: Mapping[str, Any] | list[Command]) -> None:
        self.answers: list[Any] = []
        self._left = {int(name.removeprefix("step")): what for name, what in at.items()}

    def train(self, run: TrainingRun) -> list[Event]:
        events = []
        for report in run.events():
            if isinstance(report, Event):
                events.append(report)
            elif isinstance(report, Snapshot) and report.step == run.runtime.step_number and report.step in self._left:
                self.send(run, self._left.pop(report.step))
        return events

    def send(self, run: TrainingRun, what: Mapping[str, Any] | list[Command]) -> None:
        if isinstance(what, Mapping):
            run.present.mailbox.send(rollback_command(**what, answer=self.answers.append))
        else:
            for command in what:
                run.present.mailbox.send(Command(command.verb, command.values, self.answers.append, command.note))


def kinds(events: list[Event], *wanted: str) -> list[tuple[str, int]]:
    return [(event.kind, event.step) for event in events if event.kind in wanted]


def replay(run: Path, out: Path) -> TrainingRun:
    again = TrainingRun(load_config(str(run / "config.toml"), {}), out, replay=run)
    list(again.events())
    again.finish()
    return again


@pytest.mark.slow
@pytest.mark.parametrize("where", [[], DISK_ROWS], ids=["memory", "disk"])
def test_a_run_that_went_back_ends_as_one_that_never_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: list[str]
) -> None:
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)
    straight = begin(tmp_path / "straight", *where)
    list(straight.events())
    straight.finish()
    client = Client(step8={"to_step": 5}, step23={"checkpoint": "step-000000010"}, step31={})
    run = begin(tmp_path / "run", EVERY_5, *where)
    events = client.train(run)
    run.finish()

    assert_same_end(tmp_path / "straight", tmp_path / "run")
    assert kinds(events, "rolled_back", "warning") == [("rolled_back", 5), ("rolled_back", 10), ("rolled_back", 30)]
    assert [(each["checkpoint"], each["from_step"]) for each in client.answers] == [
        ("step-000000005", 9), ("step-000000010", 24), ("step-000000030", 32),
    ]  # fmt: skip
    removed = [event.details["removed"] for event in events if event.kind == "rolled_back"]
    assert removed == [[], ["step-000000015", "step-000000020"], []]


@pytest.mark.parametrize(
    ("settings", "depth"),
    [
        pytest.param([], 6, id="rows", marks=pytest.mark.slow),
        pytest.param(RAW, 0, id="raw", marks=pytest.mark.slow),
        pytest.param([*RAW, *DISK_ROWS], 6, id="raw-disk"),
    ],
)
def test_the_replay_leaves_out_the_same_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str], depth: int
) -> None:
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)
    steps = [EVERY_5, "run.steps=0", "data.synthetic.samples=3200", f"knobs.prefetch_depth={depth}", *settings]
    client = Client(
        step3=[Command("change_knobs", {"alpha": 0.2})],
        step12=[Command("change_knobs", {"alpha": 0.9}), Command("reclassify")],
        step18={"to_step": 14, "skip_data": True, "knobs": {"lr_factor": 0.5}, "why": "a spike"},
        step27={"to_step": 19, "skip_data": True},
    )
    run = begin(tmp_path / "run", *steps)
    whole = run.runtime.steps_total
    events = client.train(run)
    run.finish()

    assert [answer for answer in client.answers if isinstance(answer, Exception)] == []
    left_out = [event for event in events if event.kind == "left_out"]
    assert [(event.step, event.details["samples"]) for event in left_out] == [(10, 9 * 64), (15, 13 * 64)]
    changed = [event.details for event in events if event.kind == "knobs" and "lr_factor" in event.details["changed"]]
    assert [each["why"] for each in changed] == ["a spike"]
    assert run.runtime.step_number == run.runtime.steps_total == whole - 9 - 13
    assert run.runtime.tally.counters.samples_seen == 64 * (whole - 9 - 13), "what is left out is not read"

    once = replay(tmp_path / "run", tmp_path / "once")
    assert_same_end(tmp_path / "run", tmp_path / "once")
    assert once.runtime.steps_total == whole - 9 - 13
    replay(tmp_path / "once", tmp_path / "twice")
    assert_same_end(tmp_path / "run", tmp_path / "twice")


def test_a_paused_run_stays_paused_and_commands_wait(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", EVERY_5, SHORT)
    client = Client()
    seen: list[tuple[str, int, bool]] = []
    for report in run.events():
        if isinstance(report, Snapshot) and report.step == 12 and not seen:
            client.send(run, [Command("pause")])
        if isinstance(report, Event) and report.kind == "paused":
            seen.append((report.kind, report.step, run.runtime.state.paused))
            if len(seen) == 1:
                back = rollback_command(to_step=7).values
                client.send(
                    run, [Command("rollback", back), Command("change_knobs", {"alpha": 0.6}), Command("resume")]
                )
    assert seen == [("paused", 13, True), ("paused", 5, True)]
    assert [answer["step"] for answer in client.answers] == [13, 5, 5, 5]
    assert run.present.mailbox.desired.alpha == run.runtime.knobs.alpha == 0.6


REFUSED = [
    ({"checkpoint": "step-000000007"}, ConfigError, "checkpoint must be one of this run's .*, got 'step-000000007'"),
    ({"checkpoint": "../../other"}, ConfigError, "checkpoint must be one of this run's"),
    ({"to_step": 4}, ConfigError, "to_step must be 5 or more, the step of the oldest checkpoint, got 4"),
    ({"knobs": {"alpha": 7}}, ConfigError, "knobs.alpha"),
    ({"knobs": {"policy": "fae"}}, ConflictError, "fae arranges the stream"),
]


def test_what_cannot_be_is_refused_and_training_goes_on_unharmed(tmp_path: Path) -> None:
    straight = begin(tmp_path / "straight", SHORT)
    list(straight.events())
    straight.finish()
    run = begin(tmp_path / "run", EVERY_5, SHORT)
    client = Client(step2={}, **{f"step{12 + number}": wanted for number, (wanted, _, _) in enumerate(REFUSED)})
    events = client.train(run)
    run.finish()
    assert "must have a checkpoint to go back to" in str(client.answers[0])
    for answer, (_, error, text) in zip(client.answers[1:], REFUSED, strict=True):
        with pytest.raises(error, match=text):
            raise answer
    assert len(kinds(events, "warning")) == len(client.answers)
    assert_same_end(tmp_path / "straight", tmp_path / "run")


@pytest.mark.parametrize(
    "wrong",
    [{"checkpoint": 5}, {"to_step": -1}, {"to_step": True}, {"checkpoint": "step-000000005", "to_step": 5}, {"skip_data": 1},
     {"knobs": ["alpha"]}, {"why": 3}],
)  # fmt: skip
def test_values_of_other_types_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        rollback_command(**wrong)


def test_a_damaged_checkpoint_and_one_that_is_read_are_refused(tmp_path: Path) -> None:
    run, answers = begin(tmp_path / "run", EVERY_5, SHORT), []
    folder = tmp_path / "run" / "checkpoints"
    for report in run.events():
        if not (
            isinstance(report, Event)
            and report.kind == "checkpoint"
            and report.details["checkpoint"] == "step-000000015"
        ):
            continue
        rows = next((folder / "step-000000010").glob("rows-*"))
        data = bytearray(rows.read_bytes())
        data[-1] ^= 1
        rows.write_bytes(data)
        run.present.mailbox.send(rollback_command(to_step=10, answer=answers.append))
        with DISK.reading(folder / "step-000000015"):
            run.present.mailbox.send(rollback_command(to_step=5, answer=answers.append))
            for _ in run.events():
                if len(answers) == 2:
                    break
        break
    assert "step-000000010" in str(answers[0])
    assert "damaged" in str(answers[0])
    assert "another process reads step-000000015" in str(answers[1])


def test_a_checkpoint_under_way_is_written_first_and_is_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollback comes right after its start."""
    run, client = begin(tmp_path / "run", EVERY_5, SHORT), Client()
    for report in run.events():
        if isinstance(report, Event) and report.kind == "saving" and report.step == 15 and not client.answers:
            client.send(run, {})
    assert [(each["checkpoint"], each["from_step"]) for each in client.answers] == [("step-000000015", 16)]


@pytest.mark.slow
def test_memory_does_not_grow_and_nothing_keeps_an_old_runtime(tmp_path: Path) -> None:
    run, client = begin(tmp_path / "run", EVERY_5, SHORT), Client(**{f"step{step}": {} for step in (7, 12, 17)})
    seen: list[weakref.ref[Runtime]] = [weakref.ref(run.runtime)]
    alive: list[int] = []
    for report in run.events():
        if isinstance(report, Snapshot) and report.step == run.runtime.step_number and report.step in client._left:
            client.send(run, client._left.pop(report.step))
        if isinstance(report, Event) and report.kind == "rolled_back":
            gc.collect()
            seen.append(weakref.ref(run.runtime))
            alive.append(sum(each() is not None for each in seen))
    assert alive == [1] * 3
    assert len(client.answers) == 3


@pytest.mark.slow
def test_skipped_data_is_refused_where_the_stream_is_arranged(tmp_path: Path) -> None:
    run, client = begin(tmp_path / "run", EVERY_5, SHORT, "knobs.policy=cdlrm"), Client(step12={"skip_data": True}, step20={})
    events = client.train(run)
    assert "skip_data must be false under a policy that arranges the stream" in str(client.answers[0])
    assert kinds(events, "rolled_back") == [("rolled_back", client.answers[1]["step"])]
    run.finish()
    straight = begin(tmp_path / "straight", SHORT, "knobs.policy=cdlrm")
    list(straight.events())
    straight.finish()
    assert_same_end(tmp_path / "straight", tmp_path / "run")


def test_an_undo_that_waits_for_a_rollback_is_refused(tmp_path: Path) -> None:
    """What it undoes is lost, and another client has set the knob meanwhile. Other changes that wait are made."""
    to_5 = rollback_command(to_step=5, knobs={"alpha": 0.7}, answer=lambda _: None)
    undo = Command("change_knobs", {"alpha": 0.9}, note={"undoes": 7})
    run = begin(tmp_path / "run", EVERY_5, SHORT)
    change = Command("change_knobs", {"lr_factor": 0.5})
    client = Client(step8=[Command("change_knobs", {"alpha": 0.8})], step12=[to_5, undo, change])
    events = client.train(run)
    run.finish()

    _, back, undone, changed = client.answers
    assert (back["checkpoint"], changed["changed"]) == ("step-000000005", {"lr_factor": {"old": 1.0, "new": 0.5}})
    assert isinstance(undone, ConflictError)
    assert [event.text for event in events if event.kind == "warning"] == [f"change_knobs: {undone}"]
    assert (run.runtime.knobs.alpha, run.runtime.knobs.lr_factor) == (0.7, 0.5)
    assert run.present.mailbox.waiting == []


def test_followed_files_that_are_gone_are_missed_before_anything_is_given_up(tmp_path: Path) -> None:
    """Files of a folder may go once they were read; a rollback would read some of them again, or train without their rows."""
    days, schema = tmp_path / "days", tmp_path / "schema.toml"
    days.mkdir()
    schema.write_text('label = "clicked"\ndense = ["price"]\nsparse = ["user"]\n')
    for day in range(4):
        lines = [f"{k % 2},user {k % 13},{k}" for k in range(176)]
        (days / f"{day}.csv").write_text("\n".join(["clicked,user,price", *lines, ""]))
    settings = ["run.batch_size=32", "run.steps=0", "data.follow=true", "data.follow_idle_seconds=0.3", "data.ids=raw", EVERY_5]
    own = [f"data.source={days}", f"data.schema_file={schema}", "data.max_table_rows=100", "checkpoint.keep=9", "eval.count=0"]
    run, answers = begin(tmp_path / "run", *settings, *own), []
    went = []
    for report in run.events():
        if isinstance(report, Event) and report.kind == "rolled_back":
            went.append(report.step)
            run.present.mailbox.send(rollback_command(to_step=10, answer=answers.append))
        if isinstance(report, Event) and report.kind == "checkpoint" and report.details["checkpoint"] == "step-000000015":
            for day in (0, 1):
                (days / f"{day}.csv").unlink()
            for step in (5, 15):
                run.present.mailbox.send(rollback_command(to_step=step, answer=answers.append))
    assert "step-000000005: data.source must still have all files read from then on, missing: 0.csv, 1.csv" in str(answers[0])
    assert went == [15], "what was read before that checkpoint is not missed"
    assert "step-000000010: data.source must still have all files read from then on, missing: 1.csv" in str(answers[2])
    assert run.runtime.step_number == 22


def test_a_signal_on_the_way_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while no runtime trains."""
    run, client = begin(tmp_path / "run", EVERY_5, SHORT), Client(step12={})
    go_back = rollback.go_back

    def interrupted(present: Any, *rest: Any) -> Any:
        let_go = present.let_go
        monkeypatch.setattr(type(present), "let_go", lambda self: (let_go(), present.hurry()))
        return go_back(present, *rest)

    monkeypatch.setattr(rollback, "go_back", interrupted)
    events = client.train(run)
    run.finish()
    assert kinds(events, "rolled_back") == [("rolled_back", 10)]
    assert run.runtime.step_number <= 11
    assert run.runtime.state.hurried


@pytest.mark.slow
def test_where_the_new_runtime_cannot_be_built_the_run_fails_and_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, client = begin(tmp_path / "run", EVERY_5, SHORT), Client(step12={})

    def fail(*_: Any) -> None:
        raise AdaptiveRecError("no memory for it")

    with monkeypatch.context() as patched:
        patched.setattr("adaptive_rec.run.rollback.assemble", lambda *_, **__: fail())
        with pytest.raises(AdaptiveRecError, match="no memory for it"):
            client.train(run)
    run._directory.close()
    assert [str(answer) for answer in client.answers] == ["no memory for it"]
    with pytest.raises(ConflictError):
        run.present.mailbox.change_knobs(alpha=0.2)
    again = go_on(tmp_path / "run")
    assert again.started_at_step == 10
    list(steered(again, {}))
    again.finish()


@pytest.mark.slow
def test_of_a_replay_that_went_back_the_rest_is_replayed(tmp_path: Path) -> None:
    first = begin(tmp_path / "first", SHORT)
    list(steered(first, {9: {"alpha": 0.2}, 21: {"alpha": 0.8}}))
    first.finish()
    config = load_config(str(tmp_path / "first" / "config.toml"), {}, [EVERY_5])
    run = TrainingRun(config, tmp_path / "run", replay=tmp_path / "first")
    client = Client(step14={"to_step": 5}, step17={"skip_data": True})
    client.train(run)
    run.finish()
    assert "skip_data must be false in a run that replays another" in str(client.answers[1])
    assert_same_end(tmp_path / "first", tmp_path / "run")


def test_a_kill_right_after_the_answer_loses_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, killed_after_answer.RUN: str(tmp_path / "run")}
    with open(tmp_path / "log.txt", "wb") as log:
        code = forked.start([], log.fileno(), environment, first=killed_after_answer.__name__).wait(120)
    assert code == -9, (tmp_path / "log.txt").read_text()
    again = go_on(tmp_path / "run")
    assert (again.started_at_step, again.runtime.knobs.alpha, again.runtime.state.position.offset) == (10, 0.7, 14 * 64)
    list(again.events())
    again.finish()
    replay(tmp_path / "run", tmp_path / "replayed")
    assert_same_end(tmp_path / "run", tmp_path / "replayed")


def test_the_metrics_mark_the_abandoned_steps(tmp_path: Path) -> None:
    run, client = begin(tmp_path / "run", EVERY_5, SHORT), Client(step13={})
    client.train(run)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [(line["event"] == "rolled_back", line["step"]) for line in lines if line["event"] != "evaluation"]
    assert steps[12:16] == [(False, 13), (True, 10), (False, 10), (False, 11)]


def test_the_newest_checkpoint_at_or_before_a_step(tmp_path: Path) -> None:
    for name in ("step-000000005", "step-000000010", "step-000000010.1", "step-000000020.set-aside"):
        (tmp_path / name).mkdir()
    found = [newest_up_to(tmp_path, step) for step in (None, 30, 10, 9, 4)]
    assert found == ["step-000000010.1", "step-000000010.1", "step-000000010.1", "step-000000005", None]


def test_a_batch_that_reaches_over_the_beginning_of_a_part_is_refused() -> None:
    source = SyntheticSource(load_config("tiny", {}))
    shortened = WithoutParts(source, {Position(0, 1, 64): Position(0, 1, 256)})
    with pytest.raises(DataError, match="a batch must end where a part of the stream is left out"):
        list(shortened.train_batches(Position(seed=1), 48))
    assert [batch.position.offset for batch in islice(shortened.train_batches(Position(seed=1), 64), 3)] == [
        64,
        320,
        384,
    ]
