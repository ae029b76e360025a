"""A benchmark made of cells with contestants: its command line, a process for each cell, resumable results, report, picture.

A bench is a list of `Cell` and a function `run_cell` that makes a cell's contestants and has them take turns (`turns.py`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from adaptive_rec.system.openmp import SPINS, wait_briefly
from benchmarks.common import machine, picture, report
from benchmarks.common.cell import Absent, Cell
from benchmarks.common.command import facts_of_call, parser
from benchmarks.common.results import earlier, explain, say, write

CLOSING_SECONDS = 10
"""Of a bench's time, what is kept for its report."""
GRACE = 0.2
"""Share of a cell's time that is left when it begins no further round."""
LOOK_SECONDS = 1.0
"""Between two looks at what a cell has written."""
Save = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Bench:
    """A benchmark. `benchmarks.NAME.cells.run_cell` runs a cell; it is imported only in the process of a cell."""

    name: str
    about: str
    quick: tuple[Cell, ...]
    rehearsed: Callable[[Cell], Cell]
    all: tuple[Cell, ...] = ()
    """Cells of --all; empty: the same."""
    bars: Callable[[report.Found], Iterable[dict[str, Any]]] = lambda found: ()
    rounds: int = 30
    all_rounds: int = 30
    apart: bool = True
    """Whether a cell has a process of its own. Without, its contestants have one each."""
    picture: tuple[str, tuple[tuple[str, str], ...]] = ("", ())
    """Title, and the name and title of each cell in the picture."""
    within: float = 0.0
    """Seconds in which all quick cells have ended, whatever the processor; 0: no limit."""
    options: Callable[[argparse.ArgumentParser], None] = lambda line: None
    """Adds what else its command line takes."""
    rehearsals: tuple[str, ...] = ("tiny",)
    """The ways in which it can be rehearsed."""
    least_seconds: float = CLOSING_SECONDS
    """A cell is not begun where less is left for it."""
    late: str = "absent"
    """What a cell is whose process was stopped before it had written anything: `absent`, or an `error`."""

    @property
    def module(self) -> str:
        return f"benchmarks.{self.name}"

    @property
    def studies(self) -> str:
        """The folder of its results."""
        return f"studies/bench/{self.name}"

    def arguments(self, words: list[str] | None = None) -> argparse.Namespace:
        line = parser(self.about, self.module)
        line.add_argument("--all", action="store_true", help="every cell")
        line.add_argument("--only", nargs="+", metavar="CELL", help="only these cells")
        line.add_argument("--contestants", nargs="+", metavar="NAME", help="only these contestants of the cells")
        line.add_argument("--list", action="store_true", help="name the cells")
        line.add_argument("--out", type=Path, help=f"folder of results, by default below {self.studies}")
        if self.rounds:
            line.add_argument("--rounds", type=int, help=f"rounds of turns, by default {self.rounds}")
        line.add_argument("--rehearse", nargs="?", const=self.rehearsals[0], default="", choices=self.rehearsals,
                          help="tiny shapes: whether it all runs")  # fmt: skip
        line.add_argument("--cell", help=argparse.SUPPRESS)
        line.add_argument("--ends", type=float, default=math.inf, help=argparse.SUPPRESS)
        self.options(line)
        args = line.parse_args(words)
        args.words = sys.argv[1:] if words is None else words
        if self.rounds:
            args.rounds = args.rounds or (3 if args.rehearse else self.all_rounds if args.all else self.rounds)
        folder = "rehearsal" if args.rehearse else "all" if args.all else "some" if args.only else "quick"
        args.out = args.out or machine.ROOT / self.studies / folder
        return args

    def cells(self, args: argparse.Namespace) -> tuple[Cell, ...]:
        """Return the cells that a command line chooses from."""
        return (self.all or self.quick) if args.all or args.only or args.cell else self.quick

    def completed(self, cells: tuple[Cell, ...], args: argparse.Namespace) -> tuple[Cell, ...]:
        """Return chosen cells with those that they need besides."""
        return cells

    def chosen(self, args: argparse.Namespace) -> tuple[Cell, ...]:
        """Return the cells that a command line names, with the contestants that it names."""
        cells = self.cells(args)
        if unknown := set(args.only or ()) - {cell.name for cell in cells}:
            raise SystemExit(f"bench: no cell named {', '.join(sorted(unknown))}; --list --all names them")
        cells = tuple(cell for cell in cells if not args.only or cell.name in args.only)
        if args.contestants:
            names = set(args.contestants)
            if unknown := names - {name for cell in cells for name in cell.contestants}:
                raise SystemExit(f"bench: no contestant named {', '.join(sorted(unknown))} in these cells; --list names them")
            few = (tuple(name for name in cell.contestants if name in names) for cell in cells)
            cells = tuple(replace(cell, contestants=names) for cell, names in zip(cells, few, strict=True))
        cells = tuple(cell for cell in self.completed(cells, args) if args.cell in (None, cell.name))
        return tuple(self.rehearsed(cell) for cell in cells) if args.rehearse else cells

    def main(self, args: argparse.Namespace | None = None) -> int:
        args = args or self.arguments()
        cells = self.chosen(args)
        if args.list:
            width = max(len(cell.name) for cell in cells)
            print("\n".join(f"{cell.name:{width}}  {self.described(cell)}".rstrip() for cell in cells))
            return 0
        if args.rehearse:
            wait_briefly(os.environ)  # its cells run here, and torch is not loaded yet
        began, found = time.perf_counter(), {}
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what cells have started is ended
        (args.out / "cells").mkdir(parents=True, exist_ok=True)
        if args.cell:
            outcome = self.measure(cells[0], args)
            sys.stdout.flush()
            os._exit(1 if "error" in outcome else 0)  # does not wait for threads that are still at work
        for number, cell in enumerate(cells):
            old = self.resumable(path_of(cell, args), cell, args) if args.all else None

            def save(partial: dict[str, Any], name: str = cell.name) -> None:
                found[name] = partial
                self.save(args, found, began)

            if self.apart and not args.rehearse:
                limit = self.limit_of(args, time.perf_counter() - began, cells[number:])
                found[cell.name] = old or self.run_apart(cell, args, limit, save)
            else:
                found[cell.name] = old or self.measure(cell, args)
            say(self.line(cell.name, found[cell.name]) + (" (measured before)" if old else ""))
            self.save(args, found, began)
        return self.finish(args, found, began)

    def described(self, cell: Cell) -> str:
        return f"{cell.about}: {', '.join(cell.contestants)}"

    def line(self, name: str, cell: dict[str, Any]) -> str:
        """Return a cell's result in a line, as it ends."""
        return report.line(name, cell)

    # Time ------------------------------------------------------------------------------------------------------------

    def total_seconds(self, args: argparse.Namespace) -> float:
        """Return the seconds in which all cells have ended; 0: no limit."""
        return 0.0 if args.all or args.only else self.within

    def limit_of(self, args: argparse.Namespace, elapsed: float, cells: Sequence[Cell]) -> float:
        """Return the seconds that the first of the cells to come may take: twice its share of the time that is left, by the
        number of contestants, so that slow cells have what quick ones leave. Only all quick cells have a time to end in."""
        if not (seconds := self.total_seconds(args)):
            return math.inf
        left = seconds - CLOSING_SECONDS - elapsed
        weights = [1 + len(cell.contestants) for cell in cells]
        return max(0.0, left * min(1.0, 2 * weights[0] / sum(weights)))

    def ends(self, limit: float, args: argparse.Namespace) -> tuple[float, float]:
        """Return the seconds after which a cell begins nothing more, and those after which its process is ended."""
        return (1 - GRACE) * limit, limit

    # A cell ----------------------------------------------------------------------------------------------------------

    def measure(self, cell: Cell, args: argparse.Namespace) -> dict[str, Any]:
        """Return a cell's result, or the reason for its absence, with the machine; also written to the cell's file, which holds
        what is known so far until then, marked as partial."""
        about = machine.describe(args.rehearse, self.name)
        found: dict[str, Any] = {"cell": asdict(cell), "asked": asked(args), "about": about}
        began, known = time.perf_counter(), dict[str, Any]()

        def note(text: str) -> None:
            say(f"  {time.perf_counter() - began:5.1f} s  {cell.name}: {text}")

        def save(result: dict[str, Any]) -> None:
            known.update(result=result, partial=True)
            write(path_of(cell, args), found | known)

        args.save = save
        try:
            run_cell = import_module(f"{self.module}.cells").run_cell
            found["result"] = run_cell(cell, args, note)
        except Absent as reason:
            found["absent"] = str(reason)
        except Exception as error:
            told = explain(error)
            say(f"  {cell.name}: {told}")
            found |= known | {"cut_short": told.splitlines()[0]} if known else {"error": told}
        found["took"] = time.perf_counter() - began
        found["peak_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        write(path_of(cell, args), found)
        return found

    def environment(self, cell: Cell) -> dict[str, str]:
        """Return the environment of a cell's process, in which OpenMP's threads wait as the cell says."""
        environment = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", SPINS)}
        if cell.briefly:
            wait_briefly(environment)
        return environment

    def run_apart(self, cell: Cell, args: argparse.Namespace, limit: float, save: Save | None = None) -> dict[str, Any]:
        """Measure a cell in a process of its own, whose memory ends with it. A process that has not ended by itself after `limit`
        seconds is ended; what it has written by then counts. `save` is given what it has written so far, now and then."""
        path, began = path_of(cell, args), time.perf_counter()
        if limit < self.least_seconds:
            return {"cell": asdict(cell), "absent": f"no time was left of {self.total_seconds(args):.0f} s"}
        path.unlink(missing_ok=True)
        works, ends = self.ends(limit, args)
        words = [*args.words, "--cell", cell.name, "--out", str(args.out), "--ends", repr(began + works)]
        child = subprocess.Popen([sys.executable, "-m", self.module, *words], cwd=machine.ROOT, env=self.environment(cell))
        try:
            status = wait(child, began + ends, path, save)
            kind, why = "error", f"its process left no result, exit status {status}"
        except subprocess.TimeoutExpired:
            status = None
            kind, why = self.late, f"stopped after {limit:.0f} s, its limit on this processor"
        finally:
            child.kill()
            child.wait()
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"cell": asdict(cell), kind: why}
        return {"cut_short": why if status is None else f"exit status {status}", **found} if "partial" in found else found

    def resumable(self, path: Path, cell: Cell, args: argparse.Namespace) -> dict[str, Any] | None:
        """Return the earlier result of this very cell with these sources and versions, on this machine."""
        about = {"fingerprint": machine.fingerprint(self.name), "here": machine.here(), "rehearsal": args.rehearse}
        return earlier(path, {"cell": asdict(cell), "asked": asked(args)}, about)

    # Results ---------------------------------------------------------------------------------------------------------

    def rows(self, results: dict[str, Any]) -> str:
        """Return Markdown of everything measured; empty where there are no figures."""
        return report.rows(results)

    def save(self, args: argparse.Namespace, found: report.Found, began: float) -> dict[str, Any]:
        """Write results.json, rows.md and the pictures of the cells found so far."""
        about: dict[str, Any] = next((cell["about"] for cell in found.values() if "about" in cell), {})
        about = {**about, "rehearsal": args.rehearse, **facts_of_call(self.module, began)}
        results = {"about": about, "cells": found, "bars": [] if args.rehearse else list(self.bars(found))}
        rows = args.out / "rows.md"
        rows.unlink(missing_ok=True)
        if told := self.rows(results):
            rows.write_text(told, encoding="utf-8")
        write(args.out / "results.json", results)
        if drawn := picture.draw(*self.picture, results):
            (args.out / "picture.svg").write_text(drawn, encoding="utf-8")
        return results

    def finish(self, args: argparse.Namespace, found: report.Found, began: float) -> int:
        """Print the bars. Returns 1 where a cell failed or results disagree."""
        for bar in self.save(args, found, began)["bars"]:
            say(report.bar_line(bar))
        for name, cell in found.items():
            for who, why in report.absences(cell).items():
                say(f"absent  {name}: {who or 'the whole cell'}: {why}")
        wrong = report.failures(found)
        failed = f"; FAILED: {', '.join(wrong)}" if wrong else ""
        say(f"{time.perf_counter() - began:.0f} s, results in {args.out}{failed}")
        return 1 if wrong else 0


def wait(child: subprocess.Popen[bytes], until: float, path: Path, save: Save | None) -> int:
    """Wait for a cell's process, and pass on what it writes meanwhile. Raises TimeoutExpired where it has not ended by then."""
    written = 0
    while True:
        try:
            return child.wait(min(LOOK_SECONDS, max(0.1, until - time.perf_counter())))
        except subprocess.TimeoutExpired:
            if time.perf_counter() > until:
                raise
        if save is not None and path.exists() and path.stat().st_mtime_ns != written:
            written = path.stat().st_mtime_ns
            save({"cut_short": "the whole was stopped", **json.loads(path.read_text(encoding="utf-8"))})


def path_of(cell: Cell, args: argparse.Namespace) -> Path:
    """Return the file of a cell's result."""
    path: Path = args.out / "cells" / f"{cell.name}.json"
    return path


def asked(args: argparse.Namespace) -> dict[str, Any]:
    """Return what a command line asks of every cell."""
    apart = ("all", "only", "list", "out", "cell", "ends", "save", "words", "seconds", "part", "carried")
    return {name: str(value) for name, value in vars(args).items() if name not in apart}
