"""Runs with rows on a disk: what is refused, and a run that ends, resumes and moves between disk and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.disk import row_log
from adaptive_rec.errors import AdaptiveRecError, ConflictError
from adaptive_rec.live.telemetry import Event
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import RunOptions

ON_DISK = ["run.host_memory=1MiB", "knobs.hot_budget_bytes=24KiB"]


def test_host_memory_sets_the_budget_of_hot_rows_unless_that_is_given_too() -> None:
    assert load_config("tiny", {}, ["run.host_memory=8MiB"]).knobs.hot_budget_bytes == 7 << 20
    assert load_config("tiny", {}, ["run.host_memory=8MiB", "knobs.hot_budget_bytes=1MiB"]).knobs.hot_budget_bytes == 1 << 20
    assert load_config("tiny", {}, []).knobs.hot_budget_bytes == 24 << 10


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        (["run.host_memory=8KiB", "knobs.hot_budget_bytes=24KiB"], "hot rows must fit in run.host_memory=8KiB"),
        (["run.host_memory=8KiB", "knobs.policy=device_only"], "hot rows must fit in run.host_memory=8KiB, policy device_only"),
        (["run.host_memory=1MiB", "knobs.policy=xdl"], "lays out tables separately, got xdl"),
    ],
)
def test_what_cannot_lie_on_a_disk_is_refused_by_name(tmp_path: Path, settings: list[str], rule: str) -> None:
    with pytest.raises(AdaptiveRecError, match=rule):
        assemble(load_config("tiny", {}, settings), options=RunOptions(rows=tmp_path / "rows"))


def test_a_folder_with_rows_of_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pool-0").mkdir()
    (tmp_path / "pool-0/000000000.rows").write_text("x")
    with pytest.raises(AdaptiveRecError, match=r"run\.disk must be a folder without rows of another run"):
        assemble(load_config("tiny", {}, [*ON_DISK, f"run.disk={tmp_path}"]))


@pytest.mark.parametrize("changes", [{"hot_budget_bytes": 1 << 20}, {"policy": "device_only"}], ids=str)
def test_knobs_that_want_more_than_the_memory_are_refused_while_the_run_trains(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    settings = ["run.host_memory=30KiB", "knobs.hot_budget_bytes=24KiB"]
    runtime = assemble(load_config("tiny", {}, settings), options=RunOptions(rows=tmp_path / "rows"))
    with pytest.raises(ConflictError, match="hot rows must fit in run.host_memory=30KiB, these knobs give them"):
        runtime.mailbox.change_knobs(**changes)
    runtime.mailbox.change_knobs(hot_budget_bytes=8 << 10)
    assert [report.kind for report in runtime.run() if isinstance(report, Event) and report.kind == "knobs"] == ["knobs"]


def test_a_run_resumes_on_the_disk_in_memory_and_on_the_disk_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT", 0)
    budget = "--set knobs.hot_budget_bytes=8KiB --set checkpoint.every_steps=7 --no-serve".split()

    def train(name: str, steps: int, *words: str) -> None:
        assert main(["train", "tiny", "--set", f"run.steps={steps}", *budget, *words, "--out", str(tmp_path / name)]) == 0

    disk, memory = ("--set", "run.host_memory=1MiB"), ("--set", "run.host_memory=0")
    train("plain", 60)
    train("run", 20, *disk)
    train("run", 35, *disk, "--resume")
    train("run", 45, *memory, "--resume")
    train("run", 60, *disk, "--resume")

    capsys.readouterr()
    assert main(["checkpoint", "diff", str(tmp_path / "plain"), str(tmp_path / "run")]) == 0
    for words in (["eval"], ["checkpoint", "verify"], ["checkpoint", "list"]):
        assert main([*words, str(tmp_path / "run")]) == 0
    assert main(["checkpoint", "export", str(tmp_path / "run"), "--out", str(tmp_path / "tables"), "--as", "npy"]) == 0
