"""Branches of a run: equal to a resumed copy, independent of their parent, made as a whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.checkpoint import history, writing
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.generation import read_manifest
from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import CheckpointError, DataError, MemoryPlanError, UsageError
from adaptive_rec.live.rollback import rollback_command
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.offline.report.record import read_run
from adaptive_rec.run import branching
from adaptive_rec.run.branching import Branch, make_branch
from adaptive_rec.run.parent import parent_of
from adaptive_rec.run.training_run import TrainingRun
from tests import forked
from tests.checkpoint.test_resume_run import assert_same_end, begin, go_on, steered, written_at

SAVED = ["checkpoint.every_steps=10", "checkpoint.every_seconds=0", "checkpoint.keep=3"]
KINDS = {
    "memory": [],
    "disk": ["run.host_memory=16KiB"],
    "raw ids": ["data.ids=raw", "data.shared_rows=3", "knobs.evict_ratio=0.1", "knobs.policy=hotline"],
}
GIVEN = ["knobs.lr_factor=0.5", "knobs.hot_budget_bytes=9000"]


def branched(run: Path, out: Path, *settings: str, at: str | None = None) -> Branch:
    return make_branch(run, at, out, {}, settings, "adaptive-rec branch")


def ended(run: TrainingRun) -> dict[str, Any]:
    for _ in run.events():
        pass
    return run.finish()


def trained_to(run: TrainingRun, step: int) -> Iterator[Any]:
    """Let a run train up to a step, and return the rest of its reports."""
    reports = run.events()
    for report in reports:
        if isinstance(report, Snapshot) and report.step == step:
            break
    run.runtime.saving.close()  # all checkpoints are whole
    return reports


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 40 steps with a changed knob at step 13, and a checkpoint every 10 steps."""
    out = tmp_path_factory.mktemp("parent") / "run"
    run = begin(out, *SAVED)
    list(steered(run, {13: {"alpha": 0.6}}))
    run.finish()
    return out


@pytest.mark.parametrize("kind", [pytest.param("memory", marks=pytest.mark.slow), "disk", "raw ids"])
def test_a_branch_of_a_run_that_trains_equals_a_copy_that_is_resumed_with_the_same_settings(
    tmp_path: Path, kind: str
) -> None:
    """The parent trains on, appends to its newest segment and removes older checkpoints, and is gone before the branch ends."""
    run = begin(tmp_path / "run", *SAVED, *KINDS[kind])
    rest = trained_to(run, 34)
    branch = branched(tmp_path / "run", tmp_path / "branch", *GIVEN, at="20")
    assert branch.shared.linked > 0 == branch.shared.copied
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "checkpoints" / "step-000000030")
    for _ in rest:
        pass
    run.finish()
    again = go_on(tmp_path / "branch")
    assert again.started_at_step == 20
    shutil.rmtree(tmp_path / "run")
    ended(again)
    ended(go_on(tmp_path / "copy", *GIVEN))
    assert_same_end(tmp_path / "copy", tmp_path / "branch")

    replayed = TrainingRun(
        load_config(str(tmp_path / "branch" / "config.toml"), {}), tmp_path / "again", replay=tmp_path / "branch"
    )
    ended(replayed)
    assert_same_end(tmp_path / "branch", tmp_path / "again")


def test_the_parent_keeps_what_it_has(tmp_path: Path, parent: Path) -> None:
    before = {path: path.read_bytes() for path in parent.rglob("*") if path.is_file()}
    branched(parent, tmp_path / "branch", "run.steps=45", at="step-000000030")
    ended(go_on(tmp_path / "branch"))
    assert {path: path.read_bytes() for path in parent.rglob("*") if path.is_file()} == before


