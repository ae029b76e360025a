"""Runs with rows on a disk: what fails, where the rows are, and who reads them meanwhile."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec import checkpoint
from adaptive_rec.checkpoint import history
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.rows import SavedRows
from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.disk import row_log
from adaptive_rec.errors import DiskError, UsageError
from adaptive_rec.live.telemetry import Event
from adaptive_rec.run.resume import evaluate_run
from adaptive_rec.run.training_run import TrainingRun

pytestmark = pytest.mark.usefixtures("small_segments")

SMALL = [
    "run.device=cpu", "run.threads=1", "run.steps=40", "run.batch_size=64", "data.synthetic.samples=6000",
    "data.synthetic.test_samples=200", "knobs.report_every=10", "knobs.reclassify_every=5", "knobs.policy=hotline",
    "knobs.hot_budget_bytes=8KiB", "checkpoint.every_steps=5",
]  # fmt: skip
ON_DISK = "run.host_memory=1MiB"


def begin(out: Path, *changes: str, **options: Any) -> TrainingRun:
    return TrainingRun(load_config("tiny", {}, [*SMALL, *changes]), out, **options)


def train(out: Path, *changes: str, **options: Any) -> list[Event]:
    run = begin(out, *changes, **options)
    events = [event for event in run.events() if isinstance(event, Event)]
    run.finish()
    assert run.failure is None
    return events


def rows_of(generation: Path) -> list[bytes]:
    saved = SavedRows(DISK, generation)
    return [part.tobytes() for table in saved.tables for part in saved.read(table, 0, table.rows)]


def newest_rows(out: Path) -> list[bytes]:
    newest = checkpoint.newest(out / "checkpoints")
    assert newest is not None
    return rows_of(newest)


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    out = tmp_path_factory.mktemp("memory") / "run"
    train(out)
    return newest_rows(out)


def test_a_run_moves_its_rows_to_a_disk_to_another_one_and_back_to_memory(
    tmp_path: Path, in_memory: list[bytes]
) -> None:
    out, there = tmp_path / "run", tmp_path / "a" / "b"
    train(out, "run.steps=8")
    for steps, changes in ((14, [ON_DISK]), (20, [ON_DISK, f"run.disk={there}"]), (26, [ON_DISK]), (33, []), (40, [ON_DISK])):
        train(out, f"run.steps={steps}", *changes, resume=True)
        for name in history.newest_names(DISK, out / "checkpoints", 2):
            rows_of(out / "checkpoints" / name)
    assert newest_rows(out) == in_memory


def test_a_run_never_takes_a_folder_with_another_runs_rows(tmp_path: Path) -> None:
    train(tmp_path / "one", ON_DISK, f"run.disk={tmp_path / 'rows'}", "run.steps=10")
    train(tmp_path / "other", ON_DISK, "run.steps=10")
    before = newest_rows(tmp_path / "one")
    with pytest.raises(UsageError, match=r"run.disk must be a folder without rows of another run"):
        begin(tmp_path / "other", ON_DISK, f"run.disk={tmp_path / 'rows'}", "run.steps=20", resume=True)
    assert newest_rows(tmp_path / "one") == before


def test_a_run_directory_may_be_moved(tmp_path: Path, in_memory: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train(Path("run"), ON_DISK, "run.steps=20")
    (tmp_path / "deep").mkdir()
    os.rename("run", "deep/moved")
    monkeypatch.chdir(tmp_path / "deep")
    train(Path("moved"), ON_DISK, resume=True)
    assert newest_rows(tmp_path / "deep" / "moved") == in_memory


class Failing:
    """Has a system call on segments fail while `error` is set."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call, self.error, self.failed = call, 0, 0

    def __call__(self, *arguments: Any) -> Any:
        if self.error:
            self.failed += 1
            raise OSError(self.error, os.strerror(self.error))
        return self._call(*arguments)


def at_checkpoints(run: TrainingRun, fail: Failing, code: int, number: int) -> list[Event]:
    """Train, and have a call fail from the start of a checkpoint to its end."""
    events, begun = [], 0
    for event in run.events():
        if not isinstance(event, Event):
            continue
        events.append(event)
        if event.kind == "saving":
            begun += 1
            fail.error = code if begun == number else 0
        elif event.kind.startswith("checkpoint"):
            fail.error = 0
    return events


def test_after_a_failed_sync_pages_are_written_again_before_a_checkpoint_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: list[bytes]
) -> None:
    """A second sync succeeds although the system has dropped the pages."""
    write, written = os.pwrite, []
    fail = Failing(os.fdatasync)

    def record(file: int, data: Any, start: int) -> int:
        written.append((os.readlink(f"/proc/self/fd/{file}"), start))
        return write(file, data, start)

    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(os, "pwrite", record)
    run = begin(tmp_path / "run", ON_DISK)
    events = at_checkpoints(run, fail, errno.EIO, 2)
    run.finish()
    failed = [event for event in events if event.kind == "checkpoint_failed"]
    assert len(failed) == 1
    assert "sync of" in failed[0].text
    assert len(written) > len(set(written)), "some were written twice"
    assert newest_rows(tmp_path / "run") == in_memory


