"""Kernels are compiled before the clock of a cell runs: each contestant of ours trains a few steps on small tables first.

Numba and Triton keep what they have compiled on the disk, so the cells after this one load it. A process for each contestant,
all at once, as compiling takes a core each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.machine import ROOT
from benchmarks.common.results import explain
from benchmarks.common.shapes import SHAPES, open_shape, preload
from benchmarks.gpu import plan, timeline
from benchmarks.gpu.cells import Context, config_of, maker
from benchmarks.gpu.limit import OutOfTime, limited

ROWS, BATCHES = 20_000, 8
"""Of a table at most, and of the batches that are trained again and again."""
STEPS = 12
"""At least; a policy without windows has had all its batches then."""


def compile_kernels(cell: plan.GpuCell, args: argparse.Namespace, context: Context) -> dict[str, Any]:
    """Compile what the cells after this one run; which of their contestants failed, and which were not ready in time."""
    began = time.perf_counter()
    failed = here(cell, args, context) if context.where.rehearsal else apart(cell, args, context)
    late = {name: why for name, why in failed.items() if why == LATE}
    return {
        "compiled": len(cell.compiles) - len(failed),
        "failed": {name: why for name, why in failed.items() if name not in late},
        "left_out": late,
        "seconds": time.perf_counter() - began,
    }


LATE = "was not compiled in time"


def here(cell: plan.GpuCell, args: argparse.Namespace, context: Context) -> dict[str, str]:
    """Compile for one of them in this process: all of them take part in their own cells."""
    name, contestant = cell.compiles[0]
    one = next(other for other in (*plan.FIRST, *plan.all_cells()) if other.name == name)
    try:
        train_briefly(plan.rehearsed(one), contestant, context)
    except Exception as error:
        return {f"{name} {contestant}": explain(error)}
    return {}


def apart(cell: plan.GpuCell, args: argparse.Namespace, context: Context) -> dict[str, str]:
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for number, (name, contestant) in enumerate(cell.compiles):
            words = [*args.words, "--cell", name, "--compile", contestant, "--ends", repr(context.deadline)]
            log = Path(folder) / str(number)
            with log.open("wb") as file:
                child = subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.gpu", *words], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT
                )
            running.append((f"{name} {contestant}", child, log))
        try:
            for what, child, log in running:
                status = ended(child, context.deadline)
                if status:
                    failed[what] = log.read_text(errors="replace")[-3000:] or f"exit status {status}"
                elif status is None:
                    failed[what] = LATE
        finally:
            for _, child, _ in running:
                child.kill()
    for what, why in failed.items():
        context.note(f"{what}: {why.strip().splitlines()[-1]}")
    return failed


def ended(child: subprocess.Popen[bytes], deadline: float) -> int | None:
    """A process's exit status; None where it has not ended in time, or says so."""
    try:
        status = child.wait(max(0.0, deadline - time.perf_counter()))
    except subprocess.TimeoutExpired:
        return None
    return None if status == LATE_STATUS else status


LATE_STATUS = 4


def compile_one(cell: plan.GpuCell, name: str, context: Context) -> int:
    """The other end: the exit status of a contestant's process."""
    try:
        with limited(context.deadline):
            train_briefly(cell, name, context)
    except OutOfTime:
        return LATE_STATUS
    return 0


def train_briefly(cell: plan.GpuCell, name: str, context: Context) -> None:
    """Two windows and what is tried, on tables that are cut short."""
    settings = {"data.max_table_rows": ROWS, "knobs.report_every": 2, "knobs.reclassify_every": 6}
    short = replace(cell, preloaded=False)
    config = config_of(short, context, **settings)
    source = preload(open_shape(SHAPES[cell.shape], config), config, BATCHES)
    make: Callable[[], Any] = maker(name, short, context, source, **settings)[0]
    ours = make()
    try:
        timeline.warm(ours, until=0.0)
        ours.drive(max(0, STEPS - ours.steps))
    finally:
        ours.close()
