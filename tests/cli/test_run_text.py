"""What a run says of its tiers at its end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adaptive_rec.cli.run_text import summary_lines
from tests.finished_runs import FinishedRun


@pytest.fixture
def summary(finished_run: FinishedRun) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((finished_run("plain") / "summary.json").read_text())
    return {**found, "device": "cpu", "migrated_rows": 12, "seconds": 20.0, "hot_lookup_ratio": 0.75, "disk": {}}


def tiers(summary: dict[str, Any]) -> object:
    return dict(summary_lines(summary)).get("tiers")


def test_a_run_whose_tiers_are_one_memory_says_what_placing_took_and_what_would_pay(summary: dict[str, Any]) -> None:
    stages = {"execute": 12.0, "observe": 1.0, "reclassify": 0.5, "observe (beside)": 0.5}
    expected = "both are host memory: placing rows took 10% of the time; a GPU would spare 75% of lookups a transfer"
    assert tiers({**summary, "seconds_by_stage": stages}) == expected


@pytest.mark.parametrize("far", [{"device": "cuda:0"}, {"disk": {"rows_read": 1}}, {"migrated_rows": 0}])
def test_a_run_with_something_far_or_nothing_placed_says_nothing(summary: dict[str, Any], far: dict[str, Any]) -> None:
    if "disk" in far:
        names = "rows_read rows_found rows_again rows_written rows_moved size_bytes segments".split()
        far = {"disk": dict.fromkeys(names, 1)}
    assert tiers({**summary, **far}) is None
