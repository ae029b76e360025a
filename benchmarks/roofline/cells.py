"""How a cell is run: the roof of the machine, or a kernel beside it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numba

from adaptive_rec.kernels.jit import usable_threads
from benchmarks.common.bench import Absent, Cell
from benchmarks.common.command import data_folder
from benchmarks.common.results import table_head, write
from benchmarks.common.turns import Turn, take_turns
from benchmarks.cpu.parts import Work
from benchmarks.roofline import kernels, parsing
from benchmarks.roofline.machine import Roof, measure
from benchmarks.roofline.plan import MACHINE, PARSING


def run_cell(cell: Cell, args: argparse.Namespace, note: Callable[[str], None]) -> dict[str, Any]:
    threads = usable_threads(len(os.sched_getaffinity(0)))
    numba.set_num_threads(threads)
    path = args.out / "roof.json"
    if cell.kind == MACHINE or not path.exists():
        write(path, asdict(measure(tuple(sorted({1, threads})), 3 if args.rehearse else 7, args.rehearse)))
    roof = Roof.read(json.loads(path.read_text(encoding="utf-8")))
    whole: dict[str, Any] = {"runs": {}, "absent": {}, "checks": [], "rounds": args.rounds, "steps": 1}
    if cell.kind == MACHINE:
        return {**whole, "lines": list(roof_lines(roof)), **asdict(roof)}
    kernel = kernel_of(cell, args.rehearse, roof)
    made = {name: one for name, one in contestants(kernel).items() if name in (*cell.contestants, kernel.rival_name)}
    absent = {} if kernel.rival else {kernel.rival_name: "it has no such kernel, or is not installed"}
    for contestant in made.values():
        contestant.turn(1)
        contestant.turn(1)
    return {**whole, "runs": take_turns(made, args.rounds, 1), "absent": absent}


def kernel_of(cell: Cell, small: bool, roof: Roof) -> kernels.Kernel:
    if cell.kind != PARSING:
        shape = kernels.Shape(cell.shape, cell.settings, cell.batches, small)
        return next(kernel for kernel in kernels.kernels(shape, roof) if kernel.name == cell.kind)
    if not (criteo := parsing.text(data_folder() / cell.data, small)):
        raise Absent(f"{cell.data} is not in {data_folder()} (ADAPTIVE_REC_TEST_DATA names the folder)")
    return parsing.parsing(criteo, roof)


def contestants(kernel: kernels.Kernel) -> dict[str, Any]:
    """Return the roof, whose time is known, the work in the cache, ours and the rival."""
    made: dict[str, Any] = {"roof": AtTheRoof(kernel)}
    if kernel.in_cache:
        made["in cache"] = Work(kernel.in_cache)
    made["ours"] = Work(kernel.ours)
    if kernel.rival:
        made[kernel.rival_name] = Prepared(kernel)
    return made


class AtTheRoof(Work):
    """What must move, at the rate that the machine's memory was measured at."""

    def __init__(self, kernel: kernels.Kernel) -> None:
        super().__init__(lambda _: None, about=kernel.moves)
        self._seconds = kernel.roof_seconds

    def turn(self, steps: int) -> Turn:
        return Turn(steps * self._seconds)


class Prepared(Work):
    """A rival's call with another before it that is not timed; turns are of one step."""

    def __init__(self, kernel: kernels.Kernel) -> None:
        assert kernel.rival is not None
        super().__init__(kernel.rival)
        self._before = kernel.prepare

    def turn(self, steps: int) -> Turn:
        self._before(self.steps)
        return super().turn(steps)


def roof_lines(roof: Roof) -> Iterator[str]:
    yield table_head(["threads", "read, GB/s", "written, GB/s"])
    for threads, speed in roof.sequential.items():
        yield f"| {threads} | {speed['read'] / 1e9:.1f} | {speed['written'] / 1e9:.1f} |"
    yield "\n" + table_head(["random row", "threads", "huge pages: read, changed, ns", "small pages: read, changed, ns"])
    small = {(one["bytes"], one["threads"]): one for one in roof.rows if not one["huge"]}
    for one in (one for one in roof.rows if one["huge"]):
        pair = (one, small[one["bytes"], one["threads"]])
        of_pages = (f"{each['read']:.1f}, {each['changed']:.1f}" for each in pair)
        yield f"| {one['bytes']} bytes | {one['threads']} | {' | '.join(of_pages)} |"