def test_segments_that_cannot_be_removed_are_reported_and_no_checkpoint_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: list[bytes]
) -> None:
    unlink, failed = os.unlink, []

    def fail(path: Any, **options: Any) -> None:
        if str(path).endswith(".rows") and threading.current_thread().name == "checkpoint":
            failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(path, **options)

    run = begin(tmp_path / "run", ON_DISK)
    monkeypatch.setattr(os, "unlink", fail)
    list(run.events())
    run.finish()
    assert failed
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert not [event for event in events if event["kind"] == "checkpoint_failed"]
    assert any("could not be removed" in event["text"] for event in events if event["kind"] == "warning")
    for name in history.newest_names(DISK, tmp_path / "run" / "checkpoints", 2):
        rows_of(tmp_path / "run" / "checkpoints" / name)
    assert newest_rows(tmp_path / "run") == in_memory


def test_a_full_disk_ends_a_run_that_can_go_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: list[bytes]
) -> None:
    allocate, made = os.posix_fallocate, 0

    def full(*arguments: int) -> None:
        nonlocal made
        made += 1
        if made > 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(*arguments)

    monkeypatch.setattr(os, "posix_fallocate", full)
    out = tmp_path / "run"
    run = begin(out, ON_DISK)
    with pytest.raises(DiskError, match=r"creation of .*\.rows failed: No space left"):
        list(run.events())
    monkeypatch.setattr(os, "posix_fallocate", allocate)
    train(out, ON_DISK, resume=True)
    assert newest_rows(out) == in_memory


def test_a_log_that_found_no_room_takes_rows_again_when_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = row_log.RowLog(tmp_path, 4000, 24, 4, lambda work: work(), lambda: None)
    rows, values = np.arange(1000), np.random.default_rng(1).random((1000, 7), np.float32)
    fail = Failing(os.posix_fallocate)
    monkeypatch.setattr(os, "posix_fallocate", fail)
    fail.error = errno.ENOSPC
    for _ in range(5):
        with pytest.raises(DiskError, match="No space left"):
            log.append(rows, rows, values[:, :6].copy(), values[:, 6:].copy())
    fail.error = 0
    log.append(rows, rows, values[:, :6].copy(), values[:, 6:].copy())
    fail.error = errno.ENOSPC
    for _ in range(5):
        with pytest.raises(DiskError, match="No space left"):
            log.append(rows, rows, values[:, :6].copy(), values[:, 6:].copy())
    log.sync(log.segments.hold_live())
    got = np.empty((1000, 6), np.float32), np.empty((1000, 1), np.float32)
    log.read(rows, rows, *got)
    assert np.array_equal(np.concatenate(got, axis=1), values)
    assert len(log.segments._of) == log.segments._next_place, "no place is lost"


def test_a_reader_keeps_the_segments_of_what_it_reads(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = begin(out, ON_DISK)
    reading, before = None, None
    for event in run.events():
        if isinstance(event, Event) and event.kind == "checkpoint" and reading is None:
            reading = checkpoint.held(out / "checkpoints")
            generation = reading.__enter__().generation
            assert generation is not None
            before = rows_of(generation)
    assert reading is not None
    assert rows_of(generation) == before
    assert generation.name not in history.newest_names(DISK, out / "checkpoints", 2)
    reading.__exit__(None, None, None)


def test_a_run_that_ended_before_its_first_checkpoint_begins_again_in_its_folder(
    tmp_path: Path, in_memory: list[bytes]
) -> None:
    out, there = tmp_path / "run", tmp_path / "rows"
    run = begin(out, ON_DISK, f"run.disk={there}", "checkpoint.every_steps=0")
    for event in run.events():
        if getattr(event, "step", 0) == 20:
            run._directory.close()
            break
    left = {path: path.stat().st_ino for path in there.rglob("*.rows")}
    assert left
    assert not (out / "checkpoints").exists()
    train(out, ON_DISK, f"run.disk={there}", resume=True)
    assert newest_rows(out) == in_memory
    assert not [path for path, number in left.items() if path.exists() and path.stat().st_ino == number]


def test_evaluation_and_resume_take_over_segments_of_another_size_and_a_reader_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: list[bytes]
) -> None:
    """A later version may have others."""
    out = tmp_path / "run"
    train(out, ON_DISK, "run.steps=20")
    before = sorted((out / "rows").rglob("*"))
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 16384)
    evaluate_run(out)
    assert sorted((out / "rows").rglob("*")) == before
    train(out, ON_DISK, resume=True)
    assert newest_rows(out) == in_memory


def test_verify_reads_every_page_of_the_newest_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    train(out, ON_DISK)
    assert main(["checkpoint", "verify", str(out)]) == 0
    newest = out / "checkpoints" / history.newest_names(DISK, out / "checkpoints", 1)[0]
    disk = history.chain(DISK, newest)[-1].manifest.disk
    assert disk is not None
    path, size_bytes = list(disk[0].segments(newest))[-1]
    data = bytearray(path.read_bytes())
    data[size_bytes - 1] ^= 1
    path.write_bytes(data)
    assert main(["checkpoint", "verify", str(out)]) == 5
    assert f"of {path} is damaged" in capsys.readouterr().out.replace("\n", "")
