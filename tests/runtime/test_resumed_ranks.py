"""A run of several ranks that is saved and resumed, by as many or by others. The ranks are threads, whose messages are late."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec import checkpoint
from adaptive_rec.config.tree import load_config
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.run.follower import Follower
from adaptive_rec.run.resume import resume_run
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.system.group import Alone, Group
from tests.doubles.late_threads import LateThreads
from tests.runtime.test_processes import config


def tables_of(checkpoint_of: Path) -> list[np.ndarray]:
    """The tables of a run's newest checkpoint, as one process reads them."""
    runtime = assemble(load_config(str(checkpoint_of / "config.toml"), {}))
    checkpoint.load(runtime.parts, checkpoint.newest(checkpoint_of / "checkpoints"))
    return [each for table in range(len(runtime.store.space.tables)) for each in runtime.store.contents.export(table)]


def trained(out: Path, ranks: int, *changes: str, resume: bool = False, until: int = 0) -> dict[str, Any]:
    """Train in `out` as the command line does, with so many ranks. Returns the summary. `until`: step after which a signal
    comes to rank 0."""

    def of_rank(group: Group) -> dict[str, Any] | None:
        if group.rank:
            Follower(config(*changes), out, resume, (), group).train()
            return None
        training = TrainingRun(config(*changes), out, resume, group=group)
        training.runtime.state.pause_as_saved(reachable=group.tell(False))
        for report in training.events():
            if until and isinstance(report, Snapshot) and report.step == until:
                training.runtime.hurry()
        return training.finish()

    found = LateThreads.train(ranks, of_rank) if ranks > 1 else [of_rank(Alone())]
    assert found[0] is not None
    return found[0]


@pytest.mark.parametrize(("others", "steps"), [((1, 3), 24), pytest.param((1, 3, 2), 60, marks=pytest.mark.slow)], ids=str)
def test_a_checkpoint_of_some_ranks_goes_on_under_any_other_number(tmp_path: Path, others: tuple[int, ...], steps: int) -> None:
    all_steps, saved = f"run.steps={steps}", f"checkpoint.every_steps={steps // 6}"
    whole = trained(tmp_path / "whole", 1, all_steps)
    began = trained(tmp_path / "2", 2, f"run.steps={steps // 2}", saved)
    assert began["processes"] == 2
    assert checkpoint.find(tmp_path / "2" / "checkpoints").skipped == []

    for ranks in others:
        out = shutil.copytree(tmp_path / "2", tmp_path / f"2-{ranks}")
        summary = trained(out, ranks, all_steps, resume=True)
        assert summary["samples_seen"] == whole["samples_seen"]
        assert summary["row_updates"] == whole["row_updates"]
        assert summary["train_logloss"] == pytest.approx(whole["train_logloss"], rel=1e-12)
        assert summary["eval"]["auc"] == pytest.approx(whole["eval"]["auc"], rel=1e-9)
        for one, other in zip(tables_of(tmp_path / "whole"), tables_of(out), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)
    if 2 in others:
        once, again = tables_of(tmp_path / "2-2"), trained(tmp_path / "unbroken", 2, all_steps, saved)
        assert again["steps"] == steps
        for one, other in zip(once, tables_of(tmp_path / "unbroken"), strict=True):
            np.testing.assert_array_equal(one, other)


def test_evaluations_count_the_samples_of_all_ranks(tmp_path: Path) -> None:
    trained(tmp_path / "run", 2, "eval.every_steps=5", "run.steps=15")
    trained(tmp_path / "run", 2, "eval.every_steps=5", "run.steps=30", resume=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    size = config().run.batch_size
    found = {line["step"]: line["samples_seen"] for line in lines if line["event"] == "evaluation"}
    assert found == {step: step * size for step in range(5, 31, 5)}


@pytest.mark.slow
def test_one_process_writes_what_several_read(tmp_path: Path) -> None:
    trained(tmp_path / "run", 1, "run.steps=8")
    trained(tmp_path / "run", 3, "run.steps=16", resume=True)
    trained(tmp_path / "whole", 1, "run.steps=16")
    for one, other in zip(tables_of(tmp_path / "whole"), tables_of(tmp_path / "run"), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)


SKIPPING = ["run.batch_size=24", "knobs.probe_ratio=0.5", "knobs.min_probe_touches=1", "knobs.target_skip_ratio=0.5"]


ACTIONS = {
    "hotline": "freeze", "cdlrm": "freeze", "oracle": "freeze", "xdl": "freeze", "slipstream": "drop", "adaptive": "freeze",
    "random_skip": "subsample",
}  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "steps"), [("slipstream", 24), *(pytest.param(policy, 60, marks=pytest.mark.slow) for policy in ACTIONS)]
)
def test_the_same_number_of_ranks_goes_on_as_if_unbroken(policy: str, steps: int, tmp_path: Path) -> None:
    changes = [*SKIPPING, f"knobs.policy={policy}", f"knobs.action={ACTIONS[policy]}", "knobs.hot_budget_bytes=1000"]
    changes += [f"run.steps={steps}"]
    whole = trained(tmp_path / "whole", 2, *changes)
    first = trained(tmp_path / "run", 2, *changes, until=steps // 2 + 2)
    again = trained(tmp_path / "run", 2, *changes, resume=True)
    assert again["resumed_at_step"] == first["steps"] == steps // 2 + 3
    assert policy != "slipstream" or whole["samples_trained"] < whole["samples_seen"]
    for name in ("samples_trained", "row_updates", "row_updates_skipped", "hot_rows", "stale_rows", "migrated_rows", "eval"):
        assert again[name] == whole[name], name
    for one, other in zip(tables_of(tmp_path / "whole"), tables_of(tmp_path / "run"), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("saved_by", "ranks"), [(2, 1), (3, 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 2), (2, 3)))]
)
def test_another_number_of_ranks_begins_with_the_rows_that_were_popular(saved_by: int, ranks: int, tmp_path: Path) -> None:
    """Within the same budget for all of them: 1200 bytes, for 37 of 109 rows."""
    budget = "knobs.hot_budget_bytes={}"
    trained(tmp_path / "run", saved_by, "run.steps=18", budget.format(1200 // saved_by))
    changed = config(budget.format(1200 // ranks))

    def of_rank(group: Group) -> Snapshot:
        found = checkpoint.find(tmp_path / "run" / "checkpoints")
        runtime = resume_run(changed, tmp_path / "run", found, ["hot_budget_bytes"], group).runtime
        return next(report for report in runtime.run() if isinstance(report, Snapshot))

    first = (LateThreads.train(ranks, of_rank) if ranks > 1 else [of_rank(Alone())])[0]
    assert first.step == 19
    assert first.hot_lookup_ratio > 0.5
