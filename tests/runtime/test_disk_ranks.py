"""Runs of several ranks with rows on a disk, which end, resume, change their number and move between disk and memory."""

from __future__ import annotations

import gc
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec import checkpoint
from adaptive_rec.checkpoint.disk_entry import saved_logs
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.generation import read_manifest
from adaptive_rec.checkpoint.history import names_in_use, newest_names
from adaptive_rec.checkpoint.rows import SavedRows
from adaptive_rec.cli import main
from adaptive_rec.embedding.path.read_ahead import ReadAheadPath
from adaptive_rec.errors import AdaptiveRecError
from tests.runtime.test_resumed_ranks import trained

pytestmark = pytest.mark.usefixtures("small_segments")

SMALL = ["knobs.hot_budget_bytes=1000", "checkpoint.every_steps=7"]
OFTEN = "checkpoint.every_steps=3"
ON_DISK = [*SMALL, "run.host_memory=1MiB"]


def rows_of(out: Path) -> list[np.ndarray]:
    """All rows of a run's newest checkpoint, and their optimizer state."""
    newest = checkpoint.newest(out / "checkpoints")
    assert newest is not None
    saved = SavedRows(DISK, newest)
    return [part for table in saved.tables for part in saved.read(table, 0, table.rows)]


def segments_in_use(out: Path) -> set[Path]:
    folder = out / "checkpoints"
    return {
        path
        for name in names_in_use(DISK, folder, 2)
        for log in saved_logs(read_manifest(DISK, folder / name), folder / name)
        for path in log.files
    }


STOPS = pytest.mark.parametrize(
    ("stops", "every"),
    [((9, 14, 18, 0, 22, 26), OFTEN), pytest.param((20, 30, 38, 45, 52, 60), "checkpoint.every_steps=7", marks=pytest.mark.slow)],
    ids=["short", "long"],
)
"""Steps at which runs stop; at 0 they stay where they are: a short run goes on elsewhere right after it was in memory."""


def assert_goes_on(tmp_path: Path, stops: tuple[int, ...], every: str) -> Path:
    """Train in two ranks, resumed at each stop on a disk, in memory and elsewhere; the rows are those of an unbroken run."""
    trained(tmp_path / "whole", 2, *SMALL, every, f"run.steps={stops[-1]}")
    out, there = tmp_path / "run", f"run.disk={tmp_path / 'there'}"
    for steps, changes in zip(stops, (ON_DISK, ON_DISK, SMALL, ON_DISK, [*ON_DISK, there], ON_DISK), strict=True):
        if not steps:
            continue
        summary = trained(out, 2, *changes, every, f"run.steps={steps}", resume=steps > stops[0])
        rows_of(out)
        assert bool(summary["disk"]) == ("run.host_memory=1MiB" in changes)
    for one, other in zip(rows_of(tmp_path / "whole"), rows_of(out), strict=True):
        np.testing.assert_array_equal(one, other)
    return out


@STOPS
def test_the_same_ranks_go_on_bit_by_bit_on_a_disk_in_memory_and_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stops: tuple[int, ...], every: str
) -> None:
    out = assert_goes_on(tmp_path, stops, every)
    capsys.readouterr()
    before = sorted((out / "rows").rglob("*"))
    for words in (["eval"], ["checkpoint", "verify"], ["checkpoint", "list"]):
        assert main([*words, str(out)]) == 0
    gc.collect()
    assert sorted((out / "rows").rglob("*")) == before
    assert main(["checkpoint", "export", str(out), "--out", str(tmp_path / "tables"), "--as", "npy"]) == 0


def test_counts_of_the_disk_are_those_of_all_ranks_once_and_go_on_when_they_resume(tmp_path: Path) -> None:
    """The later counts of a run that was resumed are not far from those of a run that was not."""
    out, whole = tmp_path / "run", trained(tmp_path / "whole", 2, *ON_DISK, "run.steps=20")["disk"]
    for steps in (12, 20):
        found = trained(out, 2, *ON_DISK, f"run.steps={steps}", "knobs.report_every=4", resume=steps > 12)["disk"]
        assert not json.loads((out / "run.json").read_text())["on_disk"], "no rank knows where the rows of others lie"
        sizes = [file.stat().st_size for file in (out / "rows").rglob("*.rows")]
        assert found["size_bytes"] == found["segments"] * max(sizes), "all files are of one size"
        assert abs(found["segments"] - len(sizes)) <= 2, "but for what compaction does after the summary"
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        totals = next(line["totals"] for line in reversed(lines) if "totals" in line)
        assert 0 < totals["disk_rows_ahead"] <= found["rows_ahead"]
        assert totals["disk_rows_written"] <= found["rows_written"]
    assert found["rows_written"] < 1.5 * whole["rows_written"]


@pytest.mark.slow
@pytest.mark.parametrize("turn", [6, pytest.param(15, marks=pytest.mark.slow)])
def test_another_number_of_ranks_reads_the_rows_through(tmp_path: Path, turn: int) -> None:
    trained(tmp_path / "whole", 1, f"run.steps={4 * turn}")
    out = tmp_path / "run"
    for number, ranks in enumerate((2, 3, 1, 2), start=1):
        trained(out, ranks, *ON_DISK, OFTEN, f"run.steps={number * turn}", resume=number > 1)
        for name in newest_names(DISK, out / "checkpoints", 2):
            rows = SavedRows(DISK, out / "checkpoints" / name)
            for table in rows.tables:
                rows.read(table, 0, table.rows)
    for one, other in zip(rows_of(tmp_path / "whole"), rows_of(out), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)
    trained(out, 2, *ON_DISK, OFTEN, f"run.steps={4 * turn}", resume=True)  # it removes what is not needed
    assert set((out / "rows").resolve().rglob("*.rows")) == segments_in_use(out)


def test_a_pool_for_each_table_is_read_where_tables_share_one_and_back(tmp_path: Path) -> None:
    trained(tmp_path / "whole", 1, "run.steps=12")
    out = tmp_path / "run"
    for steps, ranks, policy in ((4, 2, "xdl"), (7, 1, "hybrid"), (10, 1, "xdl"), (12, 1, "hybrid")):
        trained(out, ranks, *ON_DISK, OFTEN, f"run.steps={steps}", f"knobs.policy={policy}", resume=steps > 4)
    for one, other in zip(rows_of(tmp_path / "whole"), rows_of(out), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)


def test_rows_that_other_ranks_request_are_read_ahead_of_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"ahead": 0, "in line": 0}
    read = ReadAheadPath._read

    def counted(self: Any, pool: int, row_U: Any, some: Any, part: Any) -> None:
        counts["ahead" if threading.current_thread().name.startswith("read-rows") else "in line"] += len(some)
        read(self, pool, row_U, some, part)

    monkeypatch.setattr(ReadAheadPath, "_read", counted)
    trained(tmp_path / "run", 2, *ON_DISK, "run.steps=30", "knobs.prefetch_depth=4", "eval.max_samples=1")
    assert counts["ahead"] > 0.5 * sum(counts.values())


def test_a_folder_with_rows_of_other_ranks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rank-1" / "pool-0").mkdir(parents=True)
    (tmp_path / "rank-1" / "pool-0" / "000000000.rows").write_text("x")
    with pytest.raises(AdaptiveRecError, match=r"run\.disk must be a folder without rows of another run"):
        trained(tmp_path / "run", 2, *ON_DISK, f"run.disk={tmp_path}")
