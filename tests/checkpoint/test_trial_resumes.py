"""Trials of what skipping costs, in runs that begin again."""

from __future__ import annotations

from pathlib import Path

from tests.checkpoint.test_resume_run import assert_same_end, begin, go_on, steered
from tests.runtime.test_skipping_guard import NEVER, SETTINGS


def test_a_trial_over_rows_on_a_disk_resumes_exactly_again_and_again(tmp_path: Path) -> None:
    """An evaluation between two restarts reads rows of the run of which the twin has no values yet."""
    settings = (
        *SETTINGS, NEVER, "run.host_memory=1MiB", "run.steps=24", "run.batch_size=16", "checkpoint.every_steps=1",
        "knobs.reclassify_every=5", "knobs.hot_budget_bytes=64KiB", "data.table_rows=[3000,2000,40]", "eval.every_steps=7",
        "eval.max_samples=60",
    )  # fmt: skip
    straight = begin(tmp_path / "straight", *settings)
    list(straight.events())
    straight.finish()
    run = begin(tmp_path / "run", *settings)
    for lost_at in (13, 15, 18):
        list(steered(run, {}, lost_at))
        run = go_on(tmp_path / "run")
    list(steered(run, {}))
    run.finish()
    assert_same_end(tmp_path / "straight", tmp_path / "run")
