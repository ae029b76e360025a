"""Limits on memory and threads are met by name, before libraries are loaded and threads start, and leave nothing behind.

Without the check the same commands ended, by the limit, with a traceback of an import, with a signal amid the first step, or not
at all.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec import cli
from adaptive_rec.errors import MemoryPlanError
from adaptive_rec.system import limits
from adaptive_rec.system.host_memory import available_bytes

MIB = 1 << 20
SMALL = ["--steps", "2", "--no-serve", "--set=model.bottom_mlp=[8]", "--set=model.top_mlp=[8]"]


def under(monkeypatch: pytest.MonkeyPatch, **mib: int) -> None:
    """Have this process look as if it had limits, in MiB: address space, data, stack."""
    kinds = {"address": resource.RLIMIT_AS, "data": resource.RLIMIT_DATA, "stack": resource.RLIMIT_STACK}
    set_to = {kinds[name]: most * MIB for name, most in mib.items()}

    def getrlimit(kind: int) -> tuple[int, int]:
        return (set_to.get(kind, resource.RLIM_INFINITY),) * 2

    monkeypatch.setattr(limits.resource, "getrlimit", getrlimit)


def train(folder: Path, kind: int, most_bytes: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Train as a user does under `ulimit`."""
    rows = "".join(f"{n % 3 == 0:d},{n % 37},{n}.5\n" for n in range(400))
    (folder / "d.csv").write_text("y,user,price\n" + rows)

    def lower() -> None:
        resource.setrlimit(kind, (most_bytes, most_bytes))

    command = [sys.executable, "-m", "adaptive_rec", "train", "--data", "d.csv", "--label", "y", *SMALL, *words, "--out", "run"]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    told = {"capture_output": True, "text": True, "timeout": 240, "check": False}
    return subprocess.run(command, cwd=folder, preexec_fn=lower, env=here, **told)


def check_served_or_refused(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 4), (done.returncode, done.stderr)
    if done.returncode:
        assert "must be at least" in done.stderr
        assert not (folder / "run").exists()


def test_too_small_an_address_space_is_refused_before_libraries_are_loaded(tmp_path: Path) -> None:
    done = train(tmp_path, resource.RLIMIT_AS, 600 * MIB)
    rule = r"the limit of this process on its address space \(ulimit -v, prlimit --as\) must be at least [\d,]+ MiB for torch"
    assert done.returncode == 4
    assert re.search(rule, done.stderr), done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"d.csv"}


@pytest.mark.slow
@pytest.mark.parametrize("mib", [1400, 1500, 1700, 1900, 2100, 3000])
def test_an_address_space_is_enough_or_refused_by_name(tmp_path: Path, mib: int) -> None:
    check_served_or_refused(tmp_path, train(tmp_path, resource.RLIMIT_AS, mib * MIB))


@pytest.mark.slow
@pytest.mark.parametrize("mib", [300, 500, 800, 1200, 2000])
def test_a_limit_on_data_is_enough_or_refused_by_name(tmp_path: Path, mib: int) -> None:
    check_served_or_refused(tmp_path, train(tmp_path, resource.RLIMIT_DATA, mib * MIB))


@pytest.mark.slow
def test_more_threads_than_fit_are_refused(tmp_path: Path) -> None:
    """libgomp ends the process where it cannot start one."""
    done = train(tmp_path, resource.RLIMIT_AS, 2200 * MIB, "--set=run.threads=256")
    assert (done.returncode, "lower run.threads" in done.stderr) == (4, True), done.stderr
    assert not (tmp_path / "run").exists()


def test_stacks_count_for_each_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch, address=1 << 20, stack=1024)
    limits.check_threads(2)
    under(monkeypatch, address=8 << 10, stack=1024)
    with pytest.raises(MemoryPlanError, match=r"for 8 threads with stacks of 1\.0 GiB, got 8,192 MiB; raise it, or lower"):
        limits.check_threads(2)
    under(monkeypatch, data=100)
    with pytest.raises(MemoryPlanError, match=r"on its data \(ulimit -d, prlimit --data\) must be at least [\d,]+ MiB for torch"):
        limits.check_libraries()


def test_without_limits_nothing_is_refused_or_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch)
    environment: dict[str, str] = {}
    limits.save_address_space(environment)
    limits.check_libraries()
    assert (environment, limits.bytes_within_limits(), limits.limits_in_words()) == ({}, limits.UNLIMITED, "")


def test_the_memory_plan_has_what_a_limit_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that the limit has no room for is refused with the plan's figures, not amid the work."""
    under(monkeypatch, data=1 << 20)
    used = (1 << 40) - limits.bytes_within_limits()
    under(monkeypatch, data=(used // MIB) + 50)
    assert available_bytes() <= 51 * MIB
    assert limits.limits_in_words().endswith("(ulimit -d, prlimit --data)")


def test_a_thread_that_cannot_be_started_is_told_before_others_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """RuntimeError is what threading raises where pthread_create answers EAGAIN (CPython 3.11)."""
    start, count = threading.Thread.start, [0]

    def some(thread: threading.Thread) -> None:
        count[0] += 1
        if count[0] > 3:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", some)
    with pytest.raises(MemoryPlanError, match=r"8 threads must start \(run\.threads\), 3 did; lower run\.threads, or raise"):
        limits.check_threads(8)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 4, "error: out of memory: libtorch_cpu.so"),
        (RuntimeError("can't start new thread"), 4, "error: out of memory: can't start new thread"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 4, "error: out of memory: Cannot allocate memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory", "rows.npy"), 4, "error: rows.npy cannot be used: Cannot allocate"),
        (OSError(errno.EMFILE, "Too many open files"), 2, "raise the limit of open files (ulimit -n)"),
        (OSError(errno.EMFILE, "Too many open files", "a.csv"), 2, "error: a.csv cannot be used: Too many open files; raise the"),
        (OSError(errno.EFBIG, "File too large", "run/x"), 2, "error: run/x cannot be used: File too large; raise the limit of"),
        (OSError(errno.ESTALE, "Stale file handle", "run/x"), 2, "error: run/x cannot be used: Stale file handle"),
        (OSError(errno.ENOLCK, "No locks available", "run/.lock"), 2, "error: run/.lock cannot be used: No locks available"),
    ],
)
def test_an_error_of_the_system_names_file_and_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int, said: str
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(cli, "parse", fail)
    assert cli.main(["doctor"]) == code
    assert said in capsys.readouterr().err


def test_an_error_that_is_no_answer_of_the_system_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a defect."""

    def fail(*_: Any) -> Any:
        raise ImportError("no module named x")

    monkeypatch.setattr(cli, "parse", fail)
    with pytest.raises(ImportError):
        cli.main(["doctor"])
