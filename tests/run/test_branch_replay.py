"""The replay of a branch that went back to the checkpoint it began with."""

from __future__ import annotations

from pathlib import Path

from adaptive_rec.checkpoint.difference import find_differences
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.config.tree import load_config
from adaptive_rec.live.mailbox import Command
from adaptive_rec.run.branching import make_branch
from adaptive_rec.run.training_run import TrainingRun
from tests.checkpoint.test_resume_run import assert_same_end, begin
from tests.run.test_rollback import EVERY_5, Client, kinds, replay
from tests.run.test_stopping import trained


def test_a_branch_that_went_back_to_its_beginning_is_replayed(tmp_path: Path) -> None:
    parent, branch = begin(tmp_path / "parent", EVERY_5), tmp_path / "branch"
    Client(step3=[Command("change_knobs", {"alpha": 0.2})]).train(parent)
    parent.finish()
    make_branch(tmp_path / "parent", "35", branch, {}, ["knobs.lr_factor=0.5"], "")
    run = TrainingRun(load_config(str(branch / "config.toml"), {}), branch, resume=True)
    events = Client(step36={"checkpoint": "step-000000035"}, step38=[Command("change_knobs", {"alpha": 0.9})]).train(
        run
    )
    run.finish()
    assert kinds(events, "going_back", "rolled_back") == [("going_back", 37), ("rolled_back", 35)]
    replay(branch, tmp_path / "again")
    assert_same_end(branch, tmp_path / "again")


def test_all_processes_repeat_what_was_changed_before_a_step(tmp_path: Path) -> None:
    """A branch of a run's end has its knobs before its next step, which no command through the mailbox says."""
    changes = ["eval.mode=held_out", "eval.patience=0", "eval.per_epoch=0", "run.steps=20", "knobs.reclassify_every=7"]
    trained(tmp_path / "parent", *changes, ranks=2)
    new = ["run.steps=30", "knobs.hot_budget_bytes=2000", "knobs.reclassify_every=3"]
    branch = make_branch(tmp_path / "parent", None, tmp_path / "branch", {}, new, "").out
    trained(branch, resume=True, ranks=2)
    assert '"before_step": true' in (branch / "events.jsonl").read_text(), "otherwise the test shows nothing"
    trained(tmp_path / "again", *changes, "run.steps=30", replay=branch, ranks=2)
    ends = [next((out / "checkpoints").glob("step-000000030*")) for out in (branch, tmp_path / "again")]
    assert list(find_differences(DISK, *ends)) == []
