"""How far the step is from the command line: few functions stand between them, so that a traceback of a step is read at once."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.runtime.steps import TrainingSteps

TINY = ["train", "tiny", "--steps", "2", "--no-serve", "--set", "eval.max_samples=64"]


@pytest.mark.parametrize("policy", ["hybrid", "slipstream", "fae"])
def test_four_calls_lead_from_main_to_the_step(policy: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    make = TrainingSteps.make

    def seen(*args: Any) -> None:
        names, frame = [], sys._getframe(1)
        while frame.f_code is not main.__code__:
            names.append(frame.f_code.co_qualname)
            assert isinstance(frame.f_back, FrameType)
            frame = frame.f_back
        calls.append(["main", *reversed(names), "TrainingSteps.make"])
        make(*args)

    monkeypatch.setattr(TrainingSteps, "make", seen)
    assert main([*TINY, "--policy", policy, "--out", str(tmp_path / "run")]) == 0
    assert calls
    for names in calls:
        assert names == ["main", "train", "TrainingRun.events", "Runtime.run", "TrainingSteps.make"]
