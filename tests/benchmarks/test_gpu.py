"""The GPU benchmarks, rehearsed: no figure comes of it, but every part runs, in the order and the forms of a real run.

What is made by hand is in `test_gpu_results.py` and `test_gpu_turns.py`.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
import zipfile
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import bench as common_bench
from benchmarks.common import machine
from benchmarks.common.bench import asked
from benchmarks.gpu import carry, gpu_tests, plan, report, stand_ins, unpack
from benchmarks.gpu.__main__ import BENCH, without_carried

ROOT = Path(__file__).parents[2]


def bench(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, env={**os.environ, **environment}
    )


SOME = (
    "steps-recorded", "ceilings", "kaggle-2048-10pc-preloaded", "timeline", "kaggle-2048-10pc-rules",
    "mlperf-2048-10pc-preloaded", "memory",
)  # fmt: skip
"""Cells of every kind and shape."""


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rehearsal")
    done = bench("--rehearse", "--out", str(out), "--only", *SOME)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "profiler" not in done.stdout + done.stderr  # it tells each time that it was started
    return out


# The rehearsal -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_cell_runs_and_every_contestant_takes_turns(rehearsal: Path) -> None:
    every_contestant_took_turns(rehearsal, {*SOME, "warm"})


@pytest.mark.long
def test_all_cells_of_the_first_run_are_rehearsed(tmp_path: Path) -> None:
    done = bench("--rehearse", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    every_contestant_took_turns(tmp_path, {"warm", *(cell.name for cell in plan.FIRST)})
    tests = json.loads((tmp_path / "results.json").read_text())["cells"]["tests"]["result"]
    assert tests["passed"]
    assert tests["tests"] > len(tests["skipped"]) > 0


def every_contestant_took_turns(out: Path, names: set[str]) -> None:
    results = json.loads((out / "results.json").read_text())
    assert set(results["cells"]) == names
    for cell in plan.FIRST:
        if cell.name not in names or cell.kind != "comparison":
            continue
        result = results["cells"][cell.name]["result"]
        assert set(result["runs"]) | set(result["left_out"]) == set(cell.contestants)
        for line in result["runs"].values():
            assert line["turns"] >= 1
            assert line["samples_per_second"] > 0
            assert 0 <= line["wait_ratio"] <= 1
    steps = results["cells"]["steps-recorded"]["result"]
    assert steps["passed"]
    assert set(steps["losses"]) == {"eager", "recorded"}


@pytest.mark.slow
def test_budgets_of_a_comparison_of_rules_are_the_same_bytes(rehearsal: Path) -> None:
    cells = json.loads((rehearsal / "results.json").read_text())["cells"]
    runs = cells["kaggle-2048-10pc-rules"]["result"]["runs"]
    budgets = {runs[f"hotline+{rule}"]["facts"]["budget_bytes"] for rule in ("sgd", "rowwise_adagrad", "lazy_adam")}
    assert len(budgets) == 1
    assert runs["hotline+sgd"]["facts"]["hot_rows"] > runs["hotline+lazy_adam"]["facts"]["hot_rows"] > 0
    assert {line["facts"].get("split") for line in cells["kaggle-2048-10pc-preloaded"]["result"]["runs"].values()} == {
        "split", "whole", None
    }  # fmt: skip


@pytest.mark.slow
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


@pytest.mark.parametrize("folder", [["--carried", "carried/"], ["--carried=carried"], ["--carried", "./carried"]])
def test_the_folder_to_unpack_is_unpacked_once_however_it_is_written(folder: list[str]) -> None:
    assert without_carried(["--part", "1", *folder, "--out", "carried/"]) == ["--part", "1", "--out", "carried/"]


@pytest.mark.parametrize("option", ["--rows", "--carried"])
def test_files_that_are_not_there_are_named(option: str) -> None:
    done = bench(option, "nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gpu: {option} ")
    assert "nowhere" in done.stderr


@pytest.mark.slow
def test_the_rows_of_such_results_can_be_written(rehearsal: Path) -> None:
    """As they would be, were it a GPU; all that happens here is that nothing is missing."""
    results = json.loads((rehearsal / "results.json").read_text())
    results["about"] |= {"rehearsal": "", "gpu": "none", "gpu_bytes": 1, "driver": "none"}
    passed = {"tests": 9, "failed": {}, "skipped": {}, "ended": True, "passed": True, "seconds": 1.0}
    results["cells"]["tests"] = {"cell": asdict(plan.TESTS), "result": passed}
    text = report.rows(results)
    assert all(f"### {name}\n" in text for name in SOME if name != "ceilings")
    for table in text.split("\n\n"):
        columns = {line.count("|") for line in table.splitlines() if line.startswith("|")}
        assert len(columns) <= 1, table
    assert "### Tests" in text


@pytest.mark.slow
def test_traces_are_well_formed(rehearsal: Path) -> None:
    runs = json.loads((rehearsal / "results.json").read_text())["cells"]["timeline"]["result"]["runs"]
    assert {name: round(run["micro_batches_per_step"]) for name, run in runs.items()} == {
        "hotline/always": 2, "hotline/never": 1
    }  # fmt: skip
    for run in runs.values():
        assert run["windows_before"] >= 2
        (trace,) = (rehearsal / name for name in run["files"])
        assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        assert run["compute_seconds"] > 0
        assert run["cold_seconds"] > 0  # rows were seen on their way out of host memory or home
        assert 0 <= run["overlap_ratio"] <= 1


# What the command refuses, and what it takes up again -------------------------------------------------------------------


@pytest.mark.slow
def test_without_cuda_it_says_so_in_a_line() -> None:
    done = bench(CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "CUDA" in done.stderr


def test_cells_are_listed_in_columns() -> None:
    lines = bench("--list", "--all").stdout.splitlines()
    assert len(lines) == len(plan.all_cells())
    assert len({line.index(" s ") if " s " in line else line.rindex(" s") for line in lines}) == 1


def test_a_cell_is_taken_up_if_it_was_measured_here_and_with_these_sources(tmp_path: Path) -> None:
    args, cell, path = BENCH.arguments(["--all"]), plan.CEILINGS, tmp_path / "cell.json"
    about = {"fingerprint": machine.fingerprint("gpu"), "here": machine.here(), "rehearsal": ""}
    old = {"cell": asdict(cell), "asked": asked(args), "about": about, "result": {}}

    def taken_up(**changes: Any) -> bool:
        path.write_text(json.dumps({**old, **changes}))
        return BENCH.resumable(path, cell, args) is not None

    assert taken_up()
    assert not taken_up(about=about | {"here": about["here"] | {"gpus": ["another", "all"]}})
    assert not taken_up(about=about | {"here": about["here"] | {"torch": "0.1"}})
    assert not taken_up(about=about | {"fingerprint": "another"})
    assert not taken_up(partial=True)
    assert not taken_up(asked=asked(args) | {"data": "train.txt"})
    assert asked(BENCH.arguments(["--all", "--seconds", "9", "--carried", "there"])) == asked(args)
    files = machine.measuring_files("gpu")
    assert {"measure.py", "rivals.py", "loop.py", "tiny.toml"} <= {path.name for path in files}
    of_the_benchmark = {path.name for path in files if path.parent.parent.name == "benchmarks"}
    assert not {"report.py", "picture.py", "__main__.py"} & of_the_benchmark


@pytest.mark.slow
def test_the_long_one_is_taken_up_again_cell_by_cell(tmp_path: Path) -> None:
    some = ("ceilings", "kaggle-2048-1pc-rowwise_adagrad")
    words = ["--all", "--rehearse", "cpu", "--out", str(tmp_path), "--only", *some]
    assert bench(*words).returncode == 0
    spoilt = tmp_path / "cells" / "ceilings.json"
    spoilt.write_text(spoilt.read_text()[:100])  # as if it had ended while writing
    again = bench(*words)
    assert again.returncode == 0
    (line,) = (line for line in again.stdout.splitlines() if line.endswith("(measured before)"))
    assert line.startswith("kaggle-2048-1pc-rowwise_adagrad: ")
    assert "\nceilings: " in f"\n{again.stdout}"
    assert set(json.loads((tmp_path / "results.json").read_text())["cells"]) == set(some)


@pytest.mark.slow
def test_a_cell_in_its_own_process_returns_its_results_or_its_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common_bench, "LOOK_SECONDS", 120)  # no look at what is written before the end, however slow it is
    args = BENCH.arguments(["--rehearse", "cpu", "--out", str(tmp_path)])
    cell, path = plan.rehearsed(plan.CEILINGS), tmp_path / "cells" / "ceilings.json"
    path.parent.mkdir()
    saved: list[dict[str, Any]] = []
    found = BENCH.run_apart(cell, args, 60, saved.append)
    assert found["result"]["up_bytes_per_second"] > 0
    assert found == json.loads(path.read_text())
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = BENCH.run_apart(cell, args, 60, saved.append)
    assert "exit status 1" in found["error"]
    assert "result" not in found
    fallen = tmp_path / "python"
    fallen.write_text(f'#!/bin/sh\necho \'{{"result": {{}}, "partial": true}}\' > {path}\nexit 3\n')
    fallen.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fallen))
    found = BENCH.run_apart(cell, args, 60, saved.append)
    assert found == {"result": {}, "partial": True, "cut_short": "exit status 3"}
    assert not saved
    monkeypatch.setattr(common_bench, "LOOK_SECONDS", 0.5)
    fallen.write_text(f'#!/bin/sh\necho \'{{"result": {{}}, "partial": true}}\' > {path}\nsleep 1.5\nexit 3\n')
    BENCH.run_apart(cell, args, 60, saved.append)
    assert saved[0] == {"result": {}, "partial": True, "cut_short": "the whole was stopped"}


RIVALS_EQUAL_OURS = """
import json, sys
import numpy as np, torch
from benchmarks.common import shapes
from benchmarks.common.contestants import Ours, Where
from benchmarks.gpu.contestants import RIVAL_CLASSES

