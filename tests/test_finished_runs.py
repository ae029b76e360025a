"""The runs that tests share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.cli import main
from tests.finished_runs import KINDS, FinishedRuns
from tests.matrix import always, each, grid


@grid(always, each, kind=list(KINDS))
def test_a_finished_run_is_whole_and_a_copy_goes_on_without_touching_it(
    kind: str, finished_run: Any, shared_runs: FinishedRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    out = finished_run(kind)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["steps"] == json.loads((shared_runs.original(kind) / "summary.json").read_text())["steps"] > 0
    assert main(["checkpoint", "verify", str(out)]) == 0
    capsys.readouterr()


def test_a_test_that_writes_to_a_shared_file_fails(tmp_path: Path) -> None:
    runs = FinishedRuns(tmp_path / "own")
    out = runs.copy("plain", tmp_path / "run")
    runs.check()
    file = next(out.rglob("*.safetensors"))
    with file.open("r+b") as written:
        written.write(b"x")
    with pytest.raises(AssertionError, match="must not write to"):
        runs.check()
    again = runs.copy("plain", tmp_path / "again", links=False)
    with next(again.rglob("*.safetensors")).open("r+b") as written:
        written.write(b"x")
    runs.check()
