"""The replay of a branch that went back to the checkpoint it began with."""

from __future__ import annotations

from pathlib import Path

from adaptive_rec.config.tree import load_config
from adaptive_rec.live.mailbox import Command
from adaptive_rec.run.branching import make_branch
from adaptive_rec.run.training_run import TrainingRun
from tests.checkpoint.test_resume_run import assert_same_end, begin
from tests.run.test_rollback import EVERY_5, Client, kinds, replay


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
