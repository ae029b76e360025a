"""The GPU benchmarks, rehearsed: no figure comes of it, but every part runs, in the order and the forms of a real run."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.gpu import intervals, measure, plan, report, stand_ins
from benchmarks.gpu.__main__ import arguments, cells_of, run_apart
from benchmarks.gpu.picture import draw

ROOT = Path(__file__).parent.parent


def bench(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, env={**os.environ, **environment}
    )


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rehearsal")
    done = bench("--rehearse", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    return out


# The rehearsal -------------------------------------------------------------------------------------------------------


def test_every_cell_runs_and_every_contestant_takes_turns(rehearsal: Path) -> None:
    results = json.loads((rehearsal / "results.json").read_text())
    assert list(results["cells"]) == [cell.name for cell in plan.QUICK]
    for cell in plan.QUICK:
        result = results["cells"][cell.name]["result"]
        if cell.kind == "comparison":
            assert set(result["runs"]) | set(result["absent"]) == set(cell.contestants)
            assert all(line["turns"] >= 1 and line["samples_per_second"] > 0 for line in result["runs"].values())
    checks = results["cells"]["correctness"]["result"]
    assert checks["passed"]
    hot = [line["hot_lookup_ratio"] for line in checks["checks"] if line["check"].endswith("split: losses")]
    assert hot
    assert min(hot) > 0.1  # rows did move between the tiers


def test_a_rehearsal_gives_no_rows_and_no_bars(rehearsal: Path) -> None:
    results = json.loads((rehearsal / "results.json").read_text())
    assert results["about"]["rehearsal"] == "fake"
    assert "gpu" not in results["about"]
    assert results["bars"] == []
    assert not (rehearsal / "rows.md").exists()
    done = bench("--rows", str(rehearsal / "results.json"))
    assert done.returncode == 2
    assert "no rows" in done.stderr
    assert not done.stdout


def test_the_rows_of_such_results_can_be_written(rehearsal: Path) -> None:
    """As they would be, were it a GPU; all that happens here is that nothing is missing."""
    results = json.loads((rehearsal / "results.json").read_text())
    results["about"] |= {"rehearsal": "", "gpu": "none", "gpu_bytes": 1, "driver": "none"}
    text = report.rows(results)
    for cell in plan.QUICK[1:]:
        assert cell.name in text or cell.kind == "ceilings"
    for table in text.split("\n\n"):
        columns = {line.count("|") for line in table.splitlines() if line.startswith("|")}
        assert len(columns) <= 1, table
    results["cells"]["correctness"]["result"]["passed"] = False
    with pytest.raises(report.NoFigure, match="correctness"):
        report.rows(results)


def test_traces_and_pictures_are_well_formed_and_say_what_they_are(rehearsal: Path) -> None:
    runs = json.loads((rehearsal / "results.json").read_text())["cells"]["timeline"]["result"]["runs"]
    for run in runs.values():
        trace, picture = (rehearsal / name for name in run["files"])
        assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        root = ElementTree.fromstring(picture.read_text())
        assert root.tag.endswith("svg")
        assert "REHEARSAL" in "".join(root.itertext())
        assert run["compute_seconds"] > 0
        assert run["cold_seconds"] > 0  # rows were seen on their way out of host memory or home
        assert 0 <= run["overlap_ratio"] <= 1


# What the command refuses, and what it takes up again -------------------------------------------------------------------


def test_without_cuda_it_says_so_in_a_line() -> None:
    done = bench(CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "CUDA" in done.stderr


def test_the_long_one_is_taken_up_again_cell_by_cell(tmp_path: Path) -> None:
    words = [
        "--all",
        "--rehearse",
        "cpu",
        "--out",
        str(tmp_path),
        "--only",
        "ceilings",
        "kaggle-2048-1pc-rowwise_adagrad",
    ]
    assert bench(*words).returncode == 0
    spoilt = tmp_path / "cells" / "ceilings.json"
    spoilt.write_text(spoilt.read_text()[:100])  # as if it had ended while writing
    again = bench(*words)
    assert again.returncode == 0
    assert "correctness: measured before" in again.stdout
    assert "kaggle-2048-1pc-rowwise_adagrad: measured before" in again.stdout
    assert "ceilings: rehearsed" in again.stdout
    assert set(json.loads((tmp_path / "results.json").read_text())["cells"]) == {"correctness", *words[-2:]}


def test_a_cell_in_its_own_process_tells_what_it_found_or_that_it_fell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = arguments(["--rehearse", "cpu"])
    (tmp_path / "cells").mkdir()
    cell, path = cells_of(args)[1], tmp_path / "cells" / "ceilings.json"
    found = run_apart(cell, args, tmp_path, path, seconds=60, left=60)
    assert found["result"]["up_bytes_per_second"] > 0
    assert found == json.loads(path.read_text())
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = run_apart(cell, args, tmp_path, path, seconds=60, left=60)
    assert "exit status 1" in found["error"]
    assert "result" not in found


def test_a_rival_in_its_own_process_trains_too() -> None:
    code = (
        "from benchmarks.gpu.apart import Apart\n"
        "rival = Apart('plain', ['--cell', 'kaggle-2048-10pc', '--rehearse', 'cpu'])\n"
        "print(rival.drive(3), rival.steps, rival.counters(), rival.facts()['about'])\n"
        "rival.close()\n"
        "try:\n"
        "    Apart('fbgemm', ['--cell', 'kaggle-2048-10pc', '--rehearse', 'cpu']).drive(1)\n"
        "except RuntimeError as error:\n"
        "    print(str(error).splitlines()[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    first, second = done.stdout.strip().splitlines()
    assert first.startswith("3 3 {'samples': 192} plain PyTorch"), done.stdout + done.stderr
    assert "RuntimeError" in second


RIVAL_EQUALS_OURS = """
import numpy as np, torch
from benchmarks.gpu import shapes
from benchmarks.gpu.contestants import Ours, Where
from benchmarks.gpu.rivals import PlainHybrid

