"""All cells, each in a process of its own, in order of importance, until the time is up; then results, rows and bars."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adaptive_rec.system.openmp import wait_briefly
from benchmarks.common import machine
from benchmarks.common.command import facts_of_call
from benchmarks.common.results import earlier, say, write
from benchmarks.gpu import plan, report
from benchmarks.gpu.one_cell import CLOSE_SECONDS, measure

LOOK_SECONDS = 1.0
"""Between two looks at what a cell has written."""

GRACE_SECONDS = 8.0
"""By which a cell may outrun its time before it is killed: it ends itself in its time, unless a call does not return."""


def run_all(args: argparse.Namespace) -> int:
    """Every cell in a process of its own, in order of importance, until the time is up.

    `results.json` is written again whenever something is known: who stops this at any moment has what was measured until then.
    """
    began, cells = time.perf_counter(), plan.chosen(args)
    out = args.out or machine.ROOT / "studies/gpu" / ("rehearsal" if args.rehearse else "all" if args.all else "first")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        kept = out / "cells" if args.all else Path(scratch)  # only what is taken up again needs a file for each cell
        kept.mkdir(exist_ok=True)
        total = plan.seconds_of(cells, args)
        found: dict[str, Any] = {}
        skipped: list[str] = []
        for number, cell in enumerate(cells):
            path = kept / f"{cell.name}.json"
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
            later = [other.name for other in cells[number + 1 :]]

            def save(partial: dict[str, Any], name: str = cell.name, later: list[str] = later) -> None:
                found[name] = partial
                write_results(args, out, found, skipped + later, began)

            if args.rehearse:
                save(run_here(cell, args, path, seconds))
            else:
                save(run_apart(cell, args, out, path, seconds, left, save))
    results = write_results(args, out, found, skipped, began)
    return tell(results, out)


def resumable(path: Path, cell: plan.Cell, args: argparse.Namespace) -> dict[str, Any] | None:
    """What was measured of this very cell, to its end: in this way, with these sources and versions, on this machine."""
    about = {"fingerprint": machine.fingerprint("gpu"), "here": machine.here(), "rehearsal": args.rehearse}
    return earlier(path, {"cell": asdict(cell), "data": args.data}, about)


def run_apart(
    cell: plan.Cell,
    args: argparse.Namespace,
    out: Path,
    path: Path,
    seconds: float,
    left: float,
    save: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """One cell in a process of its own; its result, or why there is none. `left` is the time of all cells still to come,
    `save` is given what the cell has left so far."""
    grace = max(5.0, min(GRACE_SECONDS, left - seconds + 8))
    path.unlink(missing_ok=True)
    began = time.perf_counter()
    deadline = began + seconds - CLOSE_SECONDS
    command = [
        sys.executable, "-m", "benchmarks.gpu", *plan.words_of(cell, args), "--deadline", repr(deadline), "--out", str(out),
        "--result", str(path),
    ]  # fmt: skip
    environment = dict(os.environ)
    wait_briefly(environment)  # as the command line does
    if cell.blocking:
        environment["CUDA_LAUNCH_BLOCKING"] = "1"
    child = subprocess.Popen(command, cwd=machine.ROOT, env=environment)
    try:
        status = str(wait(child, began + seconds + (120 if args.all else grace), path, save))
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
        return {"cut_short": f"exit status {status}", **found} if "partial" in found else found
    except (OSError, ValueError):
        return {"cell": asdict(cell), "error": f"its process left no result, exit status {status}"}


def wait(child: subprocess.Popen[bytes], until: float, path: Path, save: Callable[[dict[str, Any]], None]) -> int:
    """Wait for a cell's process, and pass on what it writes meanwhile."""
    written = 0
    while True:
        try:
            return child.wait(min(LOOK_SECONDS, max(0.1, until - time.perf_counter())))
        except subprocess.TimeoutExpired:
            if time.perf_counter() > until:
                raise
        if path.exists() and path.stat().st_mtime_ns != written:
            written = path.stat().st_mtime_ns
            save({"cut_short": "the whole was stopped", **json.loads(path.read_text(encoding="utf-8"))})


def write_results(
    args: argparse.Namespace, out: Path, found: dict[str, Any], skipped: list[str], began: float
) -> dict[str, Any]:
    """results.json, and rows.md where there may be rows."""
    about = next((cell["about"] for cell in found.values() if "about" in cell), {"rehearsal": args.rehearse})
    about = {**about, "rehearsal": args.rehearse, **facts_of_call("benchmarks.gpu", began)}
    results: dict[str, Any] = {
        "about": about,
        "cells": found,
        "skipped": skipped,
        "bars": [] if args.rehearse else report.bars(found),
        "no_rows": "",
    }
    rows = out / "rows.md"
    rows.unlink(missing_ok=True)
    try:
        rows.write_text(report.rows(results), encoding="utf-8")
    except report.NoFigure as reason:
        results["no_rows"] = str(reason)
    write(out / "results.json", results)
    return results


def tell(results: dict[str, Any], out: Path) -> int:
    """Say how the bars stand and what failed. 1 where a cell failed, one of its contestants, or correctness."""
    found = results["cells"]
    if results["no_rows"]:
        say(results["no_rows"])
    for bar in results["bars"]:
        say(f"{'met    ' if bar['met'] else 'NOT MET'} {bar['what']}: {bar['figure']:.4g} (bound {bar['bound']:g})")
    wrong = [name for name, cell in found.items() if "error" in cell]
    wrong += [f"{name}: cut short" for name, cell in found.items() if "cut_short" in cell]
    wrong += [f"{name}: {run}" for name, cell in found.items() for run in cell.get("result", {}).get("failed", {})]
    wrong += [name for name, cell in found.items() if cell.get("result", {}).get("passed") is False]
    say(f"results in {out}" + (f"; failed: {', '.join(wrong)}" if wrong else ""))
    return 1 if wrong else 0


def run_here(cell: plan.Cell, args: argparse.Namespace, path: Path, seconds: float) -> dict[str, Any]:
    """A rehearsal does without a process for each cell: starting them would take most of its time."""
    began = time.perf_counter()
    found = measure(cell, args, path, began + seconds)
    write(path, found)
    say(f"{cell.name}: rehearsed in {time.perf_counter() - began:.1f} s")
    return found
