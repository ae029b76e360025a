"""Lines for which there is no room: they wait, none is torn, and the run goes on."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.config.tree import load_config
from adaptive_rec.run import journal, line_file
from adaptive_rec.run.line_file import LineFile, append_lines
from adaptive_rec.run.training_run import TrainingRun

TINY = [
    "run.device=cpu", "run.threads=1", "run.steps=12", "run.batch_size=8", "data.table_rows=[9, 5]", "model.bottom_mlp=[4]",
    "model.top_mlp=[4]", "model.embedding_dim=2", "data.synthetic.samples=400", "data.synthetic.test_samples=16",
    "knobs.report_every=1",
]  # fmt: skip


class Disk:
    """Files that take so many bytes, and then no more."""

    def __init__(self, room: int) -> None:
        self.room = room

    def open(self, path: Path, mode: str, buffering: int = -1) -> io.FileIO:
        disk = self

        class Full(io.FileIO):
            def write(self, data: Any) -> int:
                taken = min(disk.room, len(data))
                if not taken:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                disk.room -= taken
                return super().write(data[:taken])

        return Full(path, mode.replace("b", ""))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(1 << 40)
    monkeypatch.setattr(line_file, "open", disk.open, raising=False)
    return disk


@pytest.mark.parametrize("room", range(1, 30))
def test_lines_are_written_whole_or_not_at_all_and_wait_in_their_order(tmp_path: Path, disk: Disk, room: int) -> None:
    path = tmp_path / "lines"
    file = LineFile(path)
    file.append("first")
    disk.room = room
    for number in range(4):
        file.append(f"number {number}")
        assert (
            path.read_text().splitlines()
            == ["first", "number 0", "number 1", "number 2"][: len(path.read_text().splitlines())]
        )
        assert path.read_text().endswith("\n")
    complained = file.complaint()
    assert ("No space left" in complained) == bool(file.error)
    assert file.complaint() == "", "told once"
    disk.room = 1 << 40
    file.append("last")
    assert path.read_text().splitlines() == ["first", *(f"number {n}" for n in range(4)), "last"]
    assert file.complaint() == (f"{path} can be written again" if complained else "")


def test_a_torn_line_of_a_run_that_was_killed_stays_alone(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b'{"torn')
    append_lines(tmp_path / "lines", [b"next"])
    assert (tmp_path / "lines").read_bytes() == b'{"torn\nnext\n'


def test_of_too_many_lines_the_oldest_are_lost_and_that_is_said(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_file, "WAITING_LIMIT", 3)
    file = LineFile(tmp_path / "lines")
    disk.room = 0
    for number in range(5):
        file.append(str(number))
    assert file.complaint()
    disk.room = 99
    file.append("5")
    assert (tmp_path / "lines").read_text() == "3\n4\n5\n"
    assert file.complaint().endswith("its 3 oldest lines that waited are lost")


def test_a_run_continues_with_a_warning_when_the_disk_is_full(tmp_path: Path, disk: Disk) -> None:
    run = TrainingRun(load_config(None, {}, TINY), tmp_path / "run")
    told = []
    for report in run.events():
        told.append(report)
        if run.runtime.step_number == 4:
            disk.room = 0
        if run.runtime.step_number == 8:
            disk.room = 1 << 40
    assert run.runtime.step_number == 12
    texts = [report.text for report in told if getattr(report, "kind", "") == "warning"]
    assert sum("cannot be written" in text and "No space left" in text for text in texts) >= 1
    assert any("can be written again" in text for text in texts)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "snapshot"] == list(range(1, 13))
    assert [each.verb for commands in journal.commands(tmp_path / "run").values() for each in commands] == ["evaluate"]
