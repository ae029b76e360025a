"""Two processes that begin a run in the same new directory: one has it, the other leaves all as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adaptive_rec.cli import main
from adaptive_rec.errors import UsageError
from adaptive_rec.live.life import LOCK
from adaptive_rec.run import training_run
from adaptive_rec.run.new_directory import claim, leave, sole_writer
from tests import forked

TRAIN = ["train", "tiny", "--steps", "20", "--no-serve", "--json"]


def contents(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_run_that_came_and_ended_meanwhile_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    claimed = training_run.RunDirectory
    before: dict[str, bytes] = {}

    def late(path: Path, exists: bool = False) -> training_run.RunDirectory:
        """Another process begins and ends after this one has found that the directory is new."""
        with open(tmp_path / "log.txt", "wb") as log:
            assert forked.start([*TRAIN, "--out", str(out)], log.fileno(), dict(os.environ)).wait(120) == 0
        before.update(contents(out))
        return claimed(path, exists)

    monkeypatch.setattr(training_run, "RunDirectory", late)
    assert main([*TRAIN, "--seed", "9", "--out", str(out)]) == UsageError.exit_code
    assert f"--out must be a new directory, {out} exists" in capsys.readouterr().err
    assert contents(out) == before


def test_a_run_under_way_keeps_another_one_out(tmp_path: Path) -> None:
    lock = claim(tmp_path / "run")
    with open(tmp_path / "log.txt", "wb") as log:
        code = forked.start([*TRAIN, "--out", str(tmp_path / "run")], log.fileno(), dict(os.environ)).wait(120)
    told = (tmp_path / "log.txt").read_text()
    assert (code, "another one trains there" in told) == (2, True), told
    leave(tmp_path / "run", lock)
    assert list(tmp_path.iterdir()) == [tmp_path / "log.txt"]


def test_a_run_that_cannot_begin_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--set", "data.test_range=[0.9, 0.9]", "--out", str(tmp_path / "run")]) != 0
    assert list(tmp_path.iterdir()) == [], capsys.readouterr().err


def test_a_lock_that_was_removed_meanwhile_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits between opening the lock and locking it, while another one leaves and a third one comes."""
    import fcntl

    out, real, third = tmp_path / "run", fcntl.lockf, []
    out.mkdir()

    def slow(*args: object) -> None:
        if not third:
            third.append(None)
            (out / LOCK).unlink()
        real(*args)

    monkeypatch.setattr(fcntl, "lockf", slow)
    with sole_writer(out) as lock:
        assert (out / LOCK).stat().st_ino == Path(f"/proc/self/fd/{lock.fileno()}").stat().st_ino
