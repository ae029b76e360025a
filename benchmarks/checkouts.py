"""The CPU step of this checkout beside that of another one, such as the commit before a large change.

`kaggle` and `multi-hot` are runs of `adaptive-rec train`, the other cells are loops of a user's own.

Each checkout trains in a process of its own on the same batches; they take turns of a few steps, in an order drawn for each
round, and the ratio of medians (this one over the other) comes with its 95 % bootstrap interval. Two processes of one checkout
may differ by some per cent for as long as they live: for small differences take several (--processes), and the CPU time on one
thread (--cpu-time), which others' work on the machine changes least.

    git worktree add ../before COMMIT
    python -m benchmarks.checkouts ../before
    python -m benchmarks.checkouts ../before --only wrapped-sgd --batch-size 64 --processes 3 --cpu-time
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from benchmarks.common.command import ROOT, parser
from benchmarks.common.process import Process
from benchmarks.common.statistics import ratio_of_medians
from benchmarks.common.turns import SEED

SMALL_TABLES = "data.max_table_rows=500000"
FP32 = ("knobs.policy=hotline", "run.precision=float32")


def _loop(kind: str, rule: str) -> tuple[str, str, tuple[str, ...]]:
    return kind, "kaggle", ("data.max_table_rows=100000", f"optimizer.embedding={rule}", *FP32)


CELLS = {
    "kaggle-fp32": ("train", "kaggle", FP32),
    "kaggle-bf16": ("train", "kaggle", ("knobs.policy=hotline", "run.precision=bf16")),
    "multi-hot": ("train", "mlperf", (SMALL_TABLES, *FP32)),
    "wrapped-rowwise": _loop("wrapped", "rowwise_adagrad"),
    "wrapped-sgd": _loop("wrapped", "sgd"),
    "wrapped-adagrad": _loop("wrapped", "adagrad"),
    "collection-sgd": _loop("collection", "sgd"),
}
"""What trains, shape and settings of each cell. In `train` Kaggle has its full tables, multi-hot 4.0 M rows of dim 128; others
are the loops of `benchmarks.drop_in`, told ahead, with Kaggle's tables cut to 100,000 rows each."""

WORKER = """
import json, sys, time, torch
kind, shape, size, settings, warm, cpu_time = json.loads(sys.argv[1])
clock = time.process_time if cpu_time else time.perf_counter
if cpu_time:
    torch.set_num_threads(1)
from benchmarks.common import contestants, shapes
chosen = shapes.SHAPES[shape]
config = shapes.configure(chosen, size, tuple(settings), None)
source = shapes.preload(shapes.open_shape(chosen, config), config, 24)
if kind == "train":
    drive = contestants.Driven(config, source, None, None).drive
else:
    from benchmarks.drop_in import contestants as loops
    import numpy as np
    budget = contestants.budget_bytes(config, source, 0.05)
    def weights(table):
        shape = source.tables[table].rows, source.tables[table].dim
        return np.random.default_rng(table).uniform(-0.01, 0.01, shape).astype(np.float32)
    if kind == "wrapped":
        loop = loops.wrapped_loop(config, source, weights, loops.bag_items(source), budget)
        loop.foretell = loops.foretell_bags
    else:
        loop = loops.collection_loop(config, source, weights, loops.jagged_items(source), budget)
    def drive(steps):
        loop.turn(steps)
        return steps
drive(warm)
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    began = clock()
    steps = drive(int(line))
    print(json.dumps((clock() - began) / steps), flush=True)
"""
"""Runs in both checkouts: it may use only what both have."""


def main() -> None:
    parse = parser(__doc__, "benchmarks.checkouts")
    parse.add_argument("other", type=Path, help="folder of the other checkout")
    parse.add_argument("--only", nargs="+", default=list(CELLS), choices=list(CELLS))
    parse.add_argument("--rounds", type=int, default=60)
    parse.add_argument("--steps", type=int, default=8, help="steps of a turn")
    parse.add_argument("--batch-size", type=int, default=2048)
    parse.add_argument("--processes", type=int, default=1, help="processes of each checkout")
    parse.add_argument("--cpu-time", action="store_true", help="measure the CPU time on one thread, not the time that passes")
    arguments = parse.parse_args()
    for name in arguments.only:
        compare(name, [ROOT, arguments.other.resolve()], arguments)


def compare(name: str, folders: list[Path], arguments: argparse.Namespace) -> None:
    """Let both checkouts take turns at a cell; print the result."""
    kind, shape, settings = CELLS[name]
    threads = ["run.threads=1"] if arguments.cpu_time else []
    own = ["run.device=cpu", f"knobs.report_every={arguments.steps}", *threads, *settings]
    contestants = []
    for folder in folders * arguments.processes:
        order = json.dumps([kind, shape, arguments.batch_size, own, 40, arguments.cpu_time])
        contestants.append(Process(["-c", WORKER, order], folder))
        contestants[-1].answer()  # one after the other: tables are drawn on all cores
    dice = np.random.default_rng(SEED)
    seconds: list[list[float]] = [[], []]
    for _ in range(arguments.rounds):
        for number in dice.permutation(len(contestants)):
            seconds[number % 2].append(float(contestants[number].ask(str(arguments.steps))))
    for each in contestants:
        each.close()
    found = ratio_of_medians(seconds[0], seconds[1])
    medians = " and ".join(f"{1e3 * float(np.median(each)):.2f} ms" for each in seconds)
    print(f"{name:<16} {medians}: {found['ratio']:.3f} ({found['low']:.3f}-{found['high']:.3f})", flush=True)


if __name__ == "__main__":
    main()
