"""The warm process of a comparison: its runs equal those of fresh processes, and one that fails or is killed harms no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.cli import warm as warm_command
from adaptive_rec.offline.compare import processes
from adaptive_rec.offline.compare.processes import WarmProcess, environment
from tests import forked

TRAIN = ["train", "tiny", "--device=cpu", "--steps=30", "--no-serve", "--set", "knobs.reclassify_every=10",
         "--set", "run.threads=2", "--set", "eval.count=3"]  # fmt: skip
ENDLESS = [*TRAIN, "--steps=1000000", "--set", "data.epochs=100000"]
TIMED = ("seconds", "processor_seconds", "stage_seconds", "samples_per_second", "peak_rss_bytes", "rss_bytes")


STAND_IN = """
import sys, time
from adaptive_rec.cli import warm
command, warm.LOADED = warm.main, ()
warm.main = lambda words: time.sleep(1000) if words[0] == "train" else command(words)
sys.exit(warm.serve())
"""
"""A warm process that loads nothing for its runs, which sleep."""


def standing_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have that started instead, and looked at more often."""
    start = processes.subprocess.Popen

    def start_other(command: list[str], **settings: Any) -> Any:
        own = command == [sys.executable, "-m", "adaptive_rec.cli.warm"]
        return start([sys.executable, "-c", STAND_IN] if own else command, **settings)

    monkeypatch.setattr(processes.subprocess, "Popen", start_other)
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.05)


@pytest.fixture(scope="module", params=["stand-in", pytest.param("real", marks=pytest.mark.slow)])
def started(request: pytest.FixtureRequest) -> Iterator[None]:
    """Processes are started and killed, whatever they do meanwhile."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.param == "stand-in":
            standing_in(monkeypatch)
        yield


@pytest.fixture(scope="module")
def warm(started: None) -> Iterator[WarmProcess]:
    with tempfile.TemporaryFile() as lock, WarmProcess(lock) as made:
        yield made


def untimed(value: Any) -> Any:
    """Return figures without times and memory, which no two runs share."""
    if isinstance(value, dict):
        return {key: untimed(each) for key, each in value.items() if not key.startswith(TIMED)}
    return [untimed(each) for each in value] if isinstance(value, list) else value


def figures(run: Path) -> Any:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return untimed([json.loads((run / "summary.json").read_text()), *map(json.loads, lines)])


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def all_end(pids: list[int]) -> None:
    """Wait until processes that were killed have ended."""
    end = time.monotonic() + 300
    while any(map(is_alive, pids)):
        assert time.monotonic() < end
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_forked_run_equals_one_of_a_process_of_its_own(tmp_path: Path) -> None:
    """Forked by tests.forked, which has loaded the same and is there already; the warm process itself is slow to start."""
    words, log = [*TRAIN, "--policy=adaptive"], tmp_path / "log.txt"
    with log.open("wb") as output:
        run = forked.start([*words, f"--out={tmp_path / 'forked'}"], output.fileno(), environment())
    assert main([*words, f"--out={tmp_path / 'here'}"]) == 0
    assert run.wait(240) == 0, log.read_text()
    assert set(warm_command.LOADED) <= set(forked.LOADED)
    assert figures(tmp_path / "forked") == figures(tmp_path / "here")


@pytest.mark.slow
def test_runs_equal_those_of_fresh_processes_also_after_other_runs_and_a_failed_one(tmp_path: Path) -> None:
    with tempfile.TemporaryFile() as lock, WarmProcess(lock) as warm:
        for name in ("adaptive", "hotline"):
            words = [*TRAIN, f"--policy={name}"]
            fresh, one, log = tmp_path / name, tmp_path / f"{name}-forked", tmp_path / "log.txt"
            assert warm.run([*words, "--set", "run.batch_size=-1", f"--out={tmp_path / 'none'}"], log, lambda: None) == 2
            assert "run.batch_size" in log.read_text()
            command = [sys.executable, "-m", "adaptive_rec", *words, f"--out={fresh}"]
            subprocess.run(command, check=True, env=environment(), capture_output=True)
            assert warm.run([*words, f"--out={one}"], log, lambda: None) == 0, log.read_text()
            assert figures(one) == figures(fresh)
            assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in fresh.iterdir())


def test_a_run_that_is_killed_is_reported_and_the_next_one_is_made(warm: WarmProcess, tmp_path: Path) -> None:
    def kill() -> None:
        assert warm._process is not None
        for pid in children(warm._process.pid):
            os.kill(pid, signal.SIGKILL)

    log = tmp_path / "log.txt"
    assert warm.run([*ENDLESS, f"--out={tmp_path / 'one'}"], log, kill) == -signal.SIGKILL
    assert warm.run(["trian"], log, lambda: None) == 2
    assert "did you mean train" in log.read_text()
    assert warm.run(["--version"], log, lambda: None) == 0
    assert log.read_text().startswith("adaptive-rec ")


def test_a_warm_process_that_is_killed_takes_its_run_along_and_is_started_again(
    warm: WarmProcess, tmp_path: Path
) -> None:
    log, runs = tmp_path / "log.txt", list[int]()

    def kill() -> None:
        assert warm._process is not None
        runs.extend(children(warm._process.pid))
        if runs:
            warm._process.kill()

    assert warm.run([*ENDLESS, f"--out={tmp_path / 'one'}"], log, kill) == -signal.SIGKILL
    assert runs
    all_end(runs)
    assert warm.run(["--version"], log, lambda: None) == 0


def test_an_interrupted_run_leaves_no_process(started: None, tmp_path: Path) -> None:
    found: list[int] = []

    def interrupt() -> None:
        assert warm._process is not None
        if children(warm._process.pid):
            found.extend([warm._process.pid, *children(warm._process.pid)])
            raise KeyboardInterrupt

    with open(tmp_path / "lock", "wb") as lock:
        warm = WarmProcess(lock)
        with pytest.raises(KeyboardInterrupt), warm:
            warm.run([*ENDLESS, f"--out={tmp_path / 'one'}"], tmp_path / "log.txt", interrupt)
    assert len(found) >= 2
    all_end(found)


def test_a_warm_process_ends_without_a_word_of_its_libraries() -> None:
    """Triton would count what is frozen as leaked, on the terminal of the comparison."""
    code = "import atexit; from adaptive_rec.cli import warm; warm.LOADED = (); atexit.register(print, 'leaked'); warm.serve()"
    ended = subprocess.run([sys.executable, "-c", code], input=b"", capture_output=True, env=environment(), check=True)
    assert ended.stdout + ended.stderr == b""
