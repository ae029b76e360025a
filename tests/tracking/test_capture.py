"""The tracker's bar on real click data: how much of what exact counts catch the sampled sketch catches too.

The replay is that of `benchmarks/tracking.py`, with the default knobs. Data: ADAPTIVE_REC_TEST_DATA, or
`../shared/data` beside the repository.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from adaptive_rec.config.knobs import Knobs


def load_study() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "tracking.py"
    spec = importlib.util.spec_from_file_location("benchmarks_tracking", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses look their module up there.
    spec.loader.exec_module(module)
    return module


study = load_study()


@pytest.fixture(scope="module", params=["criteo", "scarab"])
def stream(request: pytest.FixtureRequest) -> Any:
    try:
        return study.STREAMS[request.param](study.data_folder())
    except FileNotFoundError as missing:
        pytest.skip(f"{Path(missing.filename).name} is absent: set ADAPTIVE_REC_TEST_DATA to the folder it is in")


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_the_sketch_catches_nearly_what_exact_counts_catch(stream: Any, share: float) -> None:
    line = study.capture(stream, share, Knobs(), seed=0)
    assert line["of_exact"] >= study.BARS[share]
    assert line["exact_hit_ratio"] > 0.35
    assert line["windows"] >= 9


def test_windows_end_early_at_first() -> None:
    assert [step for step in range(1, 301) if study.window_ends(step, 100)] == [8, 16, 32, 64, 100, 200, 300]
