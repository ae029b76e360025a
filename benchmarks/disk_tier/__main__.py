"""Rows on a disk beside all rows in memory, nn.EmbeddingBag and NumPy over mapped files, and RocksDB: the time of a step.

Each contestant trains in a process of its own, on the same batches, with the same dense part and row-wise Adagrad; all rows were
written once before. They take turns in an order drawn for each round; the ratio of medians comes with its
95 % bootstrap interval. A turn of ours is a window, so it has its share of the moves of rows. Memory is limited, the page cache
included, to what our run needs while it warms up, slots still empty, and 160 MiB; rivals have the same limit. Between two turns
everything is brought to the disk, outside of the clock. It takes root and the memory controller of cgroup v1.

    python -m benchmarks.disk_tier
    python -m benchmarks.disk_tier --only 10-percent ablation --rounds 5
    python -m benchmarks.disk_tier --only 25-percent --contestants ours "all in memory" --before ../before --cpu-time
    python -m benchmarks.disk_tier --all            more rounds; cells that were measured on these sources are not repeated
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.common.bench import Bench
from benchmarks.common.command import data_folder
from benchmarks.disk_tier import plan


def options(line: argparse.ArgumentParser) -> None:
    line.add_argument("--data", type=Path, default=data_folder(), help="folder of click logs")
    line.add_argument("--steps", type=int, default=100, help="steps of a turn of ours, and of a window")
    line.add_argument("--rival-steps", type=int, default=1, help="steps of a turn of a rival")
    line.add_argument("--warm", type=int, default=4000, help="steps of ours in which rows find their places")
    line.add_argument("--rival-warm", type=int, default=30, help="first steps of a rival, under the limit")
    line.add_argument("--batch-size", type=int, default=2048)
    line.add_argument("--before", type=Path, help="folder of another checkout, whose run takes turns with ours")
    line.add_argument("--cpu-time", action="store_true", help="go by the processor time of all threads, not the time that passes")


BENCH = Bench(
    "disk_tier", __doc__, plan.CELLS, plan.rehearsed, bars=plan.bars, rounds=12, all_rounds=40, apart=False, options=options,
    picture=(
        "A step of 2048 samples, Criteo Kaggle's tables, rows on a disk",
        tuple((f"{share}-percent", f"{share} % of the rows in memory") for share in (25, 10, 5)),
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(BENCH.main())
