"""The benchmark of the modules, rehearsed on tiny shapes: no figure comes of it, but all loops train the same model alike."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_all_loops_take_turns_and_agree(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.drop_in", "--rehearse", "--only", "adagrad", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "results.json").read_text())["cells"]["adagrad"]["result"]
    names = {"adaptive-rec train", "wrapped, prefetch", "wrapped", "collection, prefetch", "nn.EmbeddingBag"}
    assert set(result["runs"]) == names
    assert {check["check"].partition(":")[0] for check in result["checks"]} == names - {
        "adaptive-rec train",
        "wrapped, prefetch",
    }
    assert all(check["passed"] for check in result["checks"])
    ahead = {name: run["facts"].get("looked up ahead") for name, run in result["runs"].items()}
    assert ahead["collection, prefetch"] > 0.9
    assert "of adaptive-rec train" in (tmp_path / "rows.md").read_text()
