"""Work beside the steps gives way, and never less than the process does."""

from __future__ import annotations

import os
import threading

import pytest

from adaptive_rec.system.background import LOWEST, BackgroundThread, give_way


@pytest.mark.parametrize(("wanted", "own", "given"), [(10, 0, 10), (10, 15, 15), (LOWEST, 5, 19), (10, -5, 10)])
def test_a_thread_is_never_less_nice_than_it_was(
    monkeypatch: pytest.MonkeyPatch, wanted: int, own: int, given: int
) -> None:
    found: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "getpriority", lambda which, who: own)
    monkeypatch.setattr(os, "setpriority", lambda *words: found.append(words))
    give_way(wanted)
    assert found == [(os.PRIO_PROCESS, threading.get_native_id(), given)]


def test_work_is_done_where_priorities_cannot_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refused)
    give_way(10)


def test_work_is_done_by_a_thread_of_the_lowest_priority_and_by_no_other() -> None:
    own, found = os.getpriority(os.PRIO_PROCESS, 0), []
    beside = BackgroundThread("background")
    try:
        beside.do(lambda: found.append(os.getpriority(os.PRIO_PROCESS, 0)))
        beside.settle()
    finally:
        beside.close()
    assert found == [LOWEST]
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
