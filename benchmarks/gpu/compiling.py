"""Kernels are compiled before the clock of a cell runs: each contestant of ours trains a few steps on small tables first.

Numba and Triton keep what they have compiled on the disk, so the cells after this one load it. A process for each contestant,
all at once, as compiling takes a core each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.common.results import explain
from benchmarks.common.shapes import SHAPES, open_shape, preload
from benchmarks.gpu import plan, timeline
from benchmarks.gpu.apart import Apart, NotReady
from benchmarks.gpu.contestants import Context, config_of, maker

ROWS, BATCHES = 20_000, 8
"""Of a table at most, and of the batches that are trained again and again."""
STEPS = 12
"""At least; a policy without windows has had all its batches then."""
LATE = "was not compiled in time"


def compile_kernels(cell: plan.GpuCell, words: list[str], context: Context) -> dict[str, Any]:
    """Compile what the cells after this one run; which of their contestants failed, and which were not ready in time. `words`: of
    the command line, for their processes."""
    began = time.perf_counter()
    failed = here(cell, context) if context.where.rehearsal else apart(cell, words, context)
    late = {name: why for name, why in failed.items() if why == LATE}
    return {
        "compiled": len(cell.compiles) - len(failed),
        "failed": {name: why for name, why in failed.items() if name not in late},
        "left_out": late,
        "seconds": time.perf_counter() - began,
    }


def here(cell: plan.GpuCell, context: Context) -> dict[str, str]:
    """Compile for one of them in this process: all of them take part in their own cells."""
    name, contestant = cell.compiles[0]
    one = next(other for other in (*plan.FIRST, *plan.all_cells()) if other.name == name)
    try:
        train_briefly(contestant, plan.rehearsed(one), context)
    except Exception as error:
        return {f"{name} {contestant}": explain(error)}
    return {}


def apart(cell: plan.GpuCell, words: list[str], context: Context) -> dict[str, str]:
    running = {
        f"{name} {contestant}": Apart(contestant, [*words, "--cell", name, "--compile"], spins=False)
        for name, contestant in cell.compiles
    }
    failed: dict[str, str] = {}
    for what, process in running.items():
        try:
            process.wait(context.deadline)
        except NotReady:
            failed[what] = LATE
        except RuntimeError as error:
            failed[what] = str(error)
    for process in running.values():
        process.close()
    for what, why in failed.items():
        context.note(f"{what}: {why.splitlines()[0]}")
    return failed


def train_briefly(name: str, cell: plan.GpuCell, context: Context) -> None:
    """Two windows and what is tried, on tables that are cut short."""
    settings = {"data.max_table_rows": ROWS, "knobs.report_every": 2, "knobs.reclassify_every": 6}
    short = replace(cell, preloaded=False)
    config = config_of(short, context, **settings)
    source = preload(open_shape(SHAPES[cell.shape], config), config, BATCHES)
    make: Callable[[], Any] = maker(name, short, context, lambda: source, **settings)[0]
    ours = make()
    try:
        timeline.warm(ours, until=0.0)
        ours.drive(max(0, STEPS - ours.steps))
    finally:
        ours.close()
