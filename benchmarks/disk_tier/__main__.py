"""Rows on a disk beside all rows in memory, nn.EmbeddingBag and NumPy over mapped files, and RocksDB: the time of a step.

Each contestant trains in a process of its own, on the same batches, with the same dense part and row-wise Adagrad; all rows were
written once before. They take turns in an order drawn for each round (the seed is printed); the ratio of medians comes with its
95 % bootstrap interval. A turn of ours is a window, so it has its share of the moves of rows. Memory is limited, the page cache
included, to what our run needs while it warms up and 32 MiB: rivals have the same limit. Between two turns everything is brought to
the disk, outside of the clock. It takes root and the memory controller of cgroup v1.

    python -m benchmarks.disk_tier
    python -m benchmarks.disk_tier --only 10-percent ablation --rounds 5
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.common.command import ROOT, data_folder, facts_of_call, parser
from benchmarks.common.machine import commit, versions
from benchmarks.common.results import bar_rows, say, write
from benchmarks.common.statistics import ratio_of_medians
from benchmarks.common.turns import SEED
from benchmarks.disk_tier.conduct import started, take_turns
from benchmarks.disk_tier.limits import MemoryGroup
from benchmarks.disk_tier.picture import picture
from benchmarks.disk_tier.plan import CELLS, Cell, bars
from benchmarks.disk_tier.setup import IN_MEMORY, RIVALS, ROCKS, Setup

LOGS = {"criteo": ("criteo_kaggle_sample_137k.tsv.zst", "criteo"), "globo": ("globo_clicks_2988181.csv.zst", "globo")}
"""File and format of each log."""


def arguments() -> argparse.Namespace:
    parse = parser(__doc__, "benchmarks.disk_tier")
    parse.add_argument("--only", nargs="+", choices=[cell.name for cell in CELLS], default=[cell.name for cell in CELLS])
    parse.add_argument("--data", type=Path, default=data_folder(), help="folder of click logs")
    parse.add_argument("--out", type=Path, default=ROOT / "studies" / "bench" / "disk_tier", help="folder of results, and of rows")
    parse.add_argument("--rounds", type=int, default=15)
    parse.add_argument("--steps", type=int, default=100, help="steps of a turn of ours, and of a window")
    parse.add_argument("--rival-steps", type=int, default=2, help="steps of a turn of a rival")
    parse.add_argument("--warm", type=int, default=4000, help="steps of ours before the first turn; hot rows are chosen in them")
    parse.add_argument("--rival-warm", type=int, default=30, help="steps of a rival before the first turn, under the limit")
    parse.add_argument("--batch-size", type=int, default=2048)
    parse.add_argument("--rivals", nargs="*", choices=RIVALS, default=list(RIVALS), metavar="NAME")
    parse.add_argument("--rehearse", action="store_true", help="tiny shapes")
    args = parse.parse_args()
    if ROCKS in args.rivals and not find_spec("rocksdict"):
        parse.error("argument --rivals: must leave out RocksDB where rocksdict is not installed; make .venv/installed-bench installs it")
    if args.rehearse:
        args.rounds, args.steps, args.warm, args.rival_warm, args.batch_size = 2, 4, 8, 2, 64
    return args


def prepared(name: str, args: argparse.Namespace) -> str:
    """Return the folder of a log's arrays, which are made where they are not there."""
    folder = args.out / "data" / name
    if not folder.exists():
        file, form = LOGS[name]
        words = ["data", "prepare", str(args.data / file), "--format", form, "--out", str(folder)]
        code = "import sys; from adaptive_rec.cli import main; sys.exit(main(sys.argv[1:]))"
        subprocess.run([sys.executable, "-c", code, *words], check=True, cwd=ROOT)
    return str(folder)


def setups(cell: Cell, args: argparse.Namespace) -> list[Setup]:
    window = f"knobs.reclassify_every={args.steps}"
    data = prepared(cell.data, args) if cell.data else ""
    shape = "tiny" if args.rehearse and not data else cell.shape
    common = (*cell.settings, *(["optimizer.embedding=rowwise_adagrad"] if shape == "tiny" else []), window)
    return [
        Setup(name, shape, data, args.batch_size, cell.rows_ratio, (*common, *own), str(args.out / "rows" / f"{cell.name}-{place}"))
        for place, (name, own) in enumerate(cell.contestants)
        if name not in RIVALS or name in args.rivals
    ]  # fmt: skip


