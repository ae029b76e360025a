"""How a cell is run: its contestants, each in a process of its own and in its memory group, take turns."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.common.cell import Absent, Cell
from benchmarks.common.command import ROOT
from benchmarks.common.process import Process
from benchmarks.common.turns import Turn, take_turns
from benchmarks.disk_tier.limits import MemoryGroup
from benchmarks.disk_tier.plan import BEFORE, IN_MEMORY, PLAIN_MAPS, RIVALS, ROCKS, SETTINGS, Setup

SPARE_BYTES = 160 << 20
"""Room above what a run of ours needs, for files that are being read or written."""

MAP_WARM = 2
"""First steps over a mapped file, which the system's read-ahead fills memory in."""

WORKER = Path(__file__).with_name("worker.py")

SHOWN = {"rows_read": "rows read", "rows_found": "found in memory", "rows_written": "rows written"}
"""Counters of the log of rows that a table shows, of a step each."""

Note = Callable[[str], None]


def run_cell(cell: Cell, args: argparse.Namespace, note: Note) -> dict[str, Any]:
    """Have contestants take turns. A turn of ours is a window, so it has its share of the moves of rows."""
    MemoryGroup("try").remove()
    steps, warm = args.steps, args.warm
    if args.rehearse:
        steps, warm, args.rival_warm, args.batch_size = 4, 8, 2, 64
    absent = {ROCKS: "rocksdict is not installed (make .venv/installed-rocks installs it)"}
    absent = absent if ROCKS in cell.contestants and not find_spec("rocksdict") else {}
    chosen = [setup for setup in setups(cell, args, steps) if setup.name not in absent]
    turns = {setup.name: args.rival_steps if setup.name in RIVALS else steps for setup in chosen}
    warms = {setup.name: args.rival_warm if setup.name in RIVALS else warm for setup in chosen}
    warms |= {IN_MEMORY: steps, **dict.fromkeys(PLAIN_MAPS, MAP_WARM)}
    with started(chosen, warms, args, note) as contestants:
        runs = take_turns(contestants, args.rounds, turns, note)
    return {"runs": runs, "absent": absent, "checks": [], "rounds": args.rounds, "steps": steps}


def setups(cell: Cell, args: argparse.Namespace, window: int) -> list[Setup]:
    data = prepared(cell.data, args) if cell.data else ""
    settings = (*cell.settings, "optimizer.embedding=rowwise_adagrad", f"knobs.reclassify_every={window}")
    names = cell.contestants if args.before is None else (BEFORE, *cell.contestants)
    return [
        Setup(
            name, cell.shape, data, args.batch_size, cell.rows_ratio, (*settings, *SETTINGS.get(name, ())),
            str(args.out / "rows" / f"{cell.name}-{place}"),
        )
        for place, name in enumerate(names)
    ]  # fmt: skip


def prepared(file: str, args: argparse.Namespace) -> str:
    """Return the folder of a log's arrays, which are made where they are not there."""
    form = file.partition("_")[0]
    folder: Path = args.out / "data" / form
    if not (args.data / file).is_file():
        raise Absent(f"{file} is not in {args.data} (--data names the folder)")
    if not folder.exists():
        words = ["data", "prepare", str(args.data / file), "--format", form, "--out", str(folder)]
        subprocess.run([sys.executable, "-m", "adaptive_rec", *words], check=True, cwd=ROOT)
    return str(folder)


class Contestant(Process):
    """A contestant in its process and its memory group."""

    def __init__(self, setup: Setup, folder: Path, by_processor: bool) -> None:
        """`folder`: the checkout that it imports from. `by_processor`: whether the processor time of all threads counts."""
        self.setup, self.steps, self._by_processor = setup, 0, by_processor
        self.peak_bytes = self.limit_bytes = 0
        """The most memory that it needed at one time, without its page cache; the limit, page cache included, 0: none."""
        self._figures: list[dict[str, float]] = []
        shutil.rmtree(setup.folder, ignore_errors=True)
        self.group = MemoryGroup(str(abs(hash(setup))))
        super().__init__(["-P", str(WORKER), json.dumps(asdict(setup))], folder, self.group.enter)

    def look(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.group.needed_bytes)

    def limit(self, size_bytes: int) -> None:
        """Limit its memory, and drop what it has read and written from the page cache."""
        self.ask("settle")
        self.limit_bytes = size_bytes
        self.group.limit(size_bytes)
        self.group.free_cache()

    def turn(self, steps: int) -> Turn:
        """Make some steps. What they have changed is on the disk then, outside of their clock."""
        found: dict[str, Any] = self.ask(f"turn {steps}")
        self.ask("settle")
        self.steps += steps
        self._figures.append({"seconds": found["seconds"], "processor ms": 1e3 * found["processor_seconds"], **found["gained"]})
        return Turn(steps * found["processor_seconds" if self._by_processor else "seconds"], {}, found["gained"])

    def warm(self, steps: int) -> None:
        self.ask(f"warm {steps}")
        self.ask("settle")
        self.steps += steps

    def facts(self) -> dict[str, Any]:
        """Medians over turns, of a step."""
        of = {name: statistics.median(turn[name] for turn in self._figures) for name in self._figures[0]}
        told: dict[str, Any] = {"processor ms": of["processor ms"]}
        if "rows_read" in of:
            waits = [turn.get("disk seconds", 0.0) / turn["seconds"] for turn in self._figures]
            told["part of the step that waits for the disk"] = statistics.median(waits)
            told |= {name: of[count] for count, name in SHOWN.items()}
        told |= {"MiB needed": self.peak_bytes >> 20, "MiB at most": self.limit_bytes >> 20}
        return {**told, **self.ask("facts")}

    def close(self) -> None:
        super().close()
        self.group.remove()
        shutil.rmtree(self.setup.folder, ignore_errors=True)


@contextmanager
def started(
    setups: list[Setup], warm: dict[str, int], args: argparse.Namespace, note: Note
) -> Iterator[dict[str, Contestant]]:  # fmt: skip
    """Start contestants one after the other: build, limit, warm up. The limit of a run of ours is what it needs while it warms
    up, with the slots that are still empty; rivals have that of the first one."""
    made: dict[str, Contestant] = {}
    limit = 0
    try:
        for setup in setups:
            folder = args.before.resolve() if setup.name == BEFORE else ROOT
            one = made[setup.name] = Contestant(setup, folder, args.cpu_time)
            one.answer()
            if setup.name in RIVALS:
                one.limit(limit)
            one.warm(warm[setup.name])
            if setup.name not in (IN_MEMORY, *RIVALS):
                one.limit(one.peak_bytes + one.ask("facts")["empty_bytes"] + SPARE_BYTES)
                limit = limit or one.limit_bytes
            memory = f"{one.peak_bytes / 2**20:.0f} MiB needed, limit {one.limit_bytes / 2**20:.0f}"
            note(f"{setup.name}: warm after {warm[setup.name]} steps; {memory}")
        yield made
    finally:
        for one in made.values():
            one.close()
