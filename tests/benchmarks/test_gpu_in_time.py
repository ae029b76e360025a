"""A cell of the GPU benchmarks ends in its time however slow a contestant is, and rivals train in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.batch import Batch, is_one_each
from benchmarks.common import shapes
from benchmarks.common.contestants import Where
from benchmarks.gpu import apart, cells, compiling, measure, plan
from benchmarks.gpu.__main__ import BENCH
from benchmarks.gpu.limit import OutOfTime, limited
from benchmarks.gpu.shared_batches import Shelf

ROOT = Path(__file__).parents[2]
WORDS = ["--cell", "kaggle-2048-10pc-preloaded", "--rehearse", "cpu"]


class Here(Where):
    """The CPU, measured as a device is: in time."""

    settings = ("run.device=cpu", "run.threads=1", "knobs.report_every=2", "knobs.reclassify_every=6")


HERE = Here(torch.device("cpu"))


READY = """while [ "$1" != --reply-to ]; do shift; done
echo '{"value": "ready"}' > /proc/self/fd/$2
"""


def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str = "") -> None:
    """Rivals' processes never answer, but for what they say before."""
    never = tmp_path / f"python{len(before)}"
    never.write_text(f"#!/bin/sh\n{before}exec sleep 60\n")
    never.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(never))


def has_ended(rival: apart.Apart) -> bool:
    return rival._process.wait(10) is not None


# Time ----------------------------------------------------------------------------------------------------------------


def test_work_is_interrupted_when_its_time_is_over_also_where_it_ignores_that_once() -> None:
    began = time.perf_counter()

    def stubborn() -> None:
        with limited(began + 0.2):
            try:
                time.sleep(30)
            except OutOfTime:
                time.sleep(30)

    with pytest.raises(OutOfTime):
        stubborn()
    assert 0.2 <= time.perf_counter() - began < 5
    with limited(time.perf_counter() + 0.2):
        pass
    time.sleep(0.3)  # nothing comes after the block
    with pytest.raises(OutOfTime), limited(time.perf_counter()):
        raise AssertionError("not begun")


class Slow:
    """Trains nothing, and from some step on needs forever for one."""

    window_steps = 1

    def __init__(self, name: str, slow_after: float = float("inf")) -> None:
        self.name, self.steps, self._slow_after = name, 0, slow_after

    def drive(self, steps: int) -> int:
        self.steps += steps
        time.sleep(60 if self.steps > self._slow_after else 0.001 * steps)
        return steps

    def settle(self) -> None: ...

    def counters(self) -> dict[str, float]:
        return {"samples": 8.0 * self.steps, "wait_seconds": 0.0}

    def facts(self) -> dict[str, Any]:
        return {}

    close = settle


def test_contestants_are_chosen_by_name() -> None:
    cells = ["kaggle-2048-10pc-preloaded", "mlperf-16384-10pc-preloaded"]
    args = BENCH.arguments(["--only", *cells, "--contestants", "device_only", "hotline/never", "fbgemm"])
    warm, *found = BENCH.chosen(args)
    assert isinstance(warm, plan.GpuCell)
    assert [(cell.name, cell.contestants) for cell in found] == [
        (name, ("hotline/never", "device_only", "fbgemm")) for name in cells
    ]
    assert {name for _, name in warm.compiles} == {"hotline/never", "device_only"}
    assert BENCH.chosen(BENCH.arguments([*args.words, "--cell", found[1].name])) == (found[1],)
    with pytest.raises(SystemExit, match="no contestant named fbgem in these cells; --list names them"):
        BENCH.chosen(BENCH.arguments(["--only", *cells, "--contestants", "device_only", "fbgem"]))


@pytest.mark.slow
def test_a_cell_ends_in_its_time_however_slow_its_contestants_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(tmp_path, monkeypatch)

    def never_set_up() -> Any:
        time.sleep(60)

    rival = apart.Apart("plain", WORDS)
    silent(tmp_path, monkeypatch, READY)
    ready = apart.Apart("plain_device", WORDS)
    makers: dict[str, Callable[[], Any] | apart.Apart] = {
        "plain": rival,
        "plain_device": ready,
        "hotline": lambda: Slow("hotline"),
        "cold": lambda: Slow("cold", slow_after=0),
        "turns": lambda: Slow("turns", slow_after=800),
        "device_only": never_set_up,
    }
    saved: list[dict[str, Any]] = []
    began = time.perf_counter()
    found = measure.compare(makers, HERE, began + 12, lambda _: None, saved.append)
    assert time.perf_counter() - began < 30  # each of them would need 60
    assert not found["failed"]
    assert found["runs"]["hotline"]["turns"] >= 1
    late, cold = "was not set up in time", "was not warm in time"
    assert found["left_out"].items() >= {
        "plain": late, "device_only": late, "cold": cold, "plain_device": cold
    }.items()  # fmt: skip
    assert ("turns" in found["runs"]) != ("turns" in found["left_out"])
    assert saved[0]["seconds_to_set_up"] > 0  # before anything was trained
    assert has_ended(rival)
    assert has_ended(ready)


