"""The benchmark of TBSM: popularity is counted as it says, and its verdict is that of its figures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import tbsm

HOUR_MS = 3_600_000


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 4)), min_size=1, max_size=40), st.data())
def test_popularity_counts_the_clicks_before_a_rows_own(found: list[tuple[int, int]], data: st.DataObject) -> None:
    clicks = sorted((hour * HOUR_MS, key) for hour, key in found)
    rows = data.draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, len(clicks) - 1)), min_size=1, max_size=10))
    time_C, key_C = np.array(clicks, dtype=np.int64).T
    key_R, click_R = np.array(rows, dtype=np.int64).T
    for name, counts_R in tbsm.clicks_before(key_C, time_C, key_R, click_R).items():
        since = tbsm.WINDOWS_HOURS[name] * HOUR_MS
        assert counts_R.tolist() == [
            sum(other == key and clicks[at][0] - time <= since for time, other in clicks[:at]) for key, at in rows
        ]


@pytest.mark.parametrize(("worst", "verdict"), [(0.905, "met"), (0.895, "MISSED")])
def test_the_bar_is_held_against_the_best_baseline_and_the_worst_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], worst: float, verdict: str
) -> None:
    def runs(*aucs: float) -> list[dict[str, Any]]:
        return [{"eval": {"auc": auc, "logloss": 0.3, "calibration": 1.0, "samples": 50}} for auc in aucs]

    args = argparse.Namespace(out=tmp_path, train=[0.0, 0.5], test=[0.5, 1.0])
    popularity = {"samples": 50, "1 h": 0.85, "6 h": 0.88, "ever": 0.7}
    tbsm.report(args, {"popularity": popularity, "tbsm": runs(0.95, worst), "dlrm": runs(0.9)})
    told = capsys.readouterr().out
    assert (
        f"above popularity (6 h) by {(0.95 + worst) / 2 - 0.88:.4f}, at the least {worst - 0.88:.4f}: {verdict}" in told
    )
    assert (tmp_path / "0-0.5-0.5-1" / "table.md").read_text() in told
