"""What the GPU benchmarks reckon, plan and refuse, on results made by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.live.telemetry import finite
from benchmarks.common.report import failures
from benchmarks.gpu import (
    gpu_tests,
    growth,
    intervals,
    measure,
    plan,
    report,
)

ABOUT = {
    "rehearsal": "", "gpu": "none", "gpu_bytes": 1, "driver": "none", "cores": 1, "processor": "none", "host_bytes": 1,
    "versions": {}, "command": "none", "date": "never", "seconds": 1.0,
}  # fmt: skip


# Tests ---------------------------------------------------------------------------------------------------------------


def test_what_is_no_number_is_null_at_any_depth() -> None:
    assert finite({"a": [1.0, float("inf"), {"b": (float("nan"), "c")}]}) == {"a": [1.0, None, {"b": [None, "c"]}]}


def test_a_test_that_fails_or_is_skipped_without_excuse_is_named_and_there_are_no_rows(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [("tests/parity/a.py::b", "skipped"), ("tests/gpu/test_steady_state.py::c", "skipped"), ("tests/x.py::d", "failed")]
    entries = [{"test": name, "outcome": outcome, "seconds": 1.0, "why": "it fell"} for name, outcome in lines]
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    result = gpu_tests.outcomes(log) | {"ended": True, "passed": False, "seconds": 1.0}
    assert list(result["failed"]) == ["tests/parity/a.py::b", "tests/x.py::d"]
    cell = {"cell": asdict(plan.TESTS), "result": result}
    results = {"about": ABOUT, "cells": {"tests": cell}}
    with pytest.raises(report.NoFigure, match=r"tests/parity/a\.py::b"):
        report.rows(results)
    bars = report.bars(results["cells"])
    assert [(bar["figure"], bar["met"]) for bar in bars] == [(2, False)]
    assert failures(results["cells"]) == ["tests", "tests: tests/parity/a.py::b", "tests: tests/x.py::d"]
    other = {**results, "about": {**ABOUT, "gpu": "another"}}
    with pytest.raises(report.NoFigure, match="gpu is 'none' and 'another'"):
        report.joined([results, other])


# Arithmetic ----------------------------------------------------------------------------------------------------------


def test_intervals() -> None:
    assert intervals.merge([(3, 4), (0, 1), (1, 2), (3.5, 5), (6, 6)]) == [(0, 2), (3, 5)]
    assert intervals.length([(0, 2), (1, 3), (5, 6)]) == 4
    assert intervals.overlap({"up": [(0, 2), (3, 6)], "kernels": [(1, 4), (5, 7)]})["both_seconds"] == 3
    assert intervals.cut([(0, 2), (3, 6), (8, 9)], 1, 4) == [(1, 2), (3, 4)]


def event(category: str, name: str, start_us: float, duration_us: float) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start_us, "dur": duration_us}


def test_overlap_of_a_trace_made_by_hand() -> None:
    trace = {
        "traceEvents": [
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 100),
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 150, 100),
            event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 240, 10),
            event("kernel", "gemm", 50, 150),
            event("gpu_memset", "Memset (Device)", 200, 10),
            event("cpu_op", "aten::mm", 0, 1000),
            event("cuda_runtime", "cudaMemcpyAsync", 0, 1000),
            {"ph": "M", "name": "process_name"},
            event("user_annotation", "mark", 7, 1),
        ]
    }
    kinds = intervals.device_kinds(trace)
    assert {kind: len(found) for kind, found in kinds.items()} == {"up": 1, "down": 1, "kernels": 3}
    assert intervals.marks(trace, "mark") == [7e-6]
    found = intervals.overlap(kinds)
    # Copies: 0-100, 150-250. Computation: 50-210, 240-250. Both: 50-100, 150-210, 240-250.
    assert found["cold_seconds"] == pytest.approx(200e-6)
    assert found["compute_seconds"] == pytest.approx(170e-6)
    assert found["both_seconds"] == pytest.approx(120e-6)
    assert found["overlap_ratio"] == pytest.approx(120 / 170)
    with_host = intervals.overlap({**kinds, "gather": [(100e-6, 150e-6)], "load": [(0, 1)]})
    assert with_host["cold_seconds"] == pytest.approx(250e-6)
    assert with_host["overlap_ratio"] == pytest.approx(1.0)
    assert with_host["copy_overlap_ratio"] == pytest.approx(120 / 170)
    assert intervals.overlap({})["overlap_ratio"] == 0


def test_ratios_are_of_the_same_round() -> None:
    def entry(*seconds: float) -> measure.Entry:
        return measure.Entry(None, [measure.Turn(1, s, {"samples": 10.0}, 0) for s in seconds])  # type: ignore[arg-type]

    found = measure.ratios({"a": entry(1.0, 2.0, 4.0), "b": entry(2.0, 4.0, 4.0), "c": entry()})
    assert found == {"a": {"b": 2.0}, "b": {"a": 0.5}}


def test_growth_leaves_the_beginning_out() -> None:
    levels = [1, 5, 9, 9, 9, 8, 9, 9, 9]
    samples = [{"tensor_bytes": level, "used_bytes": 9, "host_bytes": number} for number, level in enumerate(levels)]
    assert growth.growth(samples) == {"grown_tensor_bytes": 0, "grown_used_bytes": 0, "grown_host_bytes": 3}


def test_bars_see_what_misses_them() -> None:
    preloaded, rules = (asdict(plan.FIRST[number]) for number in (4, 9))
    ratios = {"hotline/never": {"plain": 2.9, "device_only": 0.91, "fbgemm": 1.1}}
    memory = {"seconds": 9, "grown_used_bytes": 2 << 20, "grown_tensor_bytes": 0}
    rule_ratios = {"hotline+sgd": {"hotline+lazy_adam": 1.2}}
    runs = {"hotline": {"overlap_ratio": 0.79}, "device_only": {"overlap_ratio": 0.0}}
    found = {
        "fell": {"cell": preloaded, "error": "it fell"},
        "preloaded": {"cell": preloaded, "result": {"ratios": ratios}},
        "rules": {"cell": rules, "result": {"ratios": rule_ratios}},
        "other rules": {"cell": {**rules, "budget_rule": ""}, "result": {"ratios": rule_ratios}},
        "timeline": {"cell": {"kind": "timeline"}, "result": {"runs": runs}},
        "memory": {"cell": {"kind": "memory"}, "result": {"runs": {"hotline": memory}}},
    }
    bars = report.bars(found)
    assert [bar["met"] for bar in bars] == [False, True, False, True, False, False]
    wanted = ("plain", "device_only", "fbgemm")
    assert tuple(bar["what"] for bar in bars[:3]) == tuple(f"hotline/never / {rival}, preloaded" for rival in wanted)
    assert "same bytes" in bars[3]["what"]


def test_rows_show_what_was_skipped_and_waited_for() -> None:
    gained = {
        "lookups": 100, "lookups_hot": 50, "samples_seen": 10, "samples_popular": 4, "samples_trained": 8,
        "row_updates": 60, "row_updates_skipped": 20, "host_to_device_bytes": 0, "device_to_host_bytes": 0,
    }  # fmt: skip
    facts = {"split": "chose whole", "device_tier_bytes": 3 << 20, "hot_rows": 7, "rows": 100}
    run = {
        "samples_per_second": 1.0, "samples_per_second_quartiles": [1.0, 1.0], "seconds_per_step": 1.0,
        "seconds_per_step_mean": 1.0, "wait_ratio": 0.25, "gained": gained, "per_step": gained, "facts": facts,
    }  # fmt: skip
    row = report.comparison_row("hotline", run, {"ratios": {}, "shape": {}}, {})
    names = ("waited for the loader", "steps", "samples trained", "row updates skipped", "tier MiB (of all rows)")
    assert [row[name] for name in names] == ["25%", "chose whole", "0.800", "0.250", "3 (7.0%)"]
    rival = report.comparison_row(
        "plain", {**run, "gained": {}, "per_step": {}, "facts": {}}, {"ratios": {}, "shape": {}}, {}
    )
    assert list(rival) == list(row)


def test_the_plan_keeps_to_its_time_whatever_the_cells_take() -> None:
    for factor in (0.2, 1.0, 1.3):
        for part, total in plan.PART_SECONDS.items():
            cells = plan.warmed(tuple(cell for cell in plan.FIRST if cell.part == part))
            assert sum(cell.seconds for cell in cells) <= total + 2
            spent, taken = 0.0, []
            for number in range(len(cells)):
                seconds = plan.share(cells[number:], total - spent)
                taken.append(seconds)
                spent += factor * seconds
            assert spent <= total * max(1.0, factor)
            assert all(taken[:2])
            assert total < 300
    assert sum(plan.PART_SECONDS.values()) < 590
    assert plan.share([replace(plan.FIRST[4], least_seconds=40)], 39) == 0
    assert plan.share(plan.FIRST, 39, stretches=False) == 0
    assert plan.share(plan.FIRST, 40, stretches=False) == 40
    names = [cell.name for cell in plan.all_cells()]
    assert len(set(names)) == len(names)


def test_the_long_plan_has_every_combination_under_its_own_name() -> None:
    cells_of: dict[tuple[Any, ...], set[str]] = {}
    for cell in plan.all_cells():
        if cell.kind == "comparison":
            assert cell.name.startswith(f"{cell.shape}-{cell.batch_size}-")
            key = (cell.shape, cell.batch_size, cell.rule, cell.preloaded, cell.rows_ratio)
            if not cell.budget_rule and not cell.name.endswith("-ways"):
                cells_of.setdefault(key, set()).update(cell.contestants)
    assert len(cells_of) == 2 * 2 * 2 * 2 * 3
    for (shape, _, _, _, ratio), names in cells_of.items():
        missing = set(plan.ALL_POLICIES) - names
        left_out = {"plain_device", *plan.OPTIONAL} if shape == "mlperf" else set()
        assert missing == (set() if ratio == 0.1 else set(plan.WITHOUT_BUDGET)) | left_out
