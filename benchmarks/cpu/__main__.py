"""What a training step costs on the CPU, beside its dense part alone and its rivals, on the same batches in the same process.

    python -m benchmarks.cpu                     under 10 minutes; make bench
    python -m benchmarks.cpu --all               more cells and rounds; taken up again where it ended: make bench-all
    python -m benchmarks.cpu --only CELL ...     some cells; --list names them
    python -m benchmarks.cpu --rehearse          tiny shapes: whether it all runs, no figure of anything

Leaves results.json, rows.md and two pictures in --out. Each cell has a process of its own; contestants take turns in it, in an
order drawn for each round. Results that disagree fail a cell, bars that are missed do not.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import machine
from benchmarks.common.apart import run_apart
from benchmarks.common.results import say, write
from benchmarks.cpu import picture, plan, report


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="every cell, twice the rounds, taken up again cell by cell")
    parser.add_argument("--only", nargs="+", metavar="CELL", help="only these cells")
    parser.add_argument("--list", action="store_true", help="name the cells")
    parser.add_argument("--out", type=Path, help="folder of results, by default below studies/bench")
    parser.add_argument("--rounds", type=int, help=f"rounds of turns, by default {plan.ROUNDS}")
    parser.add_argument("--rehearse", action="store_true", help="tiny shapes, 3 rounds")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    args.rounds = args.rounds or (3 if args.rehearse else plan.ALL_ROUNDS if args.all else plan.ROUNDS)
    kind = "rehearsal" if args.rehearse else "all" if args.all else "some" if args.only else "quick"
    args.out = args.out or machine.ROOT / "studies" / "bench" / kind
    return args


def main() -> int:
    args = arguments()
    cells = plan.chosen(args)
    if args.list:
        width = max(len(cell.name) for cell in cells)
        print("\n".join(f"{cell.name:{width}}  {cell.about}" for cell in cells))
        return 0
    if args.cell:
        found = measure(cells[0], args, args.out / "cells" / f"{args.cell}.json")
        sys.stdout.flush()
        os._exit(1 if "error" in found else 0)  # without waiting for whatever thread is still at work
    began, found = time.perf_counter(), {}
    (args.out / "cells").mkdir(parents=True, exist_ok=True)
    for cell in cells:
        path = args.out / "cells" / f"{cell.name}.json"
        old = resumable(path, cell, args) if args.all else None
        found[cell.name] = old or (measure if args.rehearse else run_cell_apart)(cell, args, path)
        say(report.line(cell.name, found[cell.name]) + (" (measured before)" if old else ""))
        finish(args, found, began)
    return tell(args, found, began)


# One cell ------------------------------------------------------------------------------------------------------------


def measure(cell: plan.Cell, args: argparse.Namespace, path: Path) -> dict[str, Any]:
    """A cell's result, or why there is none, with the machine it was measured on; written to `path` too."""
    from benchmarks.common.explain import explain
    from benchmarks.cpu.cells import Absent, run_cell

    found: dict[str, Any] = {
        "cell": asdict(cell),
        "rounds": args.rounds,
        "about": machine.describe(rehearsal(args), "cpu"),
    }
    began = time.perf_counter()

    def note(text: str) -> None:
        say(f"  {time.perf_counter() - began:5.1f} s  {cell.name}: {text}")

    try:
        found["result"] = run_cell(cell, args.rounds, args.rehearse, note)
    except Absent as reason:
        found["absent"] = str(reason)
    except Exception as error:
        found["error"] = explain(error)
        say(f"  {cell.name}: {found['error']}")
    found |= {
        "took": time.perf_counter() - began,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    write(path, found)
    return found


def rehearsal(args: argparse.Namespace) -> str:
    return "tiny" if args.rehearse else ""


def run_cell_apart(cell: plan.Cell, args: argparse.Namespace, path: Path) -> dict[str, Any]:
    """In a process of its own; a rehearsal does without: starting them would take most of its time."""
    return run_apart("benchmarks.cpu", cell, ["--out", str(args.out), "--rounds", str(args.rounds)], path)


def resumable(path: Path, cell: plan.Cell, args: argparse.Namespace) -> dict[str, Any] | None:
    """What was measured of this very cell, with these sources and versions, on this machine."""
    try:
        old: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    about = {"fingerprint": machine.fingerprint("cpu"), "here": machine.here(), "rehearsal": rehearsal(args)}
    same = old.get("cell") == json.loads(json.dumps(asdict(cell))) and old.get("rounds") == args.rounds
    same = same and all(old.get("about", {}).get(key) == value for key, value in about.items())
    return old if same and "result" in old else None


# All of them ---------------------------------------------------------------------------------------------------------


def finish(args: argparse.Namespace, found: dict[str, Any], began: float) -> dict[str, Any]:
    """results.json, rows.md and the pictures of what is known."""
    about: dict[str, Any] = next((cell["about"] for cell in found.values() if "about" in cell), {})
    about = {
        **about,
        "command": " ".join(["python -m benchmarks.cpu", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "seconds": time.perf_counter() - began,
    }
    results = {"about": about, "cells": found, "bars": [] if args.rehearse else report.bars(found)}
    write(args.out / "results.json", results)
    (args.out / "rows.md").write_text(report.rows(results), encoding="utf-8")
    picture.draw_all(results, args.out)
    return results


def tell(args: argparse.Namespace, found: dict[str, Any], began: float) -> int:
    """Say how the bars stand. 1 where a cell fell or results disagree."""
    results = finish(args, found, began)
    for bar in results["bars"]:
        say(report.bar_line(bar))
    for name, cell in found.items():
        for who, why in report.absences(cell).items():
            say(f"absent  {name}: {who or 'the whole cell'}: {why}")
    wrong = report.failures(found)
    say(
        f"{time.perf_counter() - began:.0f} s, results in {args.out}"
        + (f"; FAILED: {', '.join(wrong)}" if wrong else "")
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
