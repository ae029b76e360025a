"""Rows on a disk beside all rows in memory, nn.EmbeddingBag and NumPy over mapped files, and RocksDB: the time of a step.

Each contestant trains in a process of its own, on the same batches, with the same dense part and row-wise Adagrad; all rows were
written once before. They take turns in an order drawn for each round (the seed is printed); the ratio of medians comes with its
95 % bootstrap interval. A turn of ours is a window, so it has its share of the moves of rows. Memory is limited, the page cache
included, to what our run needs while it warms up, slots still empty, and 96 MiB; rivals have the same limit. Between two turns
everything is brought to the disk, outside of the clock. It takes root and the memory controller of cgroup v1.

    python -m benchmarks.disk_tier
    python -m benchmarks.disk_tier --only 10-percent ablation --rounds 5
    python -m benchmarks.disk_tier --all            more rounds; cells that were measured on these sources are not repeated
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.common.command import ROOT, data_folder, facts_of_call, parser
from benchmarks.common.machine import commit, fingerprint, here, versions
from benchmarks.common.results import bar_rows, earlier, say, write
from benchmarks.common.turns import SEED
from benchmarks.disk_tier.limits import MemoryGroup
from benchmarks.disk_tier.picture import picture
from benchmarks.disk_tier.plan import CELLS, MEMORY, Cell, bars
from benchmarks.disk_tier.processes import started, take_turns
from benchmarks.disk_tier.report import summary, table
from benchmarks.disk_tier.setup import IN_MEMORY, OUT, PLAIN_MAPS, RIVALS, ROCKS, Setup

LOGS = {"criteo": ("criteo_kaggle_sample_137k.tsv.zst", "criteo"), "globo": ("globo_clicks_2988181.csv.zst", "globo")}
"""File and format of each log."""

MAP_WARM = 2
"""First steps over a mapped file, which the system's read-ahead fills memory in."""


def arguments() -> argparse.Namespace:
    parse, names = parser(__doc__, "benchmarks.disk_tier"), [cell.name for cell in CELLS]
    parse.add_argument("--only", nargs="+", choices=names, default=names, metavar="CELL", help=", ".join(names))
    parse.add_argument("--all", action="store_true", help="40 rounds; resumable")
    parse.add_argument("--data", type=Path, default=data_folder(), help="folder of click logs")
    parse.add_argument("--out", type=Path, default=OUT, help="folder of results, and of rows")
    parse.add_argument("--rounds", type=int, default=0, help="by default 12")
    parse.add_argument("--steps", type=int, default=100, help="steps of a turn of ours, and of a window")
    parse.add_argument("--rival-steps", type=int, default=1, help="steps of a turn of a rival")
    parse.add_argument("--warm", type=int, default=4000, help="steps of ours in which rows find their places")
    parse.add_argument("--rival-warm", type=int, default=30, help="first steps of a rival, under the limit")
    parse.add_argument("--batch-size", type=int, default=2048)
    parse.add_argument(
        "--rivals", nargs="*", choices=RIVALS, default=list(RIVALS), metavar="NAME", help=", ".join(RIVALS)
    )
    parse.add_argument("--rehearse", action="store_true", help="tiny shapes")
    args = parse.parse_args()
    meets_rivals = any(cell.name in args.only for cell in MEMORY)
    if meets_rivals and ROCKS in args.rivals and not find_spec("rocksdict"):
        parse.error(
            "argument --rivals: must leave out RocksDB where rocksdict is not installed; make .venv/installed-rocks installs it"
        )
    args.rounds = args.rounds or (40 if args.all else 12)
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
    """Return the contestants of a cell, rivals among them as chosen."""
    data = prepared(cell.data, args) if cell.data else ""
    shape = "tiny" if args.rehearse else cell.shape
    settings = (*cell.settings, "optimizer.embedding=rowwise_adagrad", f"knobs.reclassify_every={args.steps}")
    return [
        Setup(
            name, shape, data, args.batch_size, cell.rows_ratio, (*settings, *own),
            str(args.out / "rows" / f"{cell.name}-{place}"),
        )
        for place, (name, own) in enumerate(cell.contestants)
        if name not in RIVALS or name in args.rivals
    ]  # fmt: skip


def measure(cell: Cell, args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a cell's contestants, which take turns, or those of an earlier call that are still valid."""
    numbers = {
        name: getattr(args, name) for name in ("rounds", "steps", "rival_steps", "warm", "rival_warm", "batch_size")
    }
    expected = {"cell": asdict(cell), "rivals": args.rivals, "rehearse": args.rehearse, **numbers}
    about = {"fingerprint": fingerprint("disk_tier"), "here": here()}
    path = args.out / "cells" / f"{cell.name}.json"
    old = earlier(path, expected, about) if args.all else None
    say(f"{cell.name}: {cell.about}{' (measured before)' if old else ''}")
    if old is None:
        old = {**expected, "about": about, "result": {"runs": turns_of(setups(cell, args), args)}}
        write(path, old)
    return old


def turns_of(chosen: list[Setup], args: argparse.Namespace) -> dict[str, Any]:
    """Have contestants take turns. Returns the figures of each of them."""
    steps = {setup.name: args.rival_steps if setup.name in RIVALS else args.steps for setup in chosen}
    warm = {setup.name: args.rival_warm if setup.name in RIVALS else args.warm for setup in chosen}
    warm |= {IN_MEMORY: args.steps, **dict.fromkeys(PLAIN_MAPS, MAP_WARM)}
    with started(chosen, warm, say) as processes:
        turns = take_turns(processes, steps, args.rounds, say)
        return {
            name: {
                **summary(turns[name]), "facts": process.ask("facts"), "peak_bytes": process.peak_bytes,
                "limit_bytes": process.limit_bytes,
            }
            for name, process in processes.items()
        }  # fmt: skip


def save(found: dict[str, dict[str, Any]], args: argparse.Namespace, began: float) -> list[dict[str, Any]]:
    """Write results, tables and picture of the cells so far. Returns the bars."""
    results = {name: one["result"] for name, one in found.items()}
    held = [] if args.rehearse else list(bars(results))
    facts = {**facts_of_call("benchmarks.disk_tier", began), "commit": commit(), "versions": versions(), "seed": SEED}
    write(args.out / "results.json", {"about": facts, "cells": found, "bars": held})
    tables = [line for name, result in results.items() for line in (f"### {name}", "", *table(name, result), "")]
    (args.out / "rows.md").write_text("\n".join([*bar_rows(held), "", *tables]), encoding="utf-8")
    (args.out / "picture.svg").write_text(picture(results), encoding="utf-8")
    return held


def main() -> int:
    args, began = arguments(), time.perf_counter()
    MemoryGroup("try").remove()
    (args.out / "cells").mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no process and no group is left behind
    say(f"turns in an order drawn from seed {SEED}, batches from seed 1; load {os.getloadavg()[0]:.1f}")
    found: dict[str, dict[str, Any]] = {}
    held: list[dict[str, Any]] = []
    for cell in CELLS:
        if cell.name in args.only:
            found[cell.name] = measure(cell, args)
            say("\n".join(table(cell.name, found[cell.name]["result"])))
            held = save(found, args, began)
    say("\n".join(bar_rows(held)))
    say(f"{time.perf_counter() - began:.0f} s, results in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
