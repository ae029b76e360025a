"""The first run on a GPU: whether it runs, whether it is right, and what it costs beside its rivals and the machine's limits.

Needs torch with CUDA, Triton, Numba, NumPy, pydantic and pytest; `benchmarks/gpu/carry.py` packs what a machine without a
package index lacks.

    python -m benchmarks.gpu                     all three parts, under 10 minutes; make gpu-first
    python -m benchmarks.gpu --part 1            steps and tests; 2: Criteo Kaggle; 3: MLPerf's shape, rules, memory
    python -m benchmarks.gpu --carried FOLDER    unpack first what carry.py packed
    python -m benchmarks.gpu --all               everything, cell by cell; taken up again where it ended: make gpu-all
    python -m benchmarks.gpu --data train.tsv    with batches of a Criteo file instead of synthetic ones
    python -m benchmarks.gpu --rehearse          tiny shapes without a GPU: whether it all runs, no figure of anything
    python -m benchmarks.gpu --rows RESULTS...   rows for docs/benchmarks.md of results.json files, e.g. of the three parts

Leaves results.json, rows.md and profiler traces in --out. Without tests that have passed there are no rows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.bench import Bench
from benchmarks.common.cell import Cell
from benchmarks.gpu import plan, report, stand_ins
from benchmarks.gpu.unpack import MANIFEST, unpack

NOT_SET_UP = 2
"""Exit status where the machine or the installation lacks something."""

CLOSE_SECONDS = 2.0
"""What a cell keeps of its time for writing down what it found."""

GRACE_SECONDS = 8.0
"""By which a cell may outrun its time before it is killed: it ends itself in its time, unless a call does not return."""


def options(line: argparse.ArgumentParser) -> None:
    line.add_argument("--part", type=int, choices=[1, 2, 3], help="one part only")
    line.add_argument("--carried", type=Path, help="folder that benchmarks/gpu/carry.py made: unpack it and use what it holds")
    line.add_argument("--data", help="a Criteo TSV file; without one batches are synthetic")
    line.add_argument("--seconds", type=float, help="time for all cells together")
    line.add_argument("--rows", type=Path, nargs="+", metavar="RESULTS", help="print the rows of results.json files")
    line.add_argument("--serve-rival", metavar="NAME", help=argparse.SUPPRESS)
    line.add_argument("--reply-to", type=int, help=argparse.SUPPRESS)
    line.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    line.add_argument("--batches", type=int, help=argparse.SUPPRESS)


class GpuBench(Bench):
    """Cells in order of importance, until the time is up."""

    studies = "studies/gpu"

    def cells(self, args: argparse.Namespace) -> tuple[Cell, ...]:
        cells = plan.all_cells() if args.all else plan.FIRST
        return tuple(cell for cell in cells if not args.part or cell.part == args.part)

    def completed(self, cells: tuple[Cell, ...], args: argparse.Namespace) -> tuple[Cell, ...]:
        return cells if args.all else plan.warmed(cells)

    def described(self, cell: Cell) -> str:
        assert isinstance(cell, plan.GpuCell)
        return f"{cell.seconds:4.0f} s  {' '.join(cell.contestants)}"

    def line(self, name: str, cell: dict[str, Any]) -> str:
        return f"{name}: {cell['took']:.1f} s" if "took" in cell else f"{name}: {cell.get('absent') or 'no result'}"

    def total_seconds(self, args: argparse.Namespace) -> float:
        return plan.seconds_of(self.chosen(args), args)

    def limit_of(self, args: argparse.Namespace, elapsed: float, cells: Sequence[Cell]) -> float:
        return plan.share(cells, self.total_seconds(args) - elapsed - CLOSE_SECONDS, stretches=not args.all)

    def ends(self, limit: float, args: argparse.Namespace) -> tuple[float, float]:
        return limit - CLOSE_SECONDS, limit + (120.0 if args.all else GRACE_SECONDS)

    def environment(self, cell: Cell) -> dict[str, str]:
        assert isinstance(cell, plan.GpuCell)
        blocking = {"CUDA_LAUNCH_BLOCKING": "1"} if cell.blocking else {}
        return {**super().environment(cell), **blocking}

    def rows(self, results: dict[str, Any]) -> str:
        try:
            return report.rows(results)
        except report.NoFigure as reason:
            results["no_rows"] = str(reason)
            return ""


BENCH = GpuBench(
    "gpu", __doc__, plan.FIRST, plan.rehearsed, bars=report.bars, rounds=0, options=options,
    rehearsals=("fake", "cpu"), late="error", least_seconds=1.0,
)  # fmt: skip


def main() -> int:
    args = BENCH.arguments()
    if args.carried:
        if not (args.carried / MANIFEST).is_file():
            print(f"gpu: --carried must be a folder that benchmarks.gpu.carry made, got {args.carried}", file=sys.stderr)
            return NOT_SET_UP
        os.environ |= unpack(args.carried)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.gpu", *without_carried(sys.argv[1:])])
    if args.rows:
        return print_rows(args.rows)
    if not args.list and (lacking := what_is_lacking(args.rehearse)):
        print(f"gpu: {lacking}", file=sys.stderr)
        return NOT_SET_UP
    if args.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    stand_ins.install()
    if args.serve_rival:
        from benchmarks.gpu.members import serve_rival  # which loads torch and the package

        (cell,) = BENCH.chosen(args)
        assert isinstance(cell, plan.GpuCell)
        return serve_rival(cell, args)
    return BENCH.main(args)


def without_carried(words: list[str]) -> list[str]:
    """Return the words of a command line without the folder to unpack, however it is written."""
    folders = [place + 1 for place, word in enumerate(words) if word == "--carried"]
    return [word for place, word in enumerate(words) if place not in folders and word.partition("=")[0] != "--carried"]


def what_is_lacking(rehearsal: str) -> str:
    """One line, empty where nothing is."""
    missing = stand_ins.missing(on_gpu=not rehearsal)
    if missing:
        return f"needs {', '.join(missing)}, not installed for {sys.executable}"
    import torch

    if not rehearsal and not torch.cuda.is_available():
        return f"needs a CUDA device that torch {torch.__version__} can use, found none (--rehearse does without one)"
    return ""


def print_rows(paths: list[Path]) -> int:
    try:
        print(report.rows(report.joined([json.loads(path.read_text(encoding="utf-8")) for path in paths])))
    except report.NoFigure as reason:
        print(f"gpu: {reason}", file=sys.stderr)
        return NOT_SET_UP
    except OSError as error:
        print(f"gpu: --rows {error.filename} cannot be read: {error.strerror}", file=sys.stderr)
        return NOT_SET_UP
    return 0


if __name__ == "__main__":
    sys.exit(main())
