"""Advice about a hot budget: `profile`, `plan` and `simulate` name the same one for the same data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import load_config
from adaptive_rec.offline.advice import movement_note
from adaptive_rec.policy.find import load_policy

FITS = "everything fits, no hot tier is needed"
DRIFTING = ["--set", "data.synthetic.drift_ranks=5", "--set", "data.synthetic.samples=6000"]

Run = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> str:
        assert main(list(words)) == 0
        return capsys.readouterr().out

    return run


def screens(printed: Run, *settings: str, data: tuple[str, ...] = ()) -> list[str]:
    """Return what the three commands print about the same data."""
    named = ["--data", *data] if data else ["tiny"]
    return [
        printed("profile", *(data or ("synthetic", "tiny")), *settings),
        printed("plan", *named, *settings, "--no-rehearsal"),
        printed("simulate", *(data or ("tiny",)), *settings, "--policies", "hotline", "--steps", "20"),
    ]


def suggested(screen: str) -> list[str]:
    return [line.split("=")[-1] for line in screen.splitlines() if line.startswith("suggested ")]


def test_all_three_name_one_budget_and_say_that_everything_fits(printed: Run) -> None:
    """Whatever the order of the samples: profile reads them as the file has them, plan as the run does."""
    found = screens(printed, *DRIFTING)
    assert len({*map(tuple, map(suggested, found))}) == 1, list(map(suggested, found))
    assert len(suggested(found[0])) == 1
    assert all(FITS in screen for screen in found)
    assert any(line.startswith("budget ") and "(suggested, " in line for line in found[2].splitlines())


def test_all_three_name_one_budget_for_real_clicks(printed: Run, criteo_sample: Path) -> None:
    found = screens(printed, data=(str(criteo_sample),))
    assert {tuple(suggested(screen)) for screen in found} == {("3MiB",)}


def test_where_not_everything_fits_nobody_says_so(printed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("profile", "simulation"):
        monkeypatch.setattr(f"adaptive_rec.offline.forecast.{module}.room_bytes", lambda config: 10_000)
    profile, _, simulate = screens(printed, *DRIFTING)
    assert FITS not in profile + simulate
    plan = json.loads(printed("plan", "tiny", "--no-rehearsal", "--policy", "hybrid", "--json"))
    assert not plan["everything_fits"]


def test_where_rows_take_more_bytes_the_screen_says_so(printed: Run) -> None:
    note = "as its movement is recorded; a budget holds"
    moves = ("--set", "knobs.stale_metric=max_abs")
    adaptive = screens(printed, *DRIFTING, "--set", "knobs.policy=adaptive", *moves)
    assert [note in screen for screen in adaptive] == [True, True, False]  # hotline alone was replayed
    assert note in printed("train", "tiny", "--dry-run", "--policy", "slipstream", *moves)
    assert note in printed("simulate", "tiny", "--steps", "4", "--policies", "hotline,slipstream", "--budgets", "2KiB", *moves)
    assert note not in printed("train", "tiny", "--dry-run", "--policy", "slipstream")
    assert not any(note in screen for screen in screens(printed, *DRIFTING))
    assert movement_note("x", 144, 68).endswith("a budget holds 53% fewer rows than under hotline")


def test_a_policy_above_the_ceiling_is_explained_where_the_ceiling_is_shown(printed: Run, tmp_path: Path) -> None:
    why = "it looks ahead and changes rows within windows"
    words = ["simulate", "tiny", "--steps", "20", "--policies", "hotline,cdlrm", "--budgets", "4KiB"]
    text = printed(*words, "--out", str(tmp_path))
    results = json.loads((tmp_path / "simulate.json").read_text())
    hotline, cdlrm = (one["hot_lookup_ratio"] for one in results["results"])
    assert hotline < results["ceiling"][0] < cdlrm
    assert f"cdlrm is above the ceiling: {why}" in text
    assert why in (tmp_path / "simulate.html").read_text()
    assert "hotline is above" not in text


def test_the_default_policy_costs_no_quality(printed: Run) -> None:
    policy: Any = load_policy(Knobs().policy)
    assert policy.exact
    assert not policy.tracks_movement
    for preset in ("synthetic", "tiny", "clicks", "clicks_small", "criteo_sample", "criteo_kaggle"):
        assert load_policy(load_config(preset, {}).knobs.policy).exact, preset