def measure(cell: Cell, args: argparse.Namespace) -> dict[str, Any]:
    """Have a cell's contestants take turns. Returns the figures of each of them."""
    say(f"{cell.name}: {cell.about}")
    chosen = setups(cell, args)
    steps = {setup.name: args.rival_steps if setup.name in RIVALS else args.steps for setup in chosen}
    warm = {setup.name: args.rival_warm if setup.name in RIVALS else args.warm for setup in chosen}
    warm[IN_MEMORY] = args.steps
    with started(chosen, warm, say) as processes:
        turns = take_turns(processes, steps, args.rounds, say)
        runs = {}
        for name, process in processes.items():
            facts = process.ask("facts")
            runs[name] = {**summary(turns[name]), "facts": facts, "peak_bytes": process.peak_bytes, "limit_bytes": process.limit_bytes}
    return {"cell": asdict(cell), "rounds": args.rounds, "steps": steps, "warm": warm, "runs": runs}


def summary(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of a contestant's turns, of one step each."""
    seconds = [turn["seconds"] for turn in turns]
    gained = {name: statistics.median(turn["gained"][name] for turn in turns) for name in turns[0]["gained"]}
    found = {"seconds": seconds, "median": statistics.median(seconds), "gained": gained}
    found["processor_seconds"] = statistics.median(turn["processor_seconds"] for turn in turns)
    found["wait_ratio"] = statistics.median(turn["gained"].get("disk seconds", 0) / turn["seconds"] for turn in turns)
    return found


def shown(result: dict[str, Any]) -> list[str]:
    """Return the rows of a cell's table."""
    runs, lines = result["runs"], ["| run | ms a step | of all in memory (95 %) | CPU ms | waits for the disk | rows read | rows written | limit, MiB |", "|---" * 8 + "|"]
    for name, run in runs.items():
        ratio = ratio_of_medians(run["seconds"], runs[IN_MEMORY]["seconds"])
        gained = run["gained"]
        cells = [name, f"{1e3 * run['median']:.1f}", f"{ratio['ratio']:.3f} ({ratio['low']:.3f}-{ratio['high']:.3f})", f"{1e3 * run['processor_seconds']:.0f}"]
        cells.append(f"{run['wait_ratio']:.1%}" if "rows_read" in gained else "")
        cells += [f"{gained[what]:.0f}" if what in gained else "" for what in ("rows_read", "rows_written")]
        cells.append(f"{run['limit_bytes'] / 2**20:.0f}" if run["limit_bytes"] else "none")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def save(found: dict[str, dict[str, Any]], args: argparse.Namespace, began: float) -> list[dict[str, Any]]:
    """Write results, tables and picture of the cells measured so far. Returns the bars."""
    held = [] if args.rehearse else list(bars(found))
    facts = {**facts_of_call("benchmarks.disk_tier", began), "commit": commit(), "versions": versions(), "seed": SEED}
    write(args.out / "results.json", {"about": facts, "cells": found, "bars": held})
    tables = [line for name, result in found.items() for line in (f"### {name}", "", *shown(result), "")]
    (args.out / "rows.md").write_text("\n".join([*bar_rows(held), "", *tables]), encoding="utf-8")
    (args.out / "picture.svg").write_text(picture(found), encoding="utf-8")
    return held


def main() -> int:
    args, began = arguments(), time.perf_counter()
    MemoryGroup("try").remove()
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no process and no group is left behind
    say(f"order of turns drawn from seed {SEED}; load {os.getloadavg()[0]:.1f}")
    found, held = {}, []
    for cell in CELLS:
        if cell.name in args.only:
            found[cell.name] = measure(cell, args)
            say("\n".join(shown(found[cell.name])))
            held = save(found, args, began)
    for one in held:
        say(f"{'pass' if one['met'] else 'FAIL'}    {one['what']}: {one['figure']:.4g}, bar {'≥' if one['at_least'] else '≤'} {one['bound']:g}")
    say(f"{time.perf_counter() - began:.0f} s, results in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