def test_a_branch_keeps_its_settings_where_it_is_killed_before_its_first_checkpoint(
    tmp_path: Path, parent: Path
) -> None:
    for name in ("straight", "killed"):
        branched(parent, tmp_path / name, *GIVEN, "run.steps=45", at="20")
    ended(go_on(tmp_path / "straight"))
    list(steered(go_on(tmp_path / "killed"), {}, lost_at=27))
    assert ended(go_on(tmp_path / "killed"))["steps"] == 45
    assert_same_end(tmp_path / "straight", tmp_path / "killed")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_branch_has_its_parent_s_past_but_not_its_time(tmp_path: Path, parent: Path) -> None:
    branched(parent, tmp_path / "branch", "knobs.lr_factor=0.5", at="20")
    branched(tmp_path / "branch", tmp_path / "twig", at="20")  # of a branch that has not trained yet
    summary = ended(go_on(tmp_path / "branch"))
    place = {"run": str(parent), "checkpoint": "step-000000020", "step": 20}
    assert summary["parent"] == place
    whole = json.loads((parent / "summary.json").read_text())
    assert summary["samples_seen"] == whole["samples_seen"]
    known = parent_of(tmp_path / "branch")
    assert known is not None
    assert known.place == place
    snapshots = read_run(tmp_path / "branch").stretches[0].snapshots
    assert [snapshot["step"] for snapshot in snapshots] == list(range(1, 41))
    assert summary["seconds"] == pytest.approx(snapshots[-1]["seconds"] - known.seconds, abs=0.5)
    assert 0 < known.seconds <= snapshots[20]["seconds"]
    assert 0 < known.processor_seconds < whole["processor_seconds"]
    assert 0 < summary["processor_seconds"] < whole["processor_seconds"] + known.processor_seconds

    started = [event for event in events(tmp_path / "branch") if event["kind"] == "started"]
    assert [event["details"].get("parent") for event in started] == [None, place]
    ends = [event["kind"] for event in events(tmp_path / "twig")][-2:]
    assert ends == ["saving", "branched"], "what the parent did after that is no past of it"
    below = parent_of(tmp_path / "twig")
    assert below is not None
    assert below.run == str(tmp_path / "branch")
    assert below.knobs == {}
    changed = {
        name
        for event in events(tmp_path / "branch")
        if event["kind"] == "knobs"
        for name in event["details"]["changed"]
    }
    assert changed == {"alpha", "lr_factor"}


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def rolled_back(run: TrainingRun, after: int, to_step: int) -> None:
    """Train to the end, and go back once after a step."""
    went_back = False
    for report in run.events():
        if isinstance(report, Snapshot) and report.step == after and not went_back:
            run.runtime.mailbox.send(rollback_command(to_step=to_step))
            went_back = True
    run.finish()
    assert [event["step"] for event in events(run.out) if event["kind"] == "rolled_back"][-1] == to_step


@pytest.mark.slow
def test_parent_and_branch_may_go_back_and_the_replay_is_equal(tmp_path: Path) -> None:
    rolled_back(begin(tmp_path / "run", *SAVED, "run.steps=30"), 17, 10)
    branched(tmp_path / "run", tmp_path / "early", at="10")
    assert "rolled_back" not in {event["kind"] for event in events(tmp_path / "early")}
    branched(tmp_path / "run", tmp_path / "branch", *GIVEN, at="20")
    rolled_back(go_on(tmp_path / "branch"), 25, 20)
    config = load_config(str(tmp_path / "branch" / "config.toml"), {})
    ended(TrainingRun(config, tmp_path / "again", replay=tmp_path / "branch"))
    assert_same_end(tmp_path / "branch", tmp_path / "again")


def test_the_first_checkpoint_of_a_branch_has_only_changed_rows(tmp_path: Path) -> None:
    large = ["data.table_rows=[20000,300,200,12]", "data.max_table_rows=20000"]
    ended(begin(tmp_path / "run", *SAVED, *large, "run.steps=20"))
    branched(tmp_path / "run", tmp_path / "branch", "run.steps=30", at="20")
    ended(go_on(tmp_path / "branch"))
    manifest = read_manifest(DISK, tmp_path / "branch" / "checkpoints" / "step-000000030")
    assert manifest.since is not None
    assert manifest.since.name == "step-000000020"


def test_files_are_copied_where_links_are_refused(
    tmp_path: Path, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    branch = branched(parent, tmp_path / "branch", at="30")
    assert (branch.shared.linked, branch.shared.copied > 0) == (0, True)
    assert branch.shared.refusal == "Operation not permitted"
    history.verify_all(DISK, tmp_path / "branch" / "checkpoints" / "step-000000030")
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "branch").rglob("*") if path.is_file())


def test_rows_in_a_folder_of_their_own_get_another_one(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", *SAVED, *KINDS["disk"], f"run.disk={tmp_path / 'rows'}")
    ended(run)
    with pytest.raises(UsageError, match="give .*branch a folder of its own"):
        branched(tmp_path / "run", tmp_path / "branch", at="30")
    with pytest.raises(UsageError, match="run.disk must be a folder of the branch's own"):
        branched(tmp_path / "run", tmp_path / "branch", f"run.disk={tmp_path / 'rows'}", at="30")
    branched(tmp_path / "run", tmp_path / "branch", f"run.disk={tmp_path / 'others'}", at="30")
    with pytest.raises(UsageError, match="run.disk must be a folder without rows of another run"):
        branched(tmp_path / "run", tmp_path / "twig", f"run.disk={tmp_path / 'others'}", at="30")
    assert not (tmp_path / "twig").exists()
    shutil.rmtree(tmp_path / "rows")
    ended(go_on(tmp_path / "branch"))
    assert read_manifest(DISK, tmp_path / "branch" / "checkpoints" / "step-000000040").disk is not None


def test_a_parent_that_removes_checkpoints_meanwhile_leaves_the_one_that_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MOST_CHANGES", 0)  # each has all rows, so none is needed by a newer one
    ended(begin(tmp_path / "run", *SAVED))
    share = branching.share
    removed: list[str] = []

    def prune_and_share(*arguments: Any) -> None:
        removed.extend(history.prune(DISK, tmp_path / "run" / "checkpoints", 2))
        share(*arguments)

    monkeypatch.setattr(branching, "share", prune_and_share)
    branched(tmp_path / "run", tmp_path / "branch", at="20")
    assert removed == []
    assert history.prune(DISK, tmp_path / "run" / "checkpoints", 2) == ["step-000000020"], "it would have gone"
    ended(go_on(tmp_path / "branch"))


def damaged(run: Path) -> None:
    shard = run / "checkpoints" / "step-000000030" / "rows-00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.unlink()
    shard.write_bytes(data)


def without_event(run: Path) -> None:
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(line for line in lines if "step-000000030" not in line))


