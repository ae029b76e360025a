"""The states of a run: each surface shows the same one, and commands that only read leave it as it is."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import adaptive_rec
from adaptive_rec.cli import main
from adaptive_rec.live import life
from adaptive_rec.live.life import holder
from adaptive_rec.offline.report.record import read_run
from adaptive_rec.offline.report.run_report import phase
from adaptive_rec.run.new_directory import is_held_by, sole_writer
from adaptive_rec.service.run_digest import RunDigest
from tests.finished_runs import FinishedRun
from tests.matrix import always, each, grid
from tests.run.spoilt_commands import READS, command_line, serve

JOURNALS: dict[str, tuple[list[str], bool]] = {
    "starting": ([], True),
    "training": (["started", "evaluation"], True),
    "paused": (["started", "paused"], True),
    "rolling_back": (["started", "going_back"], True),
    "finishing": (["started", "stopping"], True),
    "finished": (["started", "evaluation", "finished"], False),
    "failed": (["started", "failed", "warning"], False),
    "suspended": (["started", "watchdog", "stopping", "suspended"], False),
    "killed": (["started", "paused", "resumed"], False),
    "branched": (["started", "saving", "branched"], False),
}
"""Kinds of events that lead to a state, and whether a process holds the directory."""
AT_REST = [state for state, (_, held) in JOURNALS.items() if not held]


@contextmanager
def held(lock: Path, by_somebody: bool) -> Iterator[None]:
    """Have another process hold a lock meanwhile."""
    if not by_somebody:
        yield
        return
    ready, begun = os.pipe()
    child = os.fork()
    if not child:
        fcntl.lockf(os.open(lock, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
        os.write(begun, b".")
        time.sleep(600)
        os._exit(0)
    os.read(ready, 1)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def put(run: Path, state: str) -> None:
    """Leave only the events of a state in the journal of a finished run, with the checkpoints' in their places."""
    kinds, _ = JOURNALS[state]
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    saved = [line for line in lines if line["kind"] in ("saving", "checkpoint")]
    begin = [{**lines[0], "kind": kind} for kind in kinds[:1]]
    rest = [{"time": 1.0, "step": 40, "kind": kind, "text": kind, "details": {}} for kind in kinds[1:]]
    (run / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [*begin, *saved * bool(kinds), *rest]))


def shown(run: Path) -> dict[str, str]:
    """The state of a run in the list of runs, in the service of a directory, in /metrics and in the report."""
    digest = RunDigest(run)
    digest.look(1 << 20)
    answers = serve(run, ["status"])
    assert (found := re.search(r'"phase":"(\w+)"', answers)), answers[:300]
    word = phase(read_run(run))[1].removeprefix("under way: ").replace(" ", "_")
    return {"list": digest.state(), "service": found[1], "report": word}


@grid(always, each, state=list(JOURNALS))
def test_a_state_is_the_same_wherever_it_is_shown(state: str, finished_run: FinishedRun) -> None:
    run = finished_run("plain")
    put(run, state)
    (run / "summary.json").unlink()  # a run that stopped early has none of this step
    with held(run / ".lock", JOURNALS[state][1]):
        assert shown(run) == dict.fromkeys(("list", "service", "report"), state)


@grid(always, each, state=AT_REST, command=[name for name in READS if name != "serve"])
def test_a_command_that_reads_leaves_the_state_as_it_is(
    state: str, command: str, finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run("plain")
    (tmp_path / "clicks.csv").write_text("label,item,price\n0,i7,3\n")
    put(run, state)
    before = (run / "events.jsonl").read_bytes()
    main(command_line(command, run, tmp_path / "out"))  # some are refused for a run of drawn data
    capsys.readouterr()
    assert (run / "events.jsonl").read_bytes() == before
    assert shown(run) == dict.fromkeys(("list", "service", "report"), state), "and the service has read it"
    assert (run / "events.jsonl").read_bytes() == before


def test_a_run_that_is_over_stays_as_it_is_when_it_is_resumed(
    finished_run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run("plain")
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name not in ("log.txt", ".lock")}
    for words in ([], ["--set=eval.every_steps=7"]):
        assert main(["train", "--resume", "--no-serve", f"--out={run}", *words]) == 0
        printed = "".join(capsys.readouterr())
        assert "nothing left to train" in printed
        assert [text for text in ("first step", "writing the checkpoint") if text in printed] == []
        assert shown(run) == dict.fromkeys(("list", "service", "report"), "finished")
        assert [path.name for path, content in files.items() if path.read_bytes() != content] == []


def test_other_knobs_for_a_run_that_is_over_are_saved(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, again = finished_run("plain"), tmp_path / "again"
    assert main(["train", "--resume", "--no-serve", f"--out={run}", "--set=knobs.alpha=0.125"]) == 0
    assert shown(run) == dict.fromkeys(("list", "service", "report"), "finished")
    assert main(["train", "--replay", str(run), "--no-serve", f"--out={again}"]) == 0
    assert main(["checkpoint", "diff", str(run), str(again)]) == 0
    assert main(["train", "--resume", "--no-serve", f"--out={run}"]) == 0, "they are no change any more"
    journal = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in journal if event["kind"] in ("started", "knobs", "finished")] == [
        "started", "finished", "started", "knobs", "finished",
    ]  # fmt: skip


def test_a_followed_run_without_new_rows_is_finished_again(
    finished_run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run("followed")
    assert main(["train", "--resume", "--no-serve", f"--out={run}"]) == 0
    assert set(shown(run).values()) <= {"finished", "stopped_early"}


@pytest.mark.parametrize("state", ["killed", "failed", "branched"])
def test_a_run_that_goes_on_is_finished_then(
    state: str, finished_run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run("plain")
    put(run, state)
    assert main(["train", "--resume", "--no-serve", f"--out={run}", "--steps=45"]) == 0
    assert shown(run) == dict.fromkeys(("list", "service", "report"), "finished")


def test_a_branch_that_nobody_has_started_is_no_killed_run(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, branch = finished_run("plain"), tmp_path / "branch"
    assert main(["branch", str(run), "--at=20", "--no-train", f"--out={branch}"]) == 0
    assert set(shown(branch).values()) == {"branched"}
    assert main(["train", "--resume", "--no-serve", f"--out={branch}"]) == 0
    assert set(shown(branch).values()) == {"finished"}
    again = tmp_path / "again"
    assert main(["branch", str(branch), "--at=20", "--no-train", f"--out={again}"]) == 0
    assert set(shown(again).values()) == {"branched"}


def test_the_states_are_one_table() -> None:
    assert set(life.MOVES.values()) | {"starting", "evaluating", "checkpointing", "killed"} == set(life.STATES)
    dashboard = Path(adaptive_rec.__file__).parent / "service" / "dashboard" / "store.js"
    named = re.search(r"ENDED = new Set\(\[(.*?)\]\)", dashboard.read_text())
    assert named
    assert tuple(json.loads(f"[{named[1]}]")) == life.OVER


def test_the_process_that_holds_a_directory_is_known_by_its_session_or_who_started_it(tmp_path: Path) -> None:
    """`train --detach` waits for it; a process does not see its own lock. A rank leads a session of its own."""
    assert holder(tmp_path) is None
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        lock = sole_writer(tmp_path)
        os.write(writing, b"x")
        signal.pause()
        os._exit(lock is None)
    try:
        assert os.read(reading, 1)
        assert holder(tmp_path) == child
        assert os.getsid(child) == child
        assert is_held_by(tmp_path, child)
        assert is_held_by(tmp_path, os.getpid())
        assert not is_held_by(tmp_path, os.getppid())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
    assert holder(tmp_path) is None
