"""Output that cannot be written, and a terminal that is gone: the run is finished and saved all the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adaptive_rec.cli import main
from tests import forked

TRAIN = ["train", "tiny", "--no-serve"]


def ended_with(words: list[str], output: int, folder: Path) -> tuple[int, str]:
    """Run a command. Returns its exit code and what it wrote to its standard error."""
    with open(folder / "errors.txt", "wb") as errors:
        code = forked.start(words, output, dict(os.environ), errors=errors.fileno()).wait(120)
    return code, (folder / "errors.txt").read_text()


def saved(run: Path) -> bool:
    return any((run / "checkpoints").iterdir()) and (run / "summary.json").exists()


@pytest.mark.parametrize("words", [[], ["--json"]])
@pytest.mark.parametrize("in_a_process", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_log_on_a_full_disk_loses_nothing_but_the_log(
    tmp_path: Path, words: list[str], in_a_process: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with open("/dev/full", "w") as full:
        if in_a_process:
            code, errors = ended_with([*TRAIN, "--out", str(run), *words], full.fileno(), tmp_path)
        else:
            monkeypatch.setattr(sys, "stdout", full)
            code, errors = main([*TRAIN, "--out", str(run), *words]), capsys.readouterr().err
    assert "Traceback" not in errors
    assert "the output cannot be written" in errors
    assert code == (1 if words else 0)
    assert saved(run)
    assert json.loads((run / "summary.json").read_text())["eval"]["auc"] > 0.5


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        _, errors = ended_with([*TRAIN, "--out", str(run)], pipe.fileno(), tmp_path)
    assert "Traceback" not in errors
    assert saved(run)


@pytest.mark.parametrize("under_nohup", [False, True])
def test_sighup_saves_a_run_unless_it_is_ignored(tmp_path: Path, under_nohup: bool) -> None:
    """A process begins as it would under nohup, or as it would without nohup."""
    run, log = tmp_path / "run", tmp_path / "log.txt"
    steps = ["--steps", "200000", "--set", "data.epochs=10000"]
    environment = {**os.environ, "SIGHUP_AT_THE_START": "SIG_IGN" if under_nohup else "SIG_DFL"}
    with log.open("wb") as output:
        child = forked.start([*TRAIN, *steps, "--out", str(run)], output.fileno(), environment, first="tests.cli.sighup")
    try:
        end = time.monotonic() + 600
        while "\nstep " not in log.read_text():
            assert child.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        child.send_signal(signal.SIGHUP)
        if under_nohup:
            time.sleep(0.3)
            child.send_signal(signal.SIGTERM)
        assert child.wait(300) == 128 + (signal.SIGTERM if under_nohup else signal.SIGHUP)
    finally:
        child.kill()
    assert saved(run)


@pytest.mark.slow
@pytest.mark.parametrize("under_nohup", [False, True])
def test_sighup_saves_like_sigterm(tmp_path: Path, under_nohup: bool) -> None:
    """As above, with nohup itself."""
    run = tmp_path / "run"
    command = [*(["nohup"] if under_nohup else []), sys.executable, "-m", "adaptive_rec", *TRAIN]
    steps = ["--steps", "200000", "--set", "data.epochs=10000"]
    child = subprocess.Popen(
        [*command, *steps, "--out", str(run)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests themselves may run under nohup
    )  # fmt: skip
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("step "):
            break
    child.send_signal(signal.SIGHUP)
    if under_nohup:
        time.sleep(1)
        child.send_signal(signal.SIGTERM)
    child.communicate(timeout=300)
    assert child.returncode == 128 + (signal.SIGTERM if under_nohup else signal.SIGHUP)
    assert saved(run)
