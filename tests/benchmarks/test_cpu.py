"""The CPU benchmarks, rehearsed on tiny shapes: no figure comes of it, but every part runs, and a disagreement is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.common import report as cell_report
from benchmarks.common import turns
from benchmarks.common.shapes import SHAPES, configure, open_shape, preload
from benchmarks.common.statistics import ratio_of_medians
from benchmarks.common.turns import Turn
from benchmarks.cpu import plan, rivals
from benchmarks.cpu.__main__ import BENCH
from benchmarks.cpu.contestants import OurRun
from benchmarks.cpu.torchrec_dlrm import TorchRecDlrm

ROOT = Path(__file__).parents[2]
SOME = ("kaggle-fp32", "embedding-mlperf", "prefetching")
"""Cells of every kind, and of nearly every shape."""


def bench(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.cpu", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=250, env={**os.environ, **environment}
    )


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bench")
    done = bench("--rehearse", "--out", str(out), "--only", *SOME, "criteo", ADAPTIVE_REC_TEST_DATA=str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "absent  criteo: the whole cell: criteo_kaggle_sample_137k.tsv.zst is not in" in done.stdout
    return out


# The rehearsal -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_installed_rivals_take_turns_and_absent_ones_are_named(rehearsal: Path) -> None:
    cells = json.loads((rehearsal / "results.json").read_text())["cells"]
    assert set(cells) == {*SOME, "criteo"}
    for name, contestants in {cell.name: cell.contestants for cell in plan.QUICK if cell.name in SOME}.items():
        result = cells[name]["result"]
        absent = {who for who in contestants if rival_of(who) in rivals.RIVALS and rivals.why_absent(rival_of(who))}
        assert absent == {who for who in result["absent"] if rival_of(who) in rivals.RIVALS}
        assert set(contestants) - absent <= set(result["runs"])
        for run in result["runs"].values():
            assert len(run["seconds"]) == 3
            assert min(run["seconds"]) > 0
            assert sum(run["stages"].values()) == pytest.approx(run["median"], rel=0.9)


def rival_of(name: str) -> str:
    return name.removesuffix(plan.TORCH_LAYERS)


@pytest.mark.slow
def test_ours_and_the_rivals_make_the_same_rows(rehearsal: Path) -> None:
    cells = json.loads((rehearsal / "results.json").read_text())["cells"]
    for name in ("kaggle-fp32", "embedding-mlperf"):
        checks = cells[name]["result"]["checks"]
        assert all(check["passed"] for check in checks)
        compared = {check["check"].split(":")[0] for check in checks}
        contestants = next(cell.contestants for cell in plan.QUICK if cell.name == name)
        fused = {who for who in contestants if rival_of(who) in plan.FUSED and not rivals.why_absent(rival_of(who))}
        assert compared == fused | ({"hotline", "hotline split"} if name == "kaggle-fp32" else set())


@pytest.mark.slow
def test_rows_are_tables_of_markdown_that_say_they_are_no_figures(rehearsal: Path) -> None:
    text = (rehearsal / "rows.md").read_text()
    assert "no figure of anything" in text
    assert "| bar |" not in text
    assert all(f"### {name}\n" in text for name in (*SOME, "criteo"))
    for table in text.split("\n\n"):
        columns = {line.count("|") for line in table.splitlines() if line.startswith("|")}
        assert len(columns) <= 1, table
    picture = ElementTree.fromstring((rehearsal / "picture.svg").read_text())
    assert "REHEARSAL" in "".join(picture.itertext())


def test_cells_are_listed_and_unknown_ones_refused() -> None:
    names = [line.split()[0] for line in bench("--list", "--all").stdout.splitlines()]
    assert names == [cell.name for cell in plan.ALL]
    assert len(set(names)) == len(names)
    refused = bench("--only", "kagle-fp32")
    assert refused.returncode == 1
    assert "kagle-fp32" in refused.stderr


def test_contestants_of_a_cell_are_chosen_by_name() -> None:
    few = BENCH.chosen(BENCH.arguments(["--only", "kaggle-bf16", "--contestants", "floor", "hybrid"]))
    assert [cell.contestants for cell in few] == [("hybrid", "floor")]
    with pytest.raises(SystemExit, match="no contestant named hibrid"):
        BENCH.chosen(BENCH.arguments(["--contestants", "hibrid"]))
    of_one = BENCH.chosen(BENCH.arguments(["--contestants", "ours", "--cell", "kaggle-bf16"]))
    assert of_one[0].contestants == (), "the process of a cell that has none of them"


@pytest.mark.slow
def test_a_cell_is_taken_up_if_it_was_measured_with_these_sources(rehearsal: Path, tmp_path: Path) -> None:
    args, path = BENCH.arguments(["--rehearse", "--all"]), rehearsal / "cells" / "prefetching.json"
    cell = next(cell for cell in BENCH.chosen(args) if cell.name == "prefetching")
    assert BENCH.resumable(path, cell, args) is not None
    other = tmp_path / "prefetching.json"
    for change in ({"asked": {"rounds": "5"}}, {"about": {"fingerprint": "another"}}, {"cell": {}}):
        other.write_text(json.dumps(json.loads(path.read_text()) | change))
        assert BENCH.resumable(other, cell, args) is None


# Statistics ----------------------------------------------------------------------------------------------------------


def test_a_ratio_of_medians_has_an_interval_as_wide_as_its_noise() -> None:
    dice = np.random.default_rng(3)
    noise = dice.normal(1.0, 0.2, 30)
    both = ratio_of_medians(list(2 * noise), list(noise))  # a slow round is slow for both
    assert both == pytest.approx({"ratio": 2.0, "low": 2.0, "high": 2.0})
    apart = ratio_of_medians(list(2 * noise), list(dice.permutation(noise)))
    assert apart["ratio"] == pytest.approx(2.0)
    assert 1.5 < apart["low"] < 1.95
    assert 2.05 < apart["high"] < 2.6
    with pytest.raises(ValueError, match="equally many"):
        ratio_of_medians([1.0], [1.0, 2.0])


def test_turns_are_taken_in_an_order_of_their_own_each_round() -> None:
    order: list[str] = []

    class One:
        steps = 0

        def __init__(self, name: str) -> None:
            self.name = name

        def turn(self, steps: int) -> Turn:
            order.append(self.name)
            return Turn(2.0 * steps, {"dense": 1.5 * steps})

        def facts(self) -> dict[str, Any]:
            return {}

        def close(self) -> None: ...

    found = turns.take_turns({name: One(name) for name in "abc"}, rounds=12, steps=4)
    rounds = ["".join(order[at : at + 3]) for at in range(0, 36, 3)]
    assert {"".join(sorted(one)) for one in rounds} == {"abc"}
    assert len(set(rounds)) > 3
    assert (found["a"]["median"], found["a"]["stages"]) == (2.0, {"dense": 1.5})


# What is found -------------------------------------------------------------------------------------------------------


class Table:
    """A contestant with one table, moved by so much at its turn."""

    row_wise = True

    def __init__(self, by: float, loss: float = 0.5) -> None:
        self._table, self._by, self._loss = np.ones((4, 2)), by, loss

    def turn(self, steps: int) -> None:
        self._table[1] += self._by

    def mean_loss(self) -> float:
        return self._loss

    def rows(self, table: int, ids: Any) -> Any:
        return self._table[ids].copy()


def test_a_planted_disagreement_is_found_and_fails_the_cell() -> None:
    made = {"ours": Table(0.02), "equal": Table(0.02 + 1e-7), "wrong": Table(0.021), "odd": Table(0.02, 0.51)}
    told: list[str] = []
    checks = turns.first_turns(
        made, list(made), [np.array([0, 1])], [np.ones((2, 2))], 4, lambda _: (1e-5, 1e-4, np.inf), told.append
    )
    wrong = ["odd: loss", "wrong: rows"]
    assert sorted(check["check"] for check in checks if not check["passed"]) == wrong
    assert len(told) == 2
    found = {"cell": {"result": {"checks": checks}}, "fell": {"error": "it fell"}}
    assert cell_report.failures(found) == ["fell", "cell disagrees (wrong: rows)", "cell disagrees (odd: loss)"]
    still = {name: Table(0.0) for name in ("ours", "rival")}
    checks = turns.first_turns(
        still, list(still), [np.array([1])], [np.ones((1, 2))], 4, lambda _: (1e-5, 1e-4, 2.0), told.append
    )
    assert [check["passed"] for check in checks] == [True, False]  # nothing moved, so nothing was shown


def test_torchrecs_own_model_is_ours() -> None:
    """Same tables, same weights in another order: on tiny tables, where no gradient is next to nothing, the same rows."""
    if absent := rivals.why_absent("TorchRec"):
        pytest.skip(absent)
    cell = plan.rehearsed(next(cell for cell in plan.QUICK if cell.name == "dlrm-fp32"))
    config = configure(SHAPES[cell.shape], 64, ("run.device=cpu", "knobs.policy=hybrid", *cell.settings), None)
    source = preload(open_shape(SHAPES[cell.shape], config), config, cell.batches)
    ours = OurRun(config, source, None)
    theirs = TorchRecDlrm(config, source, ours.runtime.store, compiled=False)
    tables = range(len(source.tables))
    first = [ours.rows(table, np.arange(source.tables[table].rows)) for table in tables]
    outcomes = []
    for run in (ours, theirs):
        run.turn(3)
        rows = [run.rows(table, np.arange(source.tables[table].rows)) for table in tables]
        outcomes.append((run.mean_loss(), rows))
    ours.close()
    checks = turns.check("TorchRec's DLRM", outcomes[1], outcomes[0], first, (1e-6, 1e-5, np.inf))
    assert [check for check in checks if not check["passed"]] == []


def test_an_absent_rival_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rivals.RIVALS, "FBGEMM", ("no_such_module", rivals.Fbgemm))
    why = rivals.why_absent("FBGEMM")
    assert "no_such_module is not installed" in why
    assert not rivals.why_absent("torch SGD")
    cell = {"cell": {"about": "", "briefly": True}, "took": 1.0}
    result = {"runs": {"floor": run(1.0)}, "absent": {"FBGEMM": why}, "checks": [], "rounds": 2, "steps": 4}
    told = "\n".join(cell_report._cell_rows("kaggle-fp32", {**cell, "result": result}))
    assert "Absent: FBGEMM: no_such_module" in told
    assert cell_report.absences({"absent": "no file"}) == {"": "no file"}


def run(*seconds: float, **facts: Any) -> dict[str, Any]:
    """A contestant's result made by hand, of two rounds at least."""
    seconds = seconds * 2 if len(seconds) == 1 else seconds
    median = float(np.median(seconds))
    return {"seconds": list(seconds), "median": median, "mean": median, "stages": {}, "gained": {}, "facts": facts}


