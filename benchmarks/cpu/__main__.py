"""What a training step costs on the CPU, beside its dense part alone and its rivals, on the same batches in the same process.

    python -m benchmarks.cpu                     under 10 minutes; make bench
    python -m benchmarks.cpu --all               more cells and rounds; resumed where it stopped: make bench-all
    python -m benchmarks.cpu --only CELL ...     some cells; --list names them. --cpu-time: on a machine with other work
    python -m benchmarks.cpu --rehearse          tiny shapes: whether it all runs, no figure of anything

Leaves results.json, rows.md and a picture in --out. Each cell has a process of its own; contestants take turns in it, in an
order drawn for each round. Results that disagree fail a cell, bars that are missed do not. `make bench` ends within its 10
minutes on any processor: a cell makes as many rounds as its share of the time allows, and one that does not end is stopped and
named.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.common.bench import Bench
from benchmarks.cpu import plan


def options(line: argparse.ArgumentParser) -> None:
    line.add_argument("--cpu-time", action="store_true", help="processor time of all threads, not the time that passes")


BENCH = Bench(
    "cpu", __doc__, plan.QUICK, plan.rehearsed, plan.ALL, plan.bars, all_rounds=60, within=600, options=options,
    picture=("A training step by stage, against its dense part alone", plan.PANELS),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(BENCH.main())
