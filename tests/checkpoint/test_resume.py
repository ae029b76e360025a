"""Runs resume from their checkpoint, and saving does not change them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import CheckpointError, ConfigError
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.policies.slipstream import Slipstream
from adaptive_rec.policy import MovementView
from adaptive_rec.policy.find import load_policy
from adaptive_rec.run.resume import evaluate_run
from adaptive_rec.run.training_run import TrainingRun


def train(out: Path, *settings: str, resume: bool = False) -> tuple[dict[str, Any], list[Snapshot]]:
    run = TrainingRun(load_config("tiny", {}, settings), out, resume)
    snapshots = [event for event in run.events() if isinstance(event, Snapshot)]
    return run.finish(), snapshots


@pytest.mark.parametrize("changed", ["run.seed=9", "data.train_range=[0.0, 0.5]", "data.synthetic.zipf_exponent=0.5"])
def test_a_run_cannot_resume_with_other_data_and_is_left_as_it_was(tmp_path: Path, changed: str) -> None:
    out = tmp_path / "run"
    train(out, "run.steps=10")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    with pytest.raises(CheckpointError, match=changed.split("=")[0].split(".")[1]):
        TrainingRun(load_config("tiny", {}, ["run.steps=20", changed]), out, resume=True)

    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_finished_run_resumed_keeps_its_summary(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first, _ = train(out, "run.steps=13")
    again, snapshots = train(out, "run.steps=13", resume=True)

    assert snapshots == []
    assert again == first == json.loads((out / "summary.json").read_text())
    assert first["samples_seen"] > 0


def test_a_resumed_run_has_its_hot_rows_from_the_start(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first, _ = train(out, "run.steps=11", "knobs.policy=hotline", "knobs.report_every=1")
    again, snapshots = train(out, "run.steps=40", "knobs.policy=hotline", "knobs.report_every=1", resume=True)

    assert snapshots[0].step == 12
    assert snapshots[0].hot_rows == first["hot_rows"] > 0
    assert snapshots[0].totals["samples_seen"] == 12 * 128
    assert (again["resumed_at_step"], again["samples_seen"]) == (11, 40 * 128)
    assert again["seconds"] > first["seconds"]


def test_a_run_is_evaluated_without_its_policy_s_memory(tmp_path: Path) -> None:
    out = tmp_path / "run"
    summary, _ = train(out, "run.steps=12", "knobs.policy=device_only")

    assert evaluate_run(out)[0].quality.auc == pytest.approx(summary["eval"]["auc"], abs=1e-12)


def test_a_run_whose_ids_leave_and_are_kept_is_evaluated_where_none_leave(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = ("data.ids=raw", "data.keep_evicted=20", "knobs.evict_ratio=0.2", "knobs.evict_after=3")
    summary, _ = train(out, "run.steps=130", "knobs.reclassify_every=10", *settings)

    assert summary["keys"]["kept"] > 0
    assert evaluate_run(out)[0].quality.auc == pytest.approx(summary["eval"]["auc"], abs=1e-12)


def test_skipping_returns_after_it_was_corrected_to_nothing() -> None:
    """A share corrected down until nothing was stale is raised again."""
    policy, rows = Slipstream(), 6
    knobs = load_config("tiny", {}, ["knobs.target_skip_ratio=0.3", "knobs.action=freeze"]).knobs

    def window(stale: np.ndarray, skipped: float) -> np.ndarray:
        movement = np.arange(1, rows + 1) * 0.01
        nothing = np.empty(0)
        touches = np.full(rows, 4)
        view = MovementView(knobs, stale, movement, touches, nothing, np.zeros(1, dtype=np.int64), skipped)
        return policy.find_stale(view).stale_H

    stale = window(np.ones(rows, dtype=bool), skipped=0.65)
    counts = [int(stale.sum())]
    for _ in range(6):
        stale = window(stale, skipped=float(stale.mean()))
        counts.append(int(stale.sum()))
    assert counts[0] == 0
    assert counts[-1] > 0


@pytest.mark.parametrize("betas", ["[1.0, 0.999]", "[0.9, 1.5]", "[-0.1, 0.9]"])
def test_moments_that_do_not_decay_are_refused(betas: str) -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.betas"):
        load_config(None, {}, [f"optimizer.betas={betas}"])


def test_a_policy_module_that_fails_is_a_named_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_policy.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"broken_policy:P cannot be loaded: ZeroDivisionError"):
        load_policy("broken_policy:P")