def test_bars_see_what_misses_them() -> None:
    def cell(**runs: Any) -> dict[str, Any]:
        return {"result": {"runs": {name.replace("_", " "): one for name, one in runs.items()}}}

    found = {
        "kaggle-fp32": cell(hybrid=run(1.09), hotline=run(1.04), floor=run(1.0), FBGEMM=run(1.3)),
        "kaggle-fp32-waiting": cell(hybrid=run(1.0), FBGEMM=run(1.1)),
        "rows-1m": cell(hybrid=run(1.0), floor=run(0.5)),
        "rows-200m": cell(hybrid=run(2.8), floor=run(1.0)),
        "prefetching": cell(hybrid=run(1.0), without_prefetching=run(0.99)),
        "mlperf-fp32": {"error": "it fell"},
    }
    bars = list(plan.bars(found))
    assert [bar["met"] for bar in bars] == [False, True, True, True, True, True, True]
    assert bars[2]["what"] == "hotline / hybrid, kaggle-fp32"
    assert bars[4]["what"] == "FBGEMM / hybrid, kaggle-fp32"
    assert bars[4]["figure"] == pytest.approx(1.3 / 1.09)
    assert bars[5]["what"] == "FBGEMM / hybrid, kaggle-fp32-waiting"
    assert bars[5]["figure"] == pytest.approx(1.1)
    assert bars[6]["figure"] == pytest.approx(2.8 / 2)
    lines = [cell_report.bar_line(bar) for bar in bars]
    table = cell_report.rows({"about": {}, "cells": {}, "bars": bars}).strip().splitlines()
    assert table[0] == "| bar | figure | 95 % | bound | met |"
    assert table[2] == "| hybrid / floor, kaggle-fp32 | 1.09 | 1.09-1.09 | ≤ 1.08 | **no** |"
    assert lines[0] == "FAIL    hybrid / floor, kaggle-fp32: 1.09 (1.09-1.09), bar ≤ 1.08"
    assert lines[3].startswith("pass    without prefetching / hybrid, prefetching")
