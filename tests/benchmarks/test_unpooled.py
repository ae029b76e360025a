"""The benchmark of un-pooled lookups, rehearsed on tiny shapes: all loops train the same model alike."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("shape", [["--ngrams"], [], ["--dense"]])
def test_all_loops_take_turns_and_agree(shape: list[str]) -> None:
    ours = ["--only", "wrap", "wrap, prefetch"]
    command = [sys.executable, "-m", "benchmarks.unpooled", "--rehearse", *shape, *ours]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    names = ["torch", "wrap"] if "--dense" in shape else ["torch", "wrap", "wrap, prefetch"]
    assert [line["contestant"] for line in lines[:-1]] == names
    assert all(line["ms"] > 0 for line in lines[:-1])
    assert lines[-1]["command"].startswith("python -m benchmarks.unpooled --rehearse")
