"""The run directory of a user's training loop: figures, losses and report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.offline.report.run_report import write_report

from .training import CASES, Loop

STEPS = 20


def snapshots(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def recorded(out: Path, when: str) -> list[float]:
    """Train, with losses recorded after the backward pass, before it, or not at all. Returns the losses."""
    loop = Loop(CASES["dlrm"], "adagrad", {"report_every": 5, "update": "backward"})
    loop.runtime._watch.record(out)

    def step(model: Any, batch: Any, own: Loop) -> Any:
        loss = own.case.loss(model, batch)
        if when == "before":
            own.runtime.record_loss(loss)
        loss.backward()
        if when == "after":
            own.runtime.record_loss(loss)
        return loss

    loop.step = step
    losses = loop.run(STEPS).losses
    loop.runtime.close()
    return losses


def test_losses_recorded_before_the_backward_pass_count_for_their_step(tmp_path: Path) -> None:
    losses = recorded(tmp_path / "run", "before")
    reported = [one["loss"] for one in snapshots(tmp_path / "run")]
    assert reported == pytest.approx([sum(losses[first : first + 5]) / 5 for first in range(0, STEPS, 5)], rel=1e-12)


def test_losses_recorded_after_the_backward_pass_count_for_the_next_step(tmp_path: Path) -> None:
    losses = recorded(tmp_path / "run", "after")
    late = [losses[0], *losses[:-1]]
    reported = [one["loss"] for one in snapshots(tmp_path / "run")]
    assert reported == pytest.approx([sum(late[first : first + 5]) / 5 for first in range(0, STEPS, 5)], rel=1e-12)


def test_without_recorded_losses_none_is_shown(tmp_path: Path) -> None:
    recorded(tmp_path / "run", "never")
    for one in snapshots(tmp_path / "run"):
        assert one["loss"] is None
        assert "loss_sum" not in one["totals"]
        assert one["totals"]["samples_trained"] == one["step"] * 48
        assert 0 <= one["popular_sample_ratio"] <= one["hot_lookup_ratio"] <= 1


def test_the_report_of_a_user_s_loop_says_nothing_about_its_data(tmp_path: Path) -> None:
    recorded(tmp_path / "run", "before")
    write_report(tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "of the loop's own" in page.replace("&#x27;", "'").replace("&#39;", "'")
    assert "--replay" not in page
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"
    assert "reclassified" in kinds
