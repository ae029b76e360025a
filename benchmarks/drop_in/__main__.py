"""Steps a second of a training loop of one's own with the modules in it, beside `adaptive-rec train` and beside others' tables.

    python -m benchmarks.drop_in                 about ten minutes, 12 GB
    python -m benchmarks.drop_in --all           also with OpenMP's threads waiting as they do by default
    python -m benchmarks.drop_in --rehearse      tiny shapes: whether it all runs, no figure of anything

All train one model on the same batches from the same rows, in turns, in an order drawn for each round; each cell (an update rule,
or multi-hot bags) has a process of its own. Leaves results.json and rows.md in --out. Results that disagree fail a cell, missed
bars do not.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import machine
from benchmarks.common.apart import run_apart
from benchmarks.common.results import bar, say, write
from benchmarks.common.statistics import ratio_of_medians
from benchmarks.cpu import report

TRAIN = "adaptive-rec train"
DROP_IN = ("wrapped, prefetch", "collection, prefetch")
BAR = 0.95


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.drop_in", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="also cells with OpenMP as it is by default")
    parser.add_argument("--only", nargs="+", metavar="CELL", help="only these cells")
    parser.add_argument("--rounds", type=int, help="rounds of turns, by default 30")
    parser.add_argument("--out", type=Path, default=machine.ROOT / "studies" / "bench" / "drop-in")
    parser.add_argument("--rehearse", action="store_true", help="tiny shapes, 3 rounds")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    args.rounds = args.rounds or (3 if args.rehearse else 30)
    return args


def main() -> int:
    args = arguments()
    if args.cell:
        return measure(args)
    from benchmarks.drop_in import cells

    chosen = [
        one for one in (cells.ALL if args.all or args.only else cells.QUICK) if one.name in (args.only or [one.name])
    ]
    began, found = time.perf_counter(), {}
    args.out.mkdir(parents=True, exist_ok=True)
    words = ["--out", str(args.out), "--rounds", str(args.rounds), *(["--rehearse"] if args.rehearse else [])]
    for cell in chosen:
        found[cell.name] = run_apart("benchmarks.drop_in", cell, words, args.out / f"{cell.name}.json")
        say(report.line(cell.name, found[cell.name]))
    about: dict[str, Any] = next((cell["about"] for cell in found.values() if "about" in cell), {})
    about |= {"command": " ".join(["python -m benchmarks.drop_in", *sys.argv[1:]]), "date": time.strftime("%Y-%m-%d")}
    about["seconds"] = time.perf_counter() - began
    results = {"about": about, "cells": found, "bars": [] if args.rehearse else bars(found)}
    write(args.out / "results.json", results)
    (args.out / "rows.md").write_text(report.rows(results), encoding="utf-8")
    for one in results["bars"]:
        say(report.bar_line(one))
    wrong = report.failures(found)
    say(f"{about['seconds']:.0f} s, results in {args.out}" + (f"; FAILED: {', '.join(wrong)}" if wrong else ""))
    return 1 if wrong else 0


def bars(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Throughput of each drop-in as a share of train's, and as a multiple of each rival's."""
    told = []
    for name in found:
        runs = report.runs_of(found, name)
        for mine in (one for one in DROP_IN if one in runs):
            for other, run in runs.items():
                if other != TRAIN and (other in DROP_IN or other == "wrapped"):
                    continue
                ratio = ratio_of_medians(run["seconds"], runs[mine]["seconds"])
                bound = BAR if other == TRAIN else 1.0
                told.append(
                    bar(
                        f"steps a second of {mine} / {other}, {name}",
                        ratio["ratio"],
                        bound,
                        True,
                        [ratio["low"], ratio["high"]],
                    )
                )
    return told


def measure(args: argparse.Namespace) -> int:
    """One cell's result, or why there is none, into its file."""
    from benchmarks.common.explain import explain
    from benchmarks.drop_in import cells

    cell = next(one for one in cells.ALL if one.name == args.cell)
    cell = cells.rehearsed(cell) if args.rehearse else cell
    about = machine.describe("tiny" if args.rehearse else "", "drop_in")
    found: dict[str, Any] = {"cell": asdict(cell), "rounds": args.rounds, "about": about}
    began = time.perf_counter()
    try:
        found["result"] = cells.run_cell(
            cell,
            args.rounds,
            args.rehearse,
            lambda text: say(f"  {time.perf_counter() - began:5.1f} s  {cell.name}: {text}"),
        )
    except Exception as error:
        found["error"] = explain(error)
        say(f"  {cell.name}: {found['error']}")
    found |= {
        "took": time.perf_counter() - began,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    write(args.out / f"{cell.name}.json", found)
    sys.stdout.flush()
    os._exit(1 if "error" in found else 0)  # without waiting for whatever thread is still at work


if __name__ == "__main__":
    sys.exit(main())
