"""The report of the staleness study, on made-up results: differences, bounds, the control between its runs, the picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from benchmarks.staleness import report
from benchmarks.staleness.__main__ import result_path
from benchmarks.staleness.plan import RULES, TIMED, VARIANTS, WHOLE


@pytest.fixture
def studied(tmp_path: Path) -> Path:
    """Every variant on one stream, two seeds. What is skipped costs AUC; at random twice as much."""
    for variant in VARIANTS:
        for seed in (1, 2):
            skipped = {WHOLE: 0.0, "random 0.2": 0.2, "random 0.4": 0.4}.get(variant.name, 0.3)
            cost = skipped * (0.02 if variant.name.startswith("random") else 0.01)
            result = {
                "auc": 0.7 + seed / 100 - cost,
                "logloss": 0.5 + cost,
                "calibration": 1.0,
                "trained": 1 - skipped,
                "seconds": 1.0,
            }
            path = result_path(tmp_path, "stationary", variant.name, str(seed))
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(result))
    return tmp_path


def test_every_rule_of_the_knob_is_a_variant() -> None:
    from adaptive_rec.tracking.rules import RULES as OF_THE_KNOB

    assert set(RULES) == set(OF_THE_KNOB)
    assert set(RULES) <= {variant.name for variant in VARIANTS}


def test_all_variants_stand_in_the_table_and_in_a_picture_that_is_well_formed(studied: Path) -> None:
    report.report(studied)
    table = (studied / "table.md").read_text()
    assert [variant.name for variant in VARIANTS if f"| {variant.name} | 2 |" not in table] == []
    drawn = ElementTree.fromstring((studied / "frontier.svg").read_text())
    circles = drawn.findall(".//{http://www.w3.org/2000/svg}circle")
    compared = [variant for variant in VARIANTS if variant.control]
    assert len(circles) == len(compared) + 3 * (len(VARIANTS) - 1)


def test_seconds_are_compared_where_runs_were_made_for_them(studied: Path) -> None:
    for name, seed, seconds in ((WHOLE, 1, 10.0), (WHOLE, 2, 40.0), ("max_abs", 1, 8.0), ("max_abs", 2, 36.0)):
        path = result_path(studied / TIMED, "stationary", name, str(seed))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"seconds": seconds}))
    report.report(studied)
    lines = (studied / "table.md").read_text().splitlines()
    times = {cells[1].strip(): cells[-2].strip() for cells in (line.split("|") for line in lines) if len(cells) > 2}
    assert (times["max_abs"], times[WHOLE], times["popularity"]) == ("0.85", "1.00", "")
    drawn = ElementTree.fromstring((studied / "frontier.svg").read_text())
    assert "time, of the run that skips nothing" in "".join(drawn.itertext())


def test_differences_are_to_the_same_seed_and_the_control_is_read_between_its_runs(studied: Path) -> None:
    found = report.load(studied / "stationary")
    rule = found["max_abs"]
    np.testing.assert_allclose(report.differences(rule, found[WHOLE], "auc"), [-0.003, -0.003])
    np.testing.assert_allclose(report.over_control(found, rule, "auc"), [0.003, 0.003])
    np.testing.assert_allclose(report.over_control(found, rule, "logloss"), [-0.003, -0.003])


def test_bounds_hold_the_mean_between_them() -> None:
    values = np.random.default_rng(1).normal(size=8)
    low, high = report.bounds(values)
    assert low < values.mean() < high
    spread = values.std(ddof=1) / np.sqrt(8)
    assert 1.0 < (high - low) / spread < 4.5
