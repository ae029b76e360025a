"""What a training step costs on the CPU, beside its dense part alone and its rivals, on the same batches in the same process.

    python -m benchmarks.cpu                     under 10 minutes; make bench
    python -m benchmarks.cpu --all               more cells and rounds; resumed where it stopped: make bench-all
    python -m benchmarks.cpu --only CELL ...     some cells; --list names them
    python -m benchmarks.cpu --rehearse          tiny shapes: whether it all runs, no figure of anything

Leaves results.json, rows.md and two pictures in --out. Each cell has a process of its own; contestants take turns in it, in an
order drawn for each round. Results that disagree fail a cell, bars that are missed do not.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.common.bench import Bench
from benchmarks.cpu import picture, plan, report


def folder(args: argparse.Namespace) -> str:
    return "rehearsal" if args.rehearse else "all" if args.all else "some" if args.only else "quick"


BENCH = Bench(
    "cpu", __doc__, plan.QUICK, plan.ALL, plan.rehearsed, report.bars, folder, all_rounds=60, resumes=True,
    draw=picture.draw_all,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(BENCH.main())
