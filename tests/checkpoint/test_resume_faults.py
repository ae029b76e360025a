"""Faults around checkpoints: damaged ones, old ones that stay, another process, commands between two saves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adaptive_rec import checkpoint
from adaptive_rec.checkpoint import generation, history, writing
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import CheckpointError, DataError, UsageError
from adaptive_rec.live.mailbox import Command, ignore
from adaptive_rec.live.recorder import Recorder
from adaptive_rec.live.telemetry import Event, Snapshot
from adaptive_rec.run import journal
from adaptive_rec.run.new_directory import replace_text
from adaptive_rec.run.training_run import TrainingRun

SMALL = [
    "run.device=cpu", "run.threads=1", "run.steps=30", "run.batch_size=64", "data.synthetic.samples=6000",
    "data.synthetic.test_samples=200", "knobs.report_every=1", "knobs.reclassify_every=5", "knobs.policy=hotline",
]  # fmt: skip


def begin(out: Path, *changes: str, **options: Any) -> TrainingRun:
    return TrainingRun(load_config("tiny", {}, [*SMALL, *changes]), out, **options)


def names(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "checkpoints").iterdir())


def damage(generation: Path) -> None:
    path = generation / "dense.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


def test_a_run_that_skipped_a_newer_checkpoint_saves_before_its_step_and_never_returns_to_it(
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    run = begin(out, "checkpoint.every_steps=10")
    list(run.events())
    run.finish()
    newest = checkpoint.newest(out / "checkpoints")
    assert newest is not None
    damage(newest)
    again = begin(out, "checkpoint.every_steps=4", resume=True)
    assert again.started_at_step == 20
    assert f"{newest.name}.set-aside" in names(out)
    seen = []
    for report in again.events():
        if isinstance(report, Event):
            seen.append((report.kind, report.details.get("checkpoint", report.step)))
        elif isinstance(report, Snapshot) and report.step == 26:
            again.runtime.state.stop()
    again.finish()
    assert ("checkpoint", "step-000000024") in seen
    assert [text for kind, text in seen if kind == "warning"] == [20], "one, of what was passed over"
    assert checkpoint.newest(out / "checkpoints") == out / "checkpoints" / "step-000000026"
    damaged_again = begin(out, resume=True)
    assert damaged_again.started_at_step == 26


def test_setting_aside_never_overwrites(tmp_path: Path) -> None:
    for name in ("step-000000003", "step-000000003.set-aside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    generation.set_aside(checkpoint.DISK, tmp_path, ["step-000000003"])
    assert (tmp_path / "step-000000003.set-aside" / "file").read_text() == "step-000000003.set-aside"
    assert (tmp_path / "step-000000003.set-aside-1" / "file").read_text() == "step-000000003"


def test_old_checkpoints_that_cannot_be_removed_are_reported_as_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stay(*_: object) -> list[str]:
        raise CheckpointError("step-000000005: removal failed: Operation not permitted")

    monkeypatch.setattr(history, "remove_generations", stay)
    monkeypatch.setattr(writing, "MOST_CHANGES", 0)  # so that none is needed by a newer one
    run = begin(tmp_path / "run", "checkpoint.every_steps=5")
    events = [event for event in run.events() if isinstance(event, Event)]
    assert run.finish()["steps"] == 30
    written = [event.details["checkpoint"] for event in events if event.kind == "checkpoint"]
    assert written == [f"step-{step:09d}" for step in (5, 10, 15, 20, 25)]
    warned = [event for event in events if event.kind == "warning"]
    assert warned
    assert all("older ones could not be removed" in event.text for event in warned)
    assert len(names(tmp_path / "run")) == 6


def test_commands_between_two_saves_make_a_new_checkpoint(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "checkpoint.keep=9")
    answers: list[Any] = []
    for report in run.events():
        if isinstance(report, Snapshot) and report.step == 12:
            for verb in ("checkpoint", "checkpoint", "reclassify", "checkpoint"):
                run.runtime.mailbox.send(Command(verb, answer=answers.append if verb == "checkpoint" else ignore))
    assert [(answer["step"], answer["checkpoint"]) for answer in answers] == [
        (13, "step-000000013"), (13, "step-000000013"), (13, "step-000000013.1"),
    ]  # fmt: skip


HOLD = """
import sys, time
from pathlib import Path
from adaptive_rec.run.new_directory import sole_writer
held = sole_writer(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_only_one_process_writes_a_directory(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = begin(out)
    list(run.events())
    run.finish()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    other = subprocess.Popen([sys.executable, "-c", HOLD, out], stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match="must be of one process at a time"):
            begin(out, "run.steps=40", resume=True)
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    finally:
        other.kill()
        other.communicate()
    assert begin(out, "run.steps=40", resume=True).started_at_step == 30


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.toml"
    replace_text(path, "old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        replace_text(path, "new")
    assert path.read_text() == "old"


def test_a_present_pause_is_not_in_the_saved_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    clocks = SimpleNamespace(perf_counter=lambda: now, process_time=time.process_time)
    monkeypatch.setattr("adaptive_rec.live.recorder.time", clocks)
    recorder = Recorder()
    recorder.start({})
    with recorder.paused():
        before = recorder.seconds
        now = 7.0
        with recorder.paused():
            now = 8.0
        assert recorder.state()["seconds"] == before
    assert recorder.seconds == before


def test_a_run_restarted_under_a_policy_without_live_switch_cannot_be_replayed(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "run.steps=10")
    list(run.events())
    run.finish()
    again = begin(tmp_path / "run", "knobs.policy=cdlrm", resume=True)
    list(again.events())
    with pytest.raises(DataError, match="cannot be replayed"):
        journal.commands(tmp_path / "run")


def test_a_journal_without_the_resumed_checkpoint_cannot_be_replayed(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "run.steps=10")
    list(run.events())
    run.finish()
    again = begin(tmp_path / "run", "run.steps=20", resume=True)
    list(again.events())
    path = tmp_path / "run" / journal.NAME
    kinds = ('"kind": "saving"', '"kind": "checkpoint"')
    lines = [line for line in path.read_text().splitlines() if not any(kind in line for kind in kinds)]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match="must have the event of checkpoint step-000000010"):
        journal.commands(tmp_path / "run")


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (["started 0", "saving 9 a", "checkpoint_failed 9 a", "knobs 9", "saving 9 a", "started 9 a"], [9]),
        (["started 0", "saving 9 a", "checkpoint_failed 9 a", "knobs 9", "checkpoint 9 a", "started 9 a"], [9]),
        (["started 0", "saving 9 a", "knobs 9", "saving 9 b", "started 9 a", "knobs 9", "knobs 9", "saving 9 b",
          "started 9 b"], [9, 9]),
        (["started 0", "saving 9 a", "knobs 9", "checkpoint 12 a", "knobs 13", "started 9 a"], []),
    ],
    ids=["begun again", "at the end", "lost and begun again", "written later"],
)  # fmt: skip
def test_a_checkpoint_written_twice_counts_from_its_last_start(
    tmp_path: Path, lines: list[str], wanted: list[int]
) -> None:
    change = {"changed": {"alpha": {"old": 0.9, "new": 0.5}}}
    text = ""
    for kind, step, *name in map(str.split, lines):
        details: dict[str, Any] = {"checkpoint": name[0]} if name else change if kind == "knobs" else {}
        text += journal.line_of(Event(int(step), kind, "", details)) + "\n"
    (tmp_path / journal.NAME).write_text(text)
    assert changed_steps(tmp_path) == wanted


