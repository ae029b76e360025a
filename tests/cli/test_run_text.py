"""What a run says of its tiers, and of its speed, at its end."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from adaptive_rec.cli.console import Screen
from adaptive_rec.cli.run_text import summary_lines
from adaptive_rec.units import clock
from tests.finished_runs import FinishedRun

if TYPE_CHECKING:
    from adaptive_rec.run.current_run import CurrentRun


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


@pytest.mark.parametrize(("seconds", "said"), [(8.0, ", 2 s of it compiling kernels (later runs load them)"), (2000.0, "")])
def test_a_run_says_how_long_kernels_were_compiled_while_it_trained(
    summary: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float, said: str
) -> None:
    now = [0.0]
    monkeypatch.setattr("adaptive_rec.cli.progress.time.monotonic", lambda: now[0])
    screen = Screen(stream=(printed := StringIO()))

    def compile_for(seconds: float) -> None:
        screen.compiling(True)
        screen.compiling(True)  # one that the first one calls
        screen.compiling(False)
        now[0] += seconds
        screen.compiling(False)
        now[0] += 1.0

    compile_for(5.0)  # while tables are built
    screen.first_step(cast("CurrentRun", object()))
    compile_for(1.5)
    compile_for(0.5)
    screen.status("writing the checkpoint")
    compile_for(3.0)  # while samples are scored
    screen.summary({**summary, "seconds": seconds}, tmp_path)
    line = next(text for text in printed.getvalue().splitlines() if text.startswith("speed"))
    assert line.rstrip().endswith(f"samples/s, {clock(seconds)}{said}")
