"""What training costs on a GPU, beside its rivals and the machine's own limits.

Needs torch with CUDA, Triton, Numba, NumPy and pydantic, nothing else.

    python -m benchmarks.gpu                     under 8 minutes; make bench-gpu
    python -m benchmarks.gpu --all               everything, cell by cell; taken up again where it ended: make bench-gpu-all
    python -m benchmarks.gpu --data train.tsv    with batches of a Criteo file instead of synthetic ones
    python -m benchmarks.gpu --rehearse          tiny shapes without a GPU: whether it all runs, no figure of anything
    python -m benchmarks.gpu --rows RESULTS      rows for docs/benchmarks.md of a results.json

Leaves results.json, rows.md, profiler traces and their pictures in --out. Correctness comes first: without it there are no rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu import machine, plan, report, stand_ins

GRACE_SECONDS = 40.0
"""By which a cell may outrun its time before it is killed: its first round is never cut short."""
CLOSE_SECONDS = 2.0
"""What a cell keeps of its time for writing down what it found."""
NOT_SET_UP = 2
"""Exit status where the machine or the installation lacks something."""


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="every shape, batch size, budget, rule and way of loading")
    parser.add_argument("--data", help="a Criteo TSV file; without one batches are synthetic")
    parser.add_argument("--out", type=Path, help="folder of results, by default below studies/gpu")
    parser.add_argument("--seconds", type=float, help="time for all cells together")
    parser.add_argument("--only", nargs="+", metavar="CELL", help="only these cells, and correctness")
    parser.add_argument("--list", action="store_true", help="name the cells")
    parser.add_argument("--rehearse", nargs="?", const="fake", default="", choices=["fake", "cpu"],
                        help="without a GPU: the device path over host memory (fake), or the path of CPU runs")  # fmt: skip
    parser.add_argument("--rows", type=Path, metavar="RESULTS", help="print the rows of a results.json")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--serve-rival", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--reply-to", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main() -> int:
    args = arguments()
    if args.rows:
        return print_rows(args.rows)
    if args.list:
        print(
            "\n".join(f"{cell.name:32} {cell.seconds:4.0f} s  {' '.join(cell.contestants)}" for cell in cells_of(args))
        )
        return 0
    lacking = what_is_lacking(args.rehearse)
    if lacking:
        print(f"bench-gpu: {lacking}", file=sys.stderr)
        return NOT_SET_UP
    if args.serve_rival:
        return serve_rival(args)
    return run_one(args) if args.cell else run_all(args)


def what_is_lacking(rehearsal: str) -> str:
    """One line, empty where nothing is."""
    missing = stand_ins.missing(on_gpu=not rehearsal)
    if missing:
        return f"needs {', '.join(missing)}, not installed for {sys.executable}"
    import torch

    if not rehearsal and not torch.cuda.is_available():
        return f"needs a CUDA device that torch {torch.__version__} can use, found none (--rehearse does without one)"
    return ""


def cells_of(args: argparse.Namespace) -> tuple[plan.Cell, ...]:
    cells = plan.all_cells() if args.all else plan.QUICK
    if args.only:
        unknown = set(args.only) - {cell.name for cell in cells}
        if unknown:
            raise SystemExit(f"bench-gpu: no cell named {', '.join(sorted(unknown))}; --list names them")
        cells = tuple(cell for cell in cells if cell.name in args.only or cell.kind == "correctness")
    return plan.rehearsed(cells) if args.rehearse else cells


# The whole -----------------------------------------------------------------------------------------------------------


def run_all(args: argparse.Namespace) -> int:
    """Every cell in a process of its own, in order of importance, until the time is up."""
    began, cells = time.perf_counter(), cells_of(args)
    out = args.out or machine.ROOT / "studies/gpu" / ("rehearsal" if args.rehearse else "all" if args.all else "quick")
    (out / "cells").mkdir(parents=True, exist_ok=True)
    total = args.seconds or (plan.QUICK_SECONDS if not args.all else float("inf"))
    found: dict[str, Any] = {}
    skipped: list[str] = []
    for number, cell in enumerate(cells):
        path = out / "cells" / f"{cell.name}.json"
        if args.all and (old := resumable(path, cell, args)) is not None:
            say(f"{cell.name}: measured before")
            found[cell.name] = old
            continue
        left = total - (time.perf_counter() - began) - CLOSE_SECONDS
        seconds = cell.seconds if args.all else plan.share(cell, cells[number + 1 :], left)
        if seconds <= 0 or (args.all and left < seconds):
            skipped.append(cell.name)
            say(f"{cell.name}: left out, {left:.0f} s are too few")
            continue
        if args.rehearse:
            found[cell.name] = run_here(cell, args, out, path, seconds)
        else:
            found[cell.name] = run_apart(cell, args, out, path, seconds, left)
        if args.all:
            finish(args, out, found, [later.name for later in cells[number + 1 :]], began)
    return finish(args, out, found, skipped, began)


def resumable(path: Path, cell: plan.Cell, args: argparse.Namespace) -> dict[str, Any] | None:
    """What was measured of this very cell, on these sources and in this way."""
    try:
        old: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = old.get("cell") == json.loads(json.dumps(asdict(cell))) and old.get("data") == args.data and "result" in old
    about = old.get("about", {})
    return (
        old
        if same and about.get("fingerprint") == machine.fingerprint() and about["rehearsal"] == args.rehearse
        else None
    )


def run_apart(
    cell: plan.Cell, args: argparse.Namespace, out: Path, path: Path, seconds: float, left: float
) -> dict[str, Any]:
    """One cell in a process of its own; its result, or why there is none. `left` is the time of all cells still to come."""
    grace = max(5.0, min(GRACE_SECONDS, left - seconds + 8))
    path.unlink(missing_ok=True)
    began = time.perf_counter()
    deadline = began + seconds - CLOSE_SECONDS
    command = [
        sys.executable, "-m", "benchmarks.gpu", *words_of(cell, args), "--deadline", repr(deadline), "--out", str(out),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}  # as the command line has it
    child = subprocess.Popen(command, cwd=machine.ROOT, env=environment)
    try:
        status = str(child.wait(seconds + (120 if args.all else grace)))
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        status = "killed, it outran its time"
    except BaseException:
        child.kill()
        child.wait()
        raise
    say(f"{cell.name}: {time.perf_counter() - began:.1f} s of {seconds:.1f}")
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError):
        return {"cell": asdict(cell), "error": f"its process left no result, exit status {status}"}


def words_of(cell: plan.Cell, args: argparse.Namespace) -> list[str]:
    """The arguments that make another process see the same cell."""
    words = ["--cell", cell.name, *(["--all"] if args.all else [])]
    words += ["--rehearse", args.rehearse] if args.rehearse else []
    return [*words, *(["--data", args.data] if args.data else [])]


def finish(args: argparse.Namespace, out: Path, found: dict[str, Any], skipped: list[str], began: float) -> int:
    """Write results and rows, say how the bars stand. 1 where a cell failed or correctness did."""
    about = next((cell["about"] for cell in found.values() if "about" in cell), {"rehearsal": args.rehearse})
    about = {
        **about,
        "rehearsal": args.rehearse,
        "command": " ".join(["python -m benchmarks.gpu", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "seconds": time.perf_counter() - began,
    }
    results: dict[str, Any] = {
        "about": about,
        "cells": found,
        "skipped": skipped,
        "bars": [] if args.rehearse else report.bars(found),
    }
    write(out / "results.json", results)
    rows = out / "rows.md"
    rows.unlink(missing_ok=True)
    try:
        rows.write_text(report.rows(results), encoding="utf-8")
    except report.NoFigure as reason:
        say(str(reason))
    for bar in results["bars"]:
        say(f"{'met    ' if bar['met'] else 'NOT MET'} {bar['what']}: {bar['figure']:.4g} (bound {bar['bound']:g})")
    wrong = [name for name, cell in found.items() if "error" in cell]
    wrong += [f"{name}: {run}" for name, cell in found.items() for run in cell.get("result", {}).get("failed", {})]
    if found.get("correctness", {}).get("result", {}).get("passed") is False:
        wrong.append("correctness")
    say(f"results in {out}" + (f"; failed: {', '.join(wrong)}" if wrong else ""))
    return 1 if wrong else 0


def say(line: str) -> None:
    print(line, flush=True)


def print_rows(path: Path) -> int:
    try:
        print(report.rows(json.loads(path.read_text(encoding="utf-8"))))
    except report.NoFigure as reason:
        print(f"bench-gpu: {reason}", file=sys.stderr)
        return NOT_SET_UP
    return 0


# One cell, in its own process ----------------------------------------------------------------------------------------


def run_one(args: argparse.Namespace) -> int:
    cell = next(cell for cell in cells_of(args) if cell.name == args.cell)
    found = measure(cell, args, args.out, args.deadline)
    write(args.out / "cells" / f"{cell.name}.json", found)
    sys.stdout.flush()
    os._exit(0 if "result" in found else 1)  # without waiting for whatever thread is still at work


def serve_rival(args: argparse.Namespace) -> int:
    """One contestant of a cell, for the process that measures the cell (see `apart.py`)."""
    stand_ins.install()
    import torch

    from benchmarks.gpu.apart import serve
    from benchmarks.gpu.cells import Context, make_rival
    from benchmarks.gpu.contestants import Where

    cell = next(cell for cell in cells_of(args) if cell.name == args.cell)
    where = Where(torch.device("cpu" if args.rehearse else "cuda:0"), args.rehearse)
    contestant: Any
    try:
        contestant = make_rival(args.serve_rival, cell, Context(where, 0.0, args.data, "", say))
    except Exception as error:
        contestant = error
    serve(contestant, args.reply_to)
    os._exit(0)


def run_here(cell: plan.Cell, args: argparse.Namespace, out: Path, path: Path, seconds: float) -> dict[str, Any]:
    """A rehearsal does without a process for each cell: starting them would take most of its time."""
    began = time.perf_counter()
    found = measure(cell, args, out, began + seconds)
    write(path, found)
    say(f"{cell.name}: rehearsed in {time.perf_counter() - began:.1f} s")
    return found


def measure(cell: plan.Cell, args: argparse.Namespace, out: Path, deadline: float) -> dict[str, Any]:
    """A cell's result, or the error that ended it, with the machine it was measured on."""
    if args.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    stand_ins.install()
    import torch

    from benchmarks.gpu.cells import Context, run_cell
    from benchmarks.gpu.contestants import Where
    from benchmarks.gpu.explain import explain

    where = Where(torch.device("cpu" if args.rehearse else "cuda:0"), args.rehearse)
    apart = [] if args.rehearse else words_of(cell, args)
    context = Context(where, deadline, args.data, str(out), lambda line: say(f"  {cell.name}: {line}"), apart)
    found = {"cell": asdict(cell), "data": args.data, "about": machine.describe(args.rehearse)}
    try:
        found["result"] = run_cell(cell, context)
    except Exception as error:
        found["error"] = explain(error)
        say(f"  {cell.name}: {found['error']}")
    return found


def write(path: Path, values: dict[str, Any]) -> None:
    """JSON, whole or not at all; null for what is no number."""
    from adaptive_rec.telemetry import to_json

    draft = path.with_suffix(".tmp")
    draft.write_text(to_json(values, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main())
