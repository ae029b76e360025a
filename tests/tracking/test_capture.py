"""The tracker's bar on real click data: how much of what exact counts catch the sampled sketch catches too.

The default knobs replay the streams. Data: ADAPTIVE_REC_TEST_DATA, or `../shared/data` beside the repository.
"""

from __future__ import annotations

from typing import Any

import pytest

from adaptive_rec.config.knobs import Knobs
from benchmarks.common.command import data_folder
from tests.tracking import streams as study

FILES = {"criteo": "criteo_kaggle_sample_137k.tsv.zst", "scarab": "scarab-recs.trace.xz"}


@pytest.fixture(scope="module", params=list(FILES))
def stream(request: pytest.FixtureRequest) -> Any:
    if not (data_folder() / FILES[request.param]).exists():
        pytest.skip(f"{FILES[request.param]} is absent: set ADAPTIVE_REC_TEST_DATA to the folder it is in")
    return study.STREAMS[request.param](data_folder())


@pytest.mark.parametrize("share", [0.01, pytest.param(0.1, marks=pytest.mark.slow)])
def test_the_sketch_catches_nearly_what_exact_counts_catch(stream: Any, share: float) -> None:
    line = study.capture(stream, share, Knobs(), seed=0)
    assert line["of_exact"] >= study.BARS[share]
    assert line["exact_hit_ratio"] > 0.35
    assert line["windows"] >= 9


def test_windows_end_early_at_first() -> None:
    assert [step for step in range(1, 301) if study.window_ends(step, 100)] == [8, 16, 32, 64, 100, 200, 300]
