"""The report of the staleness study, on made-up results: differences, bounds, the control between its runs, the picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.staleness import planted, promise, report
from benchmarks.staleness.__main__ import result_path
from benchmarks.staleness.plan import RULES, TIMED, VARIANTS, WHOLE
from benchmarks.staleness.planted import LOGS


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


def test_the_promise_is_kept_where_the_bound_is_within_the_limit(tmp_path: Path) -> None:
    for seed, lost in ((1, 0.004), (2, 0.006), (3, 0.005)):
        for variant, more in ((WHOLE, 0.0), ("harsh", lost), ("harsh, lower limit", lost), ("defaults", 0.0)):
            path = result_path(tmp_path, "jump", variant, str(seed))
            path.parent.mkdir(exist_ok=True)
            path.write_text(
                json.dumps({"auc": 0.7, "logloss": seed / 10 + more, "trained": 0.9, "samples": 1000, "seconds": 1.0})
            )
    rows = [line.split("|") for line in promise.report(tmp_path).splitlines()[2:]]
    assert {cells[2].strip(): cells[-2].strip() for cells in rows} == {
        "defaults": "yes", "harsh": "yes", "harsh, lower limit": "NO",
    }  # fmt: skip
    values = np.array([0.004, 0.006, 0.005])
    assert promise.most(values) == pytest.approx(0.005 + 2.91999 * 0.001 / np.sqrt(3), rel=1e-5), "Student's t"


@pytest.mark.parametrize("name", LOGS)
def test_a_planted_log_has_what_its_name_says(name: str) -> None:
    log = replace(LOGS[name], rows=20_000)
    columns, again = planted.columns(log, 5), planted.columns(log, 5)
    assert all(np.array_equal(columns[key], again[key]) for key in columns)
    assert 0.1 < columns["clicked"].mean() < 0.6
    assert columns["item"].max() < log.items
    first, last = np.unique(columns["item"][: 20_000 // log.days]), np.unique(columns["item"][-(20_000 // log.days) :])
    if name == "sessions":
        assert len(np.intersect1d(first, last)) < 0.1 * len(last), "items of the first day are gone on the last"
    if name == "rate-shift":
        assert columns["clicked"][10_000:].mean() > columns["clicked"][:10_000].mean() + 0.05
    if name == "rare-rows":
        assert np.median(np.unique(columns["item"], return_counts=True)[1]) == 1