here = Where(torch.device("cpu"), "cpu")
for rule, names in json.loads(sys.argv[1]):
    settings = ("run.device=cpu", "run.threads=1", "knobs.policy=hybrid", "optimizer.embedding=" + rule, "knobs.report_every=1")
    config = shapes.configure(shapes.SHAPES["tiny_bags"], 64, settings, None)
    source = shapes.preload(shapes.open_shape(shapes.SHAPES["tiny_bags"], config), config, 20)
    ours = Ours("hybrid", config, source, here, None)
    ours.drive(19)
    for name in names:
        rival = RIVAL_CLASSES[name](name, config, source, here, **({"cached_ratio": 0.1} if name == "fbgemm" else {}))
        rival.drive(20)
        for table in range(4):
            rows, began = ours.runtime.store.contents.export(table)[0], rival.weights(table)
            moved = np.abs(rows - began).max()
            print(rule, name, moved > 1e-3 and np.abs(rows - rival.rows(table).numpy()).max() < 1e-3 * moved)
        rival.close()
    ours.close()
"""

TORCHS_OWN = ("plain", "plain_device")
OTHERS = ("fbgemm", "fbgemm_device", "torchrec")


@cache
def compared(*cases: tuple[str, tuple[str, ...]]) -> list[list[str]]:
    """Compare rivals with ours in one process, whose start takes longer. Returns rules, names of rivals, whether they agree."""
    done = subprocess.run(
        [sys.executable, "-c", RIVALS_EQUAL_OURS, json.dumps(cases)], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.split() for line in done.stdout.splitlines()]


CASES = (("adagrad", TORCHS_OWN), ("sgd", TORCHS_OWN), ("lazy_adam", TORCHS_OWN), ("rowwise_adagrad", OTHERS))


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "names"), CASES)
def test_rivals_train_as_we_do(rule: str, names: tuple[str, ...]) -> None:
    """The same rows from the same batches: neither does less work than the other."""
    absent = [name for name in ("fbgemm_gpu", "torchrec") if importlib.util.find_spec(name) is None]
    if names == OTHERS and absent:
        pytest.skip(f"{absent[0]} is not installed here (make bench installs it)")
    found = compared(*(CASES[:-1] if absent else CASES))
    assert [line for line in found if line[0] == rule] == [[rule, name, "True"] for name in names for _ in range(4)]


@pytest.mark.slow
def test_it_runs_without_the_libraries_it_never_uses() -> None:
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('backports', 'safetensors', 'fastapi', 'rich', 'tomli_w', 'httpx2', 'matplotlib'):\n"
        "            raise ModuleNotFoundError('not installed: ' + name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from benchmarks.gpu import stand_ins\n"
        "stand_ins.is_installed = lambda name: False\n"
        "stand_ins.install()\n"
        "import benchmarks.gpu.cells\n"
        "from adaptive_rec.data import packed\n"
        "try:\n"
        "    packed.ZstdDecompressor()\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.stdout == "backports.zstd is not installed: .zst files cannot be read\n", done.stdout + done.stderr
    assert stand_ins.missing(on_gpu=False) == []


def test_the_tests_that_need_a_gpu_are_all_in_the_files_that_are_run() -> None:
    """Tests get the mark by its name, or by the parameters and the fixture below, which contain it."""
    marked = re.compile(r"mark\.gpu|tests\.settings import .*\bDEVICES\b")
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        if path != Path(__file__) and (marked.search(text) or (path.parent.name == "kernels" and "form: Any" in text)):
            assert any(name == listed or name.startswith(listed + "/") for listed in gpu_tests.FILES), name
    assert all((ROOT / listed).exists() for listed in (*gpu_tests.FILES, *gpu_tests.MAY_SKIP))


def test_what_is_carried_is_unpacked_and_archives_wait_for_all_of_their_parts(tmp_path: Path) -> None:
    carried, there = tmp_path / "carried", tmp_path / "there"
    for name in ("wheels", "data", "parts"):
        (carried / name).mkdir(parents=True)
    with zipfile.ZipFile(carried / "wheels" / "one-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("one/__init__.py", "")
    (carried / "data" / "sample").write_bytes(b"rows")
    library = fat_library({80: b"a" * 64, 90: b"b" * 64, 100: b"c" * 64})
    with zipfile.ZipFile(tmp_path / "two.whl", "w") as wheel:
        wheel.writestr("two/two.so", bytes(library))
    with (tmp_path / "whole").open("wb") as file:
        carry.compress(tmp_path / "two.whl", file, 90)
    whole = (tmp_path / "whole").read_bytes()
    (carried / "parts" / "two.1").write_bytes(whole[:50])
    (carried / unpack.MANIFEST).write_text(json.dumps({"archives": {"two": ["two.1", "two.2"]}}))
    variables = unpack.unpack(carried, there)
    assert (there / "site" / "one" / "__init__.py").exists()
    assert (Path(variables["ADAPTIVE_REC_TEST_DATA"]) / "sample").read_bytes() == b"rows"
    assert not (there / "site" / "two").exists()
    (carried / "parts" / "two.1").unlink()
    (carried / "parts" / "two.2").write_bytes(whole[50:])
    unpack.unpack(carried, there)
    slim = (there / "site" / "two" / "two.so").read_bytes()
    assert [bytes(slim[start : start + size]) for _, start, size in carry.fat_entries(bytearray(slim))] == [
        bytes(64), b"b" * 64, bytes(64)
    ]  # fmt: skip
    assert len(slim) == len(library)


def fat_library(code: dict[int, bytes]) -> bytearray:
    """A library with machine code of several GPUs, as CUDA's linker lays it out."""
    entries = b""
    for arch, words in code.items():
        entries += struct.pack("<HHIQIIHHI", 2, 0x101, 64, len(words), 0, 0, 0, 0, arch).ljust(64, b"\0") + words
    return bytearray(b"ELF before" + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries + b"and after")
