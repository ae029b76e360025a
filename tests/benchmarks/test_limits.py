"""The time of a benchmark: it ends within it, whatever its cells do."""

from __future__ import annotations

import math
import os
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import turns
from benchmarks.common.bench import CLOSING_SECONDS, Bench
from benchmarks.common.cell import Cell
from benchmarks.common.report import absences, failures
from benchmarks.common.turns import Turn
from benchmarks.cpu.__main__ import BENCH

CELLS = tuple(Cell(name, "") for name in "abcdef")
QUICK = Bench("cpu", "", CELLS, lambda cell: cell, within=100)


def limits(takes: list[float], bench: Bench = QUICK) -> list[float]:
    """The limits of cells that would take so long, each stopped at its own."""
    elapsed, found = 0.0, list[float]()
    for number, seconds in enumerate(takes):
        found.append(bench.limit_of(Namespace(all=False, only=None), elapsed, bench.quick[number:]))
        elapsed += min(seconds, found[-1])
    assert elapsed <= bench.within - CLOSING_SECONDS
    return found


def test_quick_cells_leave_their_time_to_slow_ones() -> None:
    assert limits([1] * 6) == pytest.approx([30, 35.6, 44, 58, 86, 85])
    assert limits([1000] * 6) == pytest.approx([30, 24, 18, 12, 6, 0])
    assert limits([1, 1000, 1, 1, 1, 1])[1:3] == pytest.approx([35.6, 26.7])
    assert limits([1] * 2, Bench("cpu", "", (Cell("a", "", ("x", "y")), Cell("b", "")), lambda cell: cell, within=30))[0] == 20
    assert min(limits([10 + 5 * len(cell.contestants) for cell in BENCH.quick], BENCH)) > 40


@pytest.mark.parametrize("words", [{"all": True, "only": None}, {"all": False, "only": ["a"]}])
def test_cells_that_are_asked_for_have_no_limit(words: dict[str, Any]) -> None:
    assert math.isinf(QUICK.limit_of(Namespace(**words), 0.0, CELLS))
    assert math.isinf(Bench("cpu", "", CELLS, lambda cell: cell).limit_of(Namespace(all=False, only=None), 0.0, CELLS))


def test_a_cell_that_does_not_end_is_stopped_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "module", "tests.benchmarks.endless")
    began = time.monotonic()
    found = replace(QUICK, least_seconds=0).run_apart(CELLS[0], Namespace(out=tmp_path, words=[]), limit=4.0)
    assert time.monotonic() - began < 20
    assert absences(found) == {"": "stopped after 4 s, its limit on this processor"}
    assert not failures({"a": found})
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "process").read_text()), 0)


def test_a_bench_whose_first_cell_was_stopped_has_rows_that_name_it(tmp_path: Path) -> None:
    stopped = {"a": {"cell": {"name": "a"}, "absent": "stopped after 4 s"}}
    (tmp_path / "cells").mkdir()
    assert QUICK.finish(Namespace(out=tmp_path, rehearse=False), stopped, time.perf_counter()) == 0
    assert "Not measured: stopped after 4 s." in (tmp_path / "rows.md").read_text()


def test_a_cell_for_which_no_time_is_left_is_not_begun(tmp_path: Path) -> None:
    args = Namespace(out=tmp_path, all=False, only=None)
    assert absences(QUICK.run_apart(CELLS[0], args, limit=3.0)) == {"": "no time was left of 100 s"}


class Slow:
    """Takes half a second a turn, by a clock that only it moves."""

    now = 0.0

    def turn(self, steps: int) -> Turn:
        Slow.now += 0.5
        return Turn(0.5)

    def facts(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 1), (2.2, 4), (math.inf, 10)])
def test_rounds_end_in_time(seconds: float, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: Slow.now)
    found = turns.take_turns({"slow": Slow()}, rounds=10, steps=1, ends=Slow.now + seconds)
    assert len(found["slow"]["seconds"]) == rounds
