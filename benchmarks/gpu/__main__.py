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
from pathlib import Path

from benchmarks.common.command import parser
from benchmarks.gpu import conduct, one_cell, plan, report, stand_ins
from benchmarks.gpu.unpack import MANIFEST, unpack

NOT_SET_UP = 2
"""Exit status where the machine or the installation lacks something."""


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    line = parser(__doc__, "benchmarks.gpu")
    line.add_argument("--part", type=int, choices=[1, 2, 3], help="one part only")
    line.add_argument("--carried", type=Path, help="folder that benchmarks/gpu/carry.py made: unpack it and use what it holds")
    line.add_argument("--all", action="store_true", help="every shape, batch size, budget, rule and way of loading")
    line.add_argument("--data", help="a Criteo TSV file; without one batches are synthetic")
    line.add_argument("--out", type=Path, help="folder of results, by default below studies/gpu")
    line.add_argument("--seconds", type=float, help="time for all cells together")
    line.add_argument("--only", nargs="+", metavar="CELL", help="only these cells")
    line.add_argument("--contestants", nargs="+", metavar="NAME", help="only these contestants of the cells")
    line.add_argument("--list", action="store_true", help="name the cells")
    line.add_argument("--rehearse", nargs="?", const="fake", default="", choices=["fake", "cpu"],
                        help="without a GPU: the device path over host memory (fake), or the path of CPU runs")  # fmt: skip
    line.add_argument("--rows", type=Path, nargs="+", metavar="RESULTS", help="print the rows of results.json files")
    line.add_argument("--cell", help=argparse.SUPPRESS)
    line.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    line.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    line.add_argument("--serve-rival", metavar="NAME", help=argparse.SUPPRESS)
    line.add_argument("--reply-to", type=int, help=argparse.SUPPRESS)
    line.add_argument("--compile", metavar="NAME", help=argparse.SUPPRESS)
    line.add_argument("--batches", type=int, help=argparse.SUPPRESS)
    return line.parse_args(words)


def main() -> int:
    args = arguments()
    if args.carried:
        if not (args.carried / MANIFEST).is_file():
            print(f"gpu: --carried must be a folder that benchmarks.gpu.carry made, got {args.carried}", file=sys.stderr)
            return NOT_SET_UP
        os.environ |= unpack(args.carried)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.gpu", *without_carried(sys.argv[1:])])
    if args.rows:
        return print_rows(args.rows)
    if args.list:
        cells = plan.chosen(args)
        width = max(len(cell.name) for cell in cells)
        for cell in cells:
            print(f"{cell.name:{width}} {cell.seconds:4.0f} s  {' '.join(cell.contestants)}".rstrip())
        return 0
    lacking = what_is_lacking(args.rehearse)
    if lacking:
        print(f"gpu: {lacking}", file=sys.stderr)
        return NOT_SET_UP
    if args.serve_rival:
        return one_cell.serve_rival(args)
    if args.compile:
        return one_cell.compile_for(args)
    return one_cell.run_one(args) if args.cell else conduct.run_all(args)


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
