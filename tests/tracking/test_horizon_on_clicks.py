"""The bars of windows found online on real streams: adaptive windows against exact counts with the best fixed ones, and defaults.

Data: ADAPTIVE_REC_TEST_DATA, or `../shared/data` beside the repository.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.common.command import data_folder
from tests.tracking import news as study
from tests.tracking.streams import criteo, scarab


def needs(name: str) -> Path:
    if not (data_folder() / name).exists():
        pytest.skip(f"{name} is absent: set ADAPTIVE_REC_TEST_DATA to the folder it is in")
    return data_folder()


@pytest.fixture(scope="module")
def news() -> tuple[Any, Any]:
    return study.read_globo(needs("globo_clicks_2988181.csv.zst"))


def by_day(replay: Any, day_S: Any) -> Any:
    return np.bincount(day_S, replay.hits_S) / np.bincount(day_S) / study.CLICKS_PER_STEP


@pytest.mark.slow
@pytest.mark.parametrize(("share", "window_steps", "decay"), [(0.01, 10, 0.6), (0.05, 10, 0.9)])
def test_adaptive_windows_catch_nearly_what_the_best_fixed_ones_catch(
    news: tuple[Any, Any], share: float, window_steps: int, decay: float
) -> None:
    stream, day_S = news
    capacity = int(stream.rows * share)
    best = study.replay_exact(stream, capacity, window_steps, decay)
    found = study.replay_sketch(stream, capacity, study.ADAPTIVE, seed=0, adapts=True)
    assert found.hits_S.sum() >= study.BAR * best.hits_S.sum()
    assert by_day(found, day_S)[-1] >= study.BAR * by_day(best, day_S)[-1]
    static = study.replay_static(stream, capacity, int(np.count_nonzero(day_S == 0)))
    assert by_day(static, day_S)[-1] < 0.01


@pytest.mark.parametrize("share", [0.01, pytest.param(0.1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("read", "name"),
    [
        pytest.param(criteo, "criteo_kaggle_sample_137k.tsv.zst", marks=pytest.mark.slow),
        (scarab, "scarab-recs.trace.xz"),
    ],
)
def test_adaptive_windows_are_no_worse_where_the_defaults_do_well(read: Any, name: str, share: float) -> None:
    line = study.compare(read(needs(name)), share, seed=0)
    assert line["adaptive"] >= line["sketch"] - 0.001