@pytest.mark.slow
def test_kernels_are_compiled_in_processes_of_their_own_and_not_longer_than_there_is_time(tmp_path: Path) -> None:
    args = BENCH.arguments(["--rehearse", "cpu", "--only", "kaggle-2048-10pc-preloaded"])
    cell = BENCH.chosen(args)[0]
    assert isinstance(cell, plan.GpuCell)
    compiled = ["hotline/never", "device_only", plan.IN_PLACE, plan.RARELY, "hotline"]
    assert (cell.kind, [name for _, name in cell.compiles]) == ("warm", compiled)
    cell = replace(cell, compiles=(*cell.compiles[:1], (WORDS[1], "no_such_policy")))

    def found(seconds: float) -> dict[str, Any]:
        context = cells.Context(HERE, time.perf_counter() + seconds, None, "", lambda _: None, lambda _: None)
        return compiling.compile_kernels(cell, args.words, context)

    enough = found(240)
    assert (enough["compiled"], enough["left_out"]) == (1, {})
    assert "no_such_policy" in enough["failed"][f"{WORDS[1]} no_such_policy"]
    began = time.perf_counter()
    assert list(found(0.5)["left_out"].values()) == [compiling.LATE] * 2
    assert time.perf_counter() - began < 10


# Rivals --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rivals_train_on_the_batches_of_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "WARM_RATIO", 0.0)
    monkeypatch.setattr(measure, "turn_steps", lambda *_: 10)
    cell = replace(
        plan.rehearsed(plan.FIRST[4]), name=WORDS[1], contestants=("plain", "hotline/never", "plain_device")
    )
    lines: list[str] = []
    context = cells.Context(HERE, time.perf_counter() + 240, None, "", lines.append, lambda _: None, apart=WORDS)
    found = cells.comparison(cell, context)
    assert list(found["runs"]) == list(cell.contestants), lines
    assert found["preloaded_batches"] == cells.PRELOADED_STEPS  # a rival would have made fewer in a rehearsal
    assert all(run["turns"] == measure.ROUNDS for run in found["runs"].values())
    assert not found["left_out"]


SEEN = """
import sys
from benchmarks.gpu.apart import given_batches
for descriptor in sys.argv[1:]:
  for batch in given_batches(int(descriptor)):
    print(int(batch.ids_N.sum()), int(batch.offsets.sum()), float(batch.dense_BX.sum()), float(batch.labels_B.sum()))
"""


@pytest.mark.slow
def test_batches_of_a_shelf_are_the_same_in_every_process() -> None:
    """Of one id each, and of bags."""
    shelves, made, given = [], list[Batch](), ""
    for shape in ("tiny", "tiny_bags"):
        config = shapes.configure(shapes.SHAPES[shape], 96, HERE.settings, None)
        own = list(shapes.preload(shapes.open_shape(shapes.SHAPES[shape], config), config, 5).batches)
        shelves.append(Shelf())
        kept, contents = shelves[-1].fill(own)
        for before, after in zip(own, kept, strict=True):
            for name in ("dense_BX", "ids_N", "offsets", "labels_B"):
                np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
            assert is_one_each(after.offsets) == is_one_each(before.offsets) == (shape == "tiny")
        made, given = made + own, given + json.dumps({"contents": contents}) + "\n"

    def line(batch: Batch) -> str:
        return f"{batch.ids_N.sum()} {batch.offsets.sum()} {float(batch.dense_BX.sum())} {float(batch.labels_B.sum())}"

    descriptors = [shelf.descriptor for shelf in shelves]
    done = subprocess.run(
        [sys.executable, "-c", SEEN, *map(str, descriptors)], cwd=ROOT, capture_output=True, text=True, timeout=300,
        pass_fds=descriptors, input=given,
    )  # fmt: skip
    for descriptor in descriptors:
        os.close(descriptor)
    assert done.stdout.splitlines() == [line(batch) for batch in made], done.stderr


@pytest.mark.slow
def test_a_rival_in_its_own_process_trains_too() -> None:
    rival = apart.Apart("plain", WORDS)
    rival.wait(time.perf_counter() + 60)
    assert rival.drive(3) == 3
    assert rival.drive(2) == 2
    assert rival.counters()["samples"] == 5 * 64
    assert rival.facts()["about"].startswith("plain PyTorch")
    rival.close()
    assert has_ended(rival)


@pytest.mark.slow
def test_a_rival_that_cannot_be_set_up_gives_the_reason() -> None:
    rival = apart.Apart("plain+nothing", WORDS)
    with pytest.raises(RuntimeError, match="nothing"):
        rival.wait(time.perf_counter() + 60)
    rival.close()


def test_a_rival_that_does_not_answer_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent(tmp_path, monkeypatch)
    monkeypatch.setattr(apart, "PROMPT_SECONDS", 0.1)
    rival = apart.Apart("plain", WORDS)
    with pytest.raises(RuntimeError, match=r"plain: no answer in 0\.1 s"):
        rival.facts()
    assert has_ended(rival)
    with pytest.raises(RuntimeError, match="its process has ended"):
        rival.facts()
    rival.close()
    rival.close()


UNHEARD = """
import os
from benchmarks.gpu.apart import serve
read, write = os.pipe()
os.close(read)
serve(ValueError("it fell"), write)
"""


@pytest.mark.slow
def test_a_rival_whose_reader_has_gone_ends_without_a_word() -> None:
    done = subprocess.run([sys.executable, "-c", UNHEARD], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
