"""Work that a crew shares: each row once, errors, results that are asked for again, and threads that end."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from adaptive_rec.system.crew import Crew


@pytest.fixture
def crew() -> Crew:
    return Crew(4)


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
    before, done = threading.active_count(), list[int]()
    for _ in range(3):
        waits = [crew.start(lambda k=k: (time.sleep(0.005), done.append(k)), 40, 10) for k in range(20)]
        assert threading.active_count() == before + 4
        crew.close()
        assert threading.active_count() == before
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
