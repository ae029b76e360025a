"""Runs that were changed to another policy while they trained, resumed or gone back: pools that began with `xdl` stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.checkpoint.difference import find_differences
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.embedding.disk import row_log
from adaptive_rec.live.mailbox import Command
from adaptive_rec.memory.plan import MemoryPlan
from adaptive_rec.policy import Policy
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.runtime import assemble as assembling
from tests.checkpoint.test_resume_run import assert_same_end, begin, go_on, steered
from tests.matrix import always, grid, only
from tests.run.test_rollback import DISK_ROWS, EVERY_5, Client, kinds, replay
from tests.run.test_stopping import trained

POLICIES = ["slipstream", "adaptive", "hotline"]
LAYOUT = ["data.table_rows=[60, 40, 9, 30]", "knobs.hot_budget_bytes=4000", "knobs.policy=xdl", "run.steps=32", EVERY_5]
WHERE = {
    "memory": [],
    "disk": DISK_ROWS,
    "raw ids": ["data.ids=raw", "data.max_table_rows=60", "knobs.evict_ratio=0.2", "knobs.admit_after=2"],
}


@grid(always, only(("slipstream", "disk"), ("slipstream", "raw ids")), to=[(p, w) for p in POLICIES for w in sorted(WHERE)])
def test_a_run_changed_from_xdl_resumes_as_if_it_had_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: tuple[str, str]
) -> None:
    policy, where = to
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    changes: dict[int, dict[str, Any]] = {3: {"policy": policy}}
    settings = [*LAYOUT, *WHERE[where]]
    straight = begin(tmp_path / "straight", *settings)
    list(steered(straight, changes))
    straight.finish()
    assert len(straight.runtime.store.space.pools) == 4
    list(steered(begin(tmp_path / "stopped", *settings), changes, lost_at=18))
    planned: list[bool] = []
    plan_memory = assembling.plan_memory

    def noted(config: Config, source: Source, planned_for: Policy, *args: Any) -> MemoryPlan:
        planned.append(planned_for.request_per_table)
        return plan_memory(config, source, planned_for, *args)

    with monkeypatch.context() as patched:
        patched.setattr(assembling, "plan_memory", noted)
        resumed = go_on(tmp_path / "stopped")
    assert planned == [True], "memory is planned for these pools"
    assert not resumed.runtime.policy.request_per_table
    assert len(resumed.runtime.store.space.pools) == 4
    assert resumed.runtime.store.hot.tier.hot_rows > 0, "rows are where they were"
    warned = [event.text for event in steered(resumed, {}) if event.kind == "warning"]
    resumed.finish()
    assert not [text for text in warned if "rows start cold" in text]
    assert_same_end(tmp_path / "straight", tmp_path / "stopped")
    replay(tmp_path / "stopped", tmp_path / "again")
    assert_same_end(tmp_path / "straight", tmp_path / "again")


@pytest.mark.parametrize("first", ["cdlrm", pytest.param("oracle", marks=pytest.mark.slow)])
def test_a_run_changed_from_a_policy_that_lists_rows_resumes_as_if_it_had_not_stopped(tmp_path: Path, first: str) -> None:
    """What the former policy listed is of no use to the next one: a resumed run has none of it."""
    changes: dict[int, dict[str, Any]] = {3: {"policy": "slipstream"}}
    settings = [*LAYOUT, f"knobs.policy={first}"]
    straight = begin(tmp_path / "straight", *settings)
    list(steered(straight, changes))
    straight.finish()
    list(steered(begin(tmp_path / "stopped", *settings), changes, lost_at=18))
    resumed = go_on(tmp_path / "stopped")
    list(steered(resumed, {}))
    resumed.finish()
    assert_same_end(tmp_path / "straight", tmp_path / "stopped")


def test_a_run_changed_from_xdl_goes_back_with_its_pools(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", *LAYOUT)
    client = Client(step3=[Command("change_knobs", {"policy": "slipstream"})], step18={"checkpoint": "step-000000015"})
    events = client.train(run)
    run.finish()
    assert kinds(events, "rolled_back") == [("rolled_back", 15)]
    assert len(run.runtime.store.space.pools) == 4
    replay(tmp_path / "run", tmp_path / "again")
    assert_same_end(tmp_path / "run", tmp_path / "again")


def test_ranks_keep_the_pools_too(tmp_path: Path) -> None:
    def steer(run: TrainingRun, step: int) -> None:
        if step == 3:
            run.runtime.mailbox.change_knobs(policy="slipstream")

    alike = ["eval.mode=held_out", "eval.patience=0", "eval.per_epoch=0", "knobs.report_every=1", "knobs.reclassify_every=5"]
    settings = [*LAYOUT, *alike, "run.steps=20"]
    trained(tmp_path / "straight", *settings, ranks=2, steered=steer)
    trained(tmp_path / "stopped", *settings, "run.steps=14", ranks=2, steered=steer)
    trained(tmp_path / "stopped", "run.steps=20", resume=True, ranks=2)
    ends = [tmp_path / name / "checkpoints" / "step-000000020" for name in ("straight", "stopped")]
    assert list(find_differences(DISK, *ends)) == []
