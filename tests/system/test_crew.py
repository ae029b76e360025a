"""Work that a crew shares: each row once, errors, results that are asked for again, and threads that end."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from adaptive_rec.system.crew import Crew


@pytest.fixture
def crew() -> Crew:
    return Crew(4)


def since(before: set[threading.Thread]) -> set[threading.Thread]:
    """Return the threads that have started meanwhile and are there. Those of other tests may still be ending."""
    return set(threading.enumerate()) - before


@pytest.mark.parametrize("rows", [0, 1, 9, 10, 39, 40, 1001])
def test_every_row_is_worked_on_once_in_parts_that_are_not_too_small(crew: Crew, rows: int) -> None:
    counts, parts = np.zeros(rows, np.int64), list[int]()

    def work(first: int, end: int) -> None:
        counts[first:end] += 1
        parts.append(end - first)

    for _ in range(50):
        crew.share(work, rows, 10)
    assert (counts == 50).all()
    assert len(parts) == 50 * max(1, min(4, rows // 10))
    assert len(parts) == 50 or min(parts) >= 10
    crew.close()


def test_many_threads_may_share_one_crew(crew: Crew) -> None:
    def add(number: int) -> bool:
        sums = np.zeros(100, np.int64)
        for turn in range(100):
            crew.share(lambda first, end: sums[first:end].__iadd__(number), 100, 5)
            wait = crew.start(lambda turn=turn: turn * number, 100, 5)
            if wait() != turn * number or wait() != turn * number:
                return False
        return bool((sums == 100 * number).all())

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(add, range(24)))
    crew.close()


def test_an_error_is_raised_when_no_part_is_under_way_any_more(crew: Crew) -> None:
    ended = list[int]()

    def work(first: int, end: int) -> None:
        if first in (0, 20):
            raise ValueError(f"part {first}")
        time.sleep(0.02)
        ended.append(first)

    for _ in range(3):
        ended.clear()
        with pytest.raises(ValueError, match="part 0"):
            crew.share(work, 40, 10)
        assert sorted(ended) == [10, 30]

    def fails() -> None:
        raise KeyError("beside")

    wait = crew.start(fails, 40, 10)
    for _ in range(2):
        with pytest.raises(KeyError, match="beside"):
            wait()
    crew.share(lambda first, end: None, 40, 10)
    crew.close()


def test_threads_end_after_all_work_and_start_again(crew: Crew) -> None:
    before, done = set(threading.enumerate()), list[int]()
    for _ in range(3):
        waits = [crew.start(lambda k=k: (time.sleep(0.005), done.append(k)), 40, 10) for k in range(20)]
        assert len(since(before)) == 4
        crew.close()
        assert not since(before)
        assert sorted(done) == list(range(20))
        done.clear()
        for wait in waits:
            wait()
    crew.close()


def test_one_thread_does_the_work_when_its_result_is_asked_for() -> None:
    alone, calls = Crew(1), list[str]()
    wait = alone.start(lambda: calls.append("x"), 1000, 1)
    assert calls == []
    wait()
    wait()
    assert calls == ["x"]
    alone.share(lambda first, end: calls.append(f"{first}-{end}"), 1000, 1)
    assert calls == ["x", "0-1000"]


def test_an_interrupt_at_the_start_of_a_thread_leaves_a_crew_that_works_and_ends(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real, starts = set(threading.enumerate()), threading.Thread.start, list[str]()

    def interrupted(thread: threading.Thread) -> None:
        real(thread)
        starts.append(thread.name)
        if len(starts) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        crew.share(lambda first, end: None, 40, 10)
    counts = np.zeros(40, np.int64)
    for _ in range(20):
        crew.share(lambda first, end: counts[first:end].__iadd__(1), 40, 10)
    assert (counts == 20).all()
    crew.close()
    deadline = time.monotonic() + 120
    while since(before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not since(before)


def test_an_interrupt_is_raised_when_no_part_is_under_way_any_more(crew: Crew) -> None:
    ended, interrupted = list[int](), threading.Event()

    def work(first: int, end: int) -> None:
        if first == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            return
        interrupted.wait(300)
        time.sleep(0.02)
        ended.append(first)

    def interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            crew.share(work, 40, 10)
        assert sorted(ended) == [10, 20, 30]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    crew.close()


def test_threads_of_a_crew_that_is_forgotten_end() -> None:
    before = set(threading.enumerate())
    for _ in range(3):
        forgotten = Crew(4)
        forgotten.share(lambda first, end: None, 40, 10)
        del forgotten
    deadline = time.monotonic() + 120
    while since(before) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert not since(before)


FORKED = """
import os, sys
from adaptive_rec.system.crew import Crew
crew, done = Crew(4), []
crew.share(lambda first, end: done.append(first), 40, 10)
if len(sys.argv) > 1:
    crew.share(lambda first, end: None, 40, 10)
child = os.fork()
if child == 0:
    if len(sys.argv) > 1:
        crew.close()
    crew.share(lambda first, end: done.append(first), 40, 10)
    crew.close()
    os._exit(0 if len(done) == 8 else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
crew.share(lambda first, end: done.append(first), 40, 10)
sys.exit(code or len(done) - 8)
"""


@pytest.mark.parametrize("closed", [[], ["closed"]])
def test_a_fork_has_threads_of_its_own_and_an_exit_waits_for_none(closed: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, *closed], timeout=300, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
