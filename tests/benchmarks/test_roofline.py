"""The roofline, rehearsed on tiny shapes: no figure comes of it, but every kernel is measured and shown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_every_kernel_has_its_roof_and_its_time(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.roofline", "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    assert {one["bytes"] for one in found["rows"]} == {64, 128, 256, 512}
    assert all(one["read"] > 0 and one["changed"] > 0 for one in found["rows"])
    kernels = {(one["kernel"], one["shape"]) for one in found["kernels"]}
    assert len(kernels) == len(found["kernels"]) == 9
    assert all(one["roof"] > 0 and one["ours"] > 0 for one in found["kernels"])  # which is longer, a busy machine decides
    rows = (tmp_path / "rows.md").read_text()
    assert all(f"| {kernel} | {shape} |" in rows for kernel, shape in kernels)
    assert rows.startswith("Rehearsed on tiny shapes")
    assert rows in done.stdout
    assert "<svg" in (tmp_path / "roofline.svg").read_text()
