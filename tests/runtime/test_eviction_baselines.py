"""Ids that lose their rows under policies that place no rows by popularity: those that leave under one that does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adaptive_rec import checkpoint
from adaptive_rec.config.tree import load_config
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.runtime import assemble as assembling
from tests.doubles.late_streams import LateStreams
from tests.runtime.conftest import Pace
from tests.runtime.test_eviction import SETTINGS, STEPS, at_pace, outcome, replaced_ids, run_of, trained  # noqa: F401
from tests.runtime.test_eviction_ranks import trained as trained_by_ranks

POLICIES = [["hybrid"], ["device_only"], ["slipstream", "knobs.target_skip_ratio=0"]]


@pytest.mark.parametrize(
    "policy", [pytest.param(each, marks=[] if each[0] == "device_only" else [pytest.mark.slow]) for each in POLICIES]
)
def test_a_baseline_that_evicts_trains_as_hotline_does(tmp_path: Path, pace: Pace, policy: list[str]) -> None:
    """The same ids leave, though nothing goes by popularity but that; also where the run is resumed while ids leave."""
    settings = [*pace.settings(STEPS), "knobs.sample_ratio=0.5", "knobs.admit_after=2"]
    expected = outcome(trained(tmp_path / "hotline", *settings))
    named = [*settings, f"knobs.policy={policy[0]}", *policy[1:]]
    begun, stop = run_of(tmp_path / "begun", *named), pace(121)
    reports = begun.run()
    while begun.step_number < stop:
        next(reports)
    folder = checkpoint.save(begun.parts, tmp_path / "checkpoints")
    reports.close()
    last = run_of(tmp_path / "last", *named)
    checkpoint.load(last.parts, folder)
    list(last.run())
    assert outcome(last) == expected
    assert expected[1]["evicted"] > 100
    hot_rows, all_rows = last.store.hot.tier.hot_rows, last.store.space.rows
    assert policy[0] == "slipstream" or hot_rows == {"hybrid": 0, "device_only": all_rows}[policy[0]]


@pytest.mark.parametrize("policy", ["device_only", pytest.param("hybrid", marks=pytest.mark.slow)])
def test_ids_leave_on_a_device_as_they_do_on_a_cpu(tmp_path: Path, pace: Pace, policy: str) -> None:
    settings = [*SETTINGS, *pace.settings(STEPS), f"knobs.policy={policy}"]
    runtimes = [assembling.assemble(load_config("tiny", {}, settings), streams=streams) for streams in (None, LateStreams(3))]
    for runtime in runtimes:
        list(runtime.run())
    (loss, counts, rows), (late_loss, late_counts, late_rows) = map(outcome, runtimes)
    np.testing.assert_allclose(late_loss, loss, rtol=1e-12)
    assert late_counts == counts
    assert counts["evicted"] > 100
    for mine, theirs in zip(late_rows, rows, strict=True):
        assert mine.keys() == theirs.keys()
        values = [np.frombuffer(b"".join(each[key] for key in mine)) for each in (mine, theirs)]
        np.testing.assert_allclose(*values, rtol=0, atol=1e-11)
    assert all(runtime.store.hot.tier.hot_rows in (0, runtime.store.space.rows) for runtime in runtimes)


@pytest.mark.slow
def test_ids_leave_under_a_policy_that_a_run_changes_to(tmp_path: Path, pace: Pace) -> None:
    found = []
    for policy in ("hybrid", "device_only"):
        runtime = run_of(tmp_path / policy, *pace.settings(STEPS))
        for report in runtime.run():
            if isinstance(report, Snapshot) and report.step == pace(90):
                runtime.mailbox.change_knobs(policy=policy)
        found.append(outcome(runtime))
    assert found[0] == found[1]
    assert found[0][1]["evicted"] > 100


@pytest.mark.parametrize("policy", [pytest.param("hybrid", marks=pytest.mark.slow), "device_only"])
def test_ranks_of_a_baseline_have_the_same_ids_leave(tmp_path: Path, pace: Pace, policy: str) -> None:
    settings = [*pace.settings(STEPS), "knobs.admit_after=2"]
    expected = trained_by_ranks(tmp_path / "hotline", 2, *settings)
    found = trained_by_ranks(tmp_path / policy, 2, *settings, f"knobs.policy={policy}", stops=[pace(121)])
    assert found == expected
    assert expected[0][1]["evicted"] > 100