shapes.quick_tables()
here = Where(torch.device("cpu"), "cpu")
for rule in ("sgd", "adagrad", "lazy_adam"):
    settings = ("run.device=cpu", "run.threads=1", "knobs.policy=hybrid", "optimizer.embedding=" + rule, "knobs.report_every=1")
    config = shapes.configure(shapes.SHAPES["tiny_bags"], 64, settings, None)
    source = shapes.preload(shapes.open_shape(shapes.SHAPES["tiny_bags"], config), config, 20)
    ours, rival = Ours("hybrid", config, source, here, None), PlainHybrid("plain", config, source, here)
    ours.drive(19), rival.drive(20)
    for table in range(4):
        rows, began = ours.runtime.store.export_table(table)[0], rival.weights(table).numpy()
        theirs = rival._bags[table].weight.detach().numpy()
        moved = np.abs(rows - began).max()
        print(moved > 1e-3, np.abs(rows - theirs).max() < 1e-3 * moved)
    ours.close(), rival.close()
"""


def test_the_plain_rival_trains_as_we_do() -> None:
    """The same rows from the same batches: neither does less work than the other."""
    done = subprocess.run(
        [sys.executable, "-c", RIVAL_EQUALS_OURS], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["True"] * 24, done.stdout + done.stderr


def test_it_runs_without_the_libraries_it_never_uses() -> None:
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('zstandard', 'safetensors', 'fastapi', 'rich', 'tomli_w', 'httpx2', 'matplotlib'):\n"
        "            raise ModuleNotFoundError('not installed: ' + name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from benchmarks.gpu import stand_ins\n"
        "stand_ins._found = lambda name: False\n"
        "print(stand_ins.install())\n"
        "import benchmarks.gpu.cells\n"
        "from adaptive_rec import checkpoint\n"
        "try:\n"
        "    checkpoint.load_file('x')\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "['safetensors', 'zstandard']" in done.stdout, done.stdout + done.stderr
    assert stand_ins.missing(on_gpu=False) == []


# Arithmetic ----------------------------------------------------------------------------------------------------------


def test_intervals() -> None:
    assert intervals.merge([(3, 4), (0, 1), (1, 2), (3.5, 5), (6, 6)]) == [(0, 2), (3, 5)]
    assert intervals.length([(0, 2), (1, 3), (5, 6)]) == 4
    assert intervals.intersect([(0, 2), (3, 6)], [(1, 4), (5, 7)]) == [(1, 2), (3, 4), (5, 6)]
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


def test_a_picture_shows_every_interval_within_its_span() -> None:
    text = draw('a < b & "c"', {"up": [(0.0, 1.0), (5.0, 6.0)], "kernels": [(0.5, 2.0)]}, 0.0, 3.0)
    bars = [part for part in ElementTree.fromstring(text).iter() if part.get("fill") in ("#d95f02", "#1b9e77")]
    assert len(bars) == 2
    assert float(bars[0].get("width", 0)) == pytest.approx(float(bars[1].get("width", 0)) * 2 / 3, rel=1e-3)


def test_ratios_are_of_the_same_round() -> None:
    def entry(*seconds: float) -> measure.Entry:
        return measure.Entry(None, [measure.Turn(1, s, {"samples": 10.0}, 0) for s in seconds])  # type: ignore[arg-type]

    found = measure.ratios({"a": entry(1.0, 2.0, 4.0), "b": entry(2.0, 4.0, 4.0), "c": entry()})
    assert found == {"a": {"b": 2.0}, "b": {"a": 0.5}}


def test_growth_leaves_the_beginning_out() -> None:
    levels = [1, 5, 9, 9, 9, 8, 9, 9, 9]
    samples = [{"tensor_bytes": level, "used_bytes": 9, "host_bytes": number} for number, level in enumerate(levels)]
    assert measure.growth(samples) == {"grown_tensor_bytes": 0, "grown_used_bytes": 0, "grown_host_bytes": 3}


def test_bars_see_what_misses_them() -> None:
    cell = asdict(plan.QUICK[2])
    ratios = {"hotline": {"plain": 2.9}, "slipstream:freeze": {"plain": 3.1}, "hotline/never": {"device_only": 0.89}}
    memory = {"seconds": 9, "grown_used_bytes": 2 << 20, "grown_tensor_bytes": 0}
    cells = {
        "a": {"cell": cell, "result": {"ratios": ratios}},
        "b": {"cell": cell, "error": "it fell"},
        "c": {"cell": cell, "result": {"ratios": {"hotline+sgd": {"hotline+lazy_adam": 1.2}}}},
        "t": {
            "cell": {"kind": "timeline"},
            "result": {"runs": {"hotline": {"overlap_ratio": 0.79}, "x": {"absent": ""}}},
        },
        "m": {"cell": {"kind": "memory"}, "result": {"runs": {"hotline": memory}}},
    }
    assert [bar["met"] for bar in report.bars(cells)] == [False, True, False, True, False, False]


def test_the_plan_keeps_to_its_time_whatever_the_cells_take() -> None:
    for factor in (0.2, 1.0, 1.3):
        spent, taken = 0.0, []
        for number, cell in enumerate(plan.QUICK):
            seconds = plan.share(cell, plan.QUICK[number + 1 :], plan.QUICK_SECONDS - spent)
            taken.append(seconds)
            spent += factor * seconds
        assert spent <= plan.QUICK_SECONDS * max(1.0, factor)
        assert all(taken[:8])
    assert plan.QUICK_SECONDS < 480
    assert plan.share(replace(plan.QUICK[2], least_seconds=40), (), 39) == 0
    names = [cell.name for cell in plan.all_cells()]
    assert len(set(names)) == len(names)