REFUSED: dict[str, tuple[Callable[[Path], None] | None, str, list[str], type[Exception], str]] = {
    "no such step": (None, "17", [], UsageError, "which has steps 10, 20, 30, 40, got 17"),
    "no number": (None, "²0", [], UsageError, "--at must be the step or the name of a checkpoint"),
    "ends before": (None, "30", ["run.steps=29"], UsageError, "run.steps must be at least the 30 steps"),
    "other data": (
        None,
        "30",
        ["data.shuffle=false"],
        CheckpointError,
        "data.shuffle of checkpoint .* must be True, got False",
    ),
    "damaged": (damaged, "30", [], CheckpointError, "step-000000030/rows-00000.safetensors is damaged"),
    "no journal": (without_event, "30", [], DataError, "must have the event of checkpoint step-000000030"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_a_branch_is_refused_and_leaves_nothing(tmp_path: Path, parent: Path, case: str) -> None:
    spoil, at, settings, error, message = REFUSED[case]
    run = parent
    if spoil is not None:
        shutil.copytree(parent, run := tmp_path / "run")
        spoil(run)
    (tmp_path / "here").mkdir()
    with pytest.raises(error, match=message):
        branched(run, tmp_path / "here" / "branch", *settings, at=at)
    assert list((tmp_path / "here").iterdir()) == []


def test_a_branch_that_is_killed_is_not_there_and_the_next_one_clears_up(tmp_path: Path, parent: Path) -> None:
    out = tmp_path / "branch"
    words = ["branch", str(parent), "--at", "30", "--out", str(out), "--no-train"]
    assert forked.start(words, 2, dict(os.environ), first="tests.run.killed_branch").wait(60) == 9
    [draft] = tmp_path.iterdir()
    assert draft.name.startswith(".branch-")
    assert (draft / "run" / "checkpoints").is_dir()
    out.mkdir()
    (out / ".lock").touch()  # as a run that is killed at its start leaves it
    branched(parent, out, at="30")
    assert list(tmp_path.iterdir()) == [out]
    ended(go_on(out))


def test_the_command_makes_trains_and_clears_up(
    tmp_path: Path, parent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["branch", str(parent), "--at", "20", "--out", str(tmp_path / "one")]
    for later in (["--no-train"], ["--no-serve"]):
        assert main([*words, "--set", "model.top_mlp=[5]", *later]) == CheckpointError.exit_code
        assert not (tmp_path / "one").exists()
        assert "model.top_mlp of checkpoint " in (told := capsys.readouterr().err)
        assert "must be [" in told
        assert "], got [5]" in told
    assert main([*words, "--set", "run.batch_size=1000000000000", "--no-serve"]) == MemoryPlanError.exit_code
    assert not (tmp_path / "one").exists(), "a branch that cannot start"
    assert "batch_size" in capsys.readouterr().err
    assert main([*words, "--steps", "25", "--set", "knobs.alpha=0.8", "--no-serve", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["resumed_at_step"], summary["steps"], summary["parent"]["step"]) == (20, 25, 20)
    assert main([*words, "--no-serve"]) == UsageError.exit_code
    assert "go on with it by train --resume" in capsys.readouterr().err

    words[-1] = str(tmp_path / "two words")
    assert main([*words, "--no-train", "--port", "9000", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["start"] == f"adaptive-rec train --resume '--out={tmp_path / 'two words'}' --port=9000"
    assert made["parent"] == {"run": str(parent), "checkpoint": "step-000000020", "step": 20}

    spoilt = shutil.copytree(parent, tmp_path / "spoilt")
    with open(spoilt / "metrics.jsonl", "r+b") as file:
        file.write(b"[")
    assert main(["branch", str(spoilt), "--no-train", "--out", str(tmp_path / "three")]) == 0
    assert f"warning: {spoilt}/metrics.jsonl: line 1 cannot be " in capsys.readouterr().err


def test_a_replay_that_lacks_the_parent_s_commands_is_refused(tmp_path: Path, parent: Path) -> None:
    branched(parent, tmp_path / "branch", at="20")
    (tmp_path / "branch" / "events.jsonl").unlink()
    run = go_on(tmp_path / "branch", "run.steps=25")
    assert written_at(steered(run, {})) == []
    run.finish()
    with pytest.raises(DataError, match="must have the event of checkpoint step-000000020"), suppress(UsageError):
        TrainingRun(load_config("tiny", {}), tmp_path / "again", replay=tmp_path / "branch")
