"""The CPU step of this checkout beside that of another one, such as the commit before a large change.

Each checkout trains in a process of its own on the same batches; they take turns of a few steps, in an order drawn for each
round, and the ratio of medians (this one over the other) comes with its 95 % bootstrap interval.

    git worktree add ../before COMMIT
    python -m benchmarks.checkouts ../before
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.common.command import ROOT, parser
from benchmarks.common.statistics import ratio_of_medians
from benchmarks.common.turns import SEED

SMALL_TABLES = "data.max_table_rows=500000"
CELLS = {
    "kaggle-fp32": ("kaggle", ("knobs.policy=hotline", "run.precision=float32")),
    "kaggle-bf16": ("kaggle", ("knobs.policy=hotline", "run.precision=bf16")),
    "multi-hot": ("mlperf", (SMALL_TABLES, "knobs.policy=hotline", "run.precision=float32")),
}
"""Shape and settings of each cell; Kaggle has its full tables, multi-hot 4.0 M rows of dim 128."""

WORKER = """
import json, sys, time
shape, size, settings, warm = json.loads(sys.argv[1])
from benchmarks.common import shapes
from benchmarks.common.contestants import Driven
chosen = shapes.SHAPES[shape]
config = shapes.configure(chosen, size, tuple(settings), None)
run = Driven(config, shapes.preload(shapes.open_shape(chosen, config), config, 24), None, None)
run.drive(warm)
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    began = time.perf_counter()
    steps = run.drive(int(line))
    print(json.dumps((time.perf_counter() - began) / steps), flush=True)
"""
"""Runs in both checkouts: it may use only what both have."""


class Checkout:
    """A training run of one checkout, in its process."""

    def __init__(self, folder: Path, shape: str, size: int, settings: list[str], warm: int) -> None:
        order = json.dumps([shape, size, settings, warm])
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, order], cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(folder)},
        )  # fmt: skip

    def answer(self) -> float | str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a checkout must train to the end, its process ended with {self._process.wait()}")
        found: float | str = json.loads(line)
        return found

    def turn(self, steps: int) -> float:
        """Train some steps; return the seconds of one."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return float(self.answer())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    parse = parser(__doc__, "benchmarks.checkouts")
    parse.add_argument("other", type=Path, help="folder of the other checkout")
    parse.add_argument("--only", nargs="+", default=list(CELLS), choices=list(CELLS))
    parse.add_argument("--rounds", type=int, default=60)
    parse.add_argument("--steps", type=int, default=8, help="steps of a turn")
    parse.add_argument("--batch-size", type=int, default=2048)
    arguments = parse.parse_args()
    dice = np.random.default_rng(SEED)
    for name in arguments.only:
        shape, settings = CELLS[name]
        own = ["run.device=cpu", f"knobs.report_every={arguments.steps}", *settings]
        contestants = []
        for folder in (ROOT, arguments.other.resolve()):
            contestants.append(Checkout(folder, shape, arguments.batch_size, own, 40))
            contestants[-1].answer()  # one after the other: tables are drawn on all cores
        seconds: list[list[float]] = [[], []]
        for _ in range(arguments.rounds):
            for number in dice.permutation(2):
                seconds[number].append(contestants[number].turn(arguments.steps))
        for each in contestants:
            each.close()
        found = ratio_of_medians(*seconds)
        medians = " and ".join(f"{1e3 * float(np.median(each)):.1f} ms" for each in seconds)
        print(f"{name:<12} {medians}: {found['ratio']:.3f} ({found['low']:.3f}-{found['high']:.3f})", flush=True)


if __name__ == "__main__":
    main()
