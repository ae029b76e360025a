"""Runs are scored on machines that could not train them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.runtime import start_checks
from adaptive_rec.system import cuda_driver


@pytest.mark.parametrize("setting", ["run.precision=tf32", "run.classify=device", "run.cold_rows=in_place"])
def test_a_run_of_a_gpu_is_scored_on_a_cpu(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def as_on_a_gpu(*_: Any) -> None:
        pass

    words = ["train", "tiny", "--no-serve", "--steps", "10", "--out", str(tmp_path / "run"), "--set", setting]
    assert main(words) != 0, "a CPU does not train it"
    capsys.readouterr()
    with monkeypatch.context() as gpu:
        gpu.setattr(start_checks, "check_features", as_on_a_gpu)
        gpu.setattr(cuda_driver, "may_have_cuda", lambda: True)
        assert main(words) == 0
    assert main(["eval", str(tmp_path / "run")]) == 0
    assert "AUC" in capsys.readouterr().out
