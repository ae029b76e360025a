"""The roofline, rehearsed on tiny shapes: no figure comes of it, but every kernel is measured and shown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.roofline.plan import CELLS, MACHINE

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_every_kernel_has_its_roof_and_its_time(tmp_path: Path) -> None:
    for attempt in range(3):  # a busy machine now and then makes a tiny copy slower than the kernel that it bounds
        out = tmp_path / str(attempt)
        command = [sys.executable, "-m", "benchmarks.roofline", "--rehearse", "--out", str(out)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stdout + done.stderr
        cells = {name: cell["result"] for name, cell in json.loads((out / "results.json").read_text())["cells"].items()}
        machine = cells.pop(MACHINE)
        if bounded := all(0 < one["runs"]["roof"]["median"] < one["runs"]["ours"]["median"] for one in cells.values()):
            break
    assert {one["bytes"] for one in machine["rows"]} == {64, 128, 256, 512}
    assert all(one["read"] > 0 and one["changed"] > 0 for one in machine["rows"])
    assert len(cells) == len(CELLS) - 1 == 9
    assert bounded, cells
    rows = (out / "rows.md").read_text()
    assert "A rehearsal on tiny shapes" in rows
    assert "| random row | threads |" in rows
    assert rows.count("| roof |") == 9
    assert "<svg" in (out / "picture.svg").read_text()