def changed_steps(run: Path) -> list[int]:
    """Return the steps of a replay's commands, but for those that say when the run was evaluated."""
    found = journal.commands(run)
    return [step for step, commands in found.items() for each in commands if each.verb != "evaluate"]


def test_a_run_killed_right_after_its_last_checkpoint_can_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its begin was in the journal first."""
    run = begin(tmp_path / "run", "run.steps=10")
    list(run.events())
    monkeypatch.setattr(writing, "prune", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run.finish()
    monkeypatch.undo()
    again = begin(tmp_path / "run", "run.steps=20", resume=True)
    assert again.started_at_step == 10
    list(again.events())
    assert changed_steps(tmp_path / "run") == []


def test_a_checkpoint_whose_folder_is_gone_is_written_again(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "run.steps=10")
    list(run.events())
    first = checkpoint.save(run.runtime.parts, tmp_path / "run" / "checkpoints")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert checkpoint.save(run.runtime.parts, tmp_path / "run" / "checkpoints").is_dir()
    assert first.is_dir(), "under the name it had"


def test_no_flag_is_lost_where_a_checkpoint_cannot_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory: it is reported, training continues, and the next checkpoint has the rows."""
    run = begin(tmp_path / "run", "checkpoint.every_steps=10")

    def no_room(*_: object) -> None:
        if run.runtime.step_number == 20:
            raise MemoryError("no room")

    monkeypatch.setattr(type(run.runtime.store.hot), "copy_to", no_room)
    events = [event for event in run.events() if isinstance(event, Event)]
    [failed] = [event for event in events if event.kind == "checkpoint_failed"]
    assert "there was not enough memory for it: no room" in failed.text
    run.finish()
    store = begin(tmp_path / "run", resume=True).runtime.store
    for table in range(len(store.space.tables)):
        for mine, theirs in zip(store.contents.export(table), run.runtime.store.contents.export(table), strict=True):
            assert np.array_equal(mine, theirs)


def test_waiting_for_a_checkpoint_counts_as_stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prune, join, waited_for = writing.prune, threading.Thread.join, threading.Event()

    def prune_slowly(*arguments: Any) -> None:
        """Once the training thread waits for it, but for the last one, which that thread writes."""
        if threading.current_thread().name == "checkpoint":
            waited_for.wait(300)
            waited_for.clear()
            time.sleep(0.1)
        prune(*arguments)

    def join_and_say(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "checkpoint":
            waited_for.set()
        join(thread, timeout)

    monkeypatch.setattr(writing, "prune", prune_slowly)
    monkeypatch.setattr(threading.Thread, "join", join_and_say)
    run = begin(tmp_path / "run", "checkpoint.every_steps=3")
    list(run.events())
    assert run.runtime.state.checkpoints.stall_seconds > 0.8, "nine of them, of which each waits for the one before"
