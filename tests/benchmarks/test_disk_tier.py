"""The benchmark of rows on a disk: rivals make the updates of our runs, and its tables and bars say what was measured."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.disk_tier.plan import ADVISED, ARRAYS, BAGS, IN_MEMORY, OURS, RIVALS, ROCKS, Setup, bars

ROOT = Path(__file__).parent.parent.parent
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
STEPS = 12


def trained(name: str, folder: Path) -> tuple[dict[str, float], list[Any]]:
    """Return the counters and all rows after some steps, in two turns."""
    from benchmarks.common.shapes import SHAPES, open_shape
    from benchmarks.disk_tier.contestants import build, configured

    settings = ("optimizer.embedding=rowwise_adagrad", "knobs.reclassify_every=4", "run.threads=1")
    setup = Setup(name, "tiny", "", 64, 0.1, settings, str(folder / "rows"))
    config = configured(setup)
    contestant = build(setup, open_shape(SHAPES["tiny"], config), config)
    contestant.drive(STEPS // 2)
    contestant.settle()
    contestant.drive(STEPS // 2)
    tables = config.data.table_rows
    rows = [contestant.rows(table, np.arange(count)) for table, count in enumerate(tables)]
    counters = contestant.counters()
    contestant.close()
    return counters, rows


def test_a_run_with_rows_on_a_disk_reads_and_writes_them_and_equals_one_in_memory(tmp_path: Path) -> None:
    counters, rows = trained(OURS, tmp_path / "disk")
    expected, expected_rows = trained(IN_MEMORY, tmp_path / "memory")
    assert counters["loss_sum"] == expected["loss_sum"]
    assert all(np.array_equal(a, b) for a, b in zip(rows, expected_rows, strict=True))
    assert counters["rows_written"] > sum(len(table) for table in rows)  # all once before the first step


@pytest.mark.parametrize("name", [BAGS, ARRAYS + ADVISED, ROCKS])
def test_rivals_make_the_same_updates(name: str, tmp_path: Path) -> None:
    if name == ROCKS and not importlib.util.find_spec("rocksdict"):
        pytest.skip("rocksdict is not installed")
    counters, rows = trained(name, tmp_path / "rival")
    expected, expected_rows = trained(IN_MEMORY, tmp_path / "memory")
    assert counters["samples"] == expected["samples"] == 64 * STEPS
    assert counters["loss_sum"] == pytest.approx(expected["loss_sum"], rel=1e-5)
    for mine, theirs in zip(rows, expected_rows, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


def run(seconds: float, waits: float = 0.0) -> dict[str, Any]:
    return {"seconds": [seconds] * 3, "facts": {"part of the step that waits for the disk": waits}}


def test_bars_compare_medians() -> None:
    runs = {OURS: run(2.2), IN_MEMORY: run(2.0), ROCKS: run(5.0)}
    cells = {"25-percent": {"result": {"runs": runs}}, "globo": {"result": {"runs": {OURS: run(1.0, waits=0.2)}}}}
    found = {one["what"]: one for one in bars(cells)}
    assert [one["met"] for one in found.values()] == [True, False, False]
    assert found["25-percent: step beside all in memory"]["figure"] == pytest.approx(1.1)


def test_without_memory_groups_it_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from benchmarks.disk_tier import limits

    monkeypatch.setattr(limits, "MEMORY_GROUPS", tmp_path / "absent")
    with pytest.raises(SystemExit, match="must include the page cache.*cannot be made"):
        limits.MemoryGroup("try")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not MEMORY_GROUPS.exists(), reason="memory groups need root and cgroup v1")
def test_contestants_take_turns_under_a_limit(tmp_path: Path) -> None:
    words = ["--rehearse", "--only", "10-percent", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.disk_tier", *words], cwd=ROOT, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = (tmp_path / "rows.md").read_text(encoding="utf-8")
    rivals = [name for name in RIVALS if name != ROCKS or importlib.util.find_spec("rocksdict")]
    assert all(f"| {name} |" in table for name in (OURS, IN_MEMORY, *rivals))
    assert "rows read" in table
    assert "10 % of the rows in memory" in (tmp_path / "picture.svg").read_text(encoding="utf-8")
    assert not list((tmp_path / "rows").iterdir())
