"""The end of a window, of this checkout beside that of another one, such as the commit before a change to it.

Both decide about the same rows, without their values: what is measured is how long the training thread decides (estimates, plan,
placement), how long it publishes that to clients, and the processor time of both and of what follows beside the next steps
(candidates, decay). Each checkout works in a process of its own; they take turns of one window, in an order
drawn for each round, and must move equally many rows. The ratio of medians (this one over the other) comes with its 95 %
bootstrap interval.

    git worktree add ../before COMMIT
    python -m benchmarks.window_end ../before
    python -m benchmarks.window_end ../before --only tiny synthetic --rounds 200
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from adaptive_rec.system.openmp import wait_briefly
from benchmarks.common.command import ROOT, parser
from benchmarks.common.statistics import ratio_of_medians
from benchmarks.common.turns import SEED

CELLS = {
    "tiny": (1012, 8, 640, 300),
    "synthetic": (1_000_000, 16, 123_000, 100_000),
    "kaggle": (33_800_000, 16, 3_300_000, 1_000_000),
    "study": (109_000_000, 64, 14_000_000, 1_000_000),
    "study-late": (109_000_000, 64, 14_000_000, 15_000_000),
}
"""Rows, dim, hot rows, and candidates when the first window ends: two presets, 10 % of Kaggle's rows, and the tables of
`benchmarks.disk_tier.study`, which collects candidates for half an hour."""

WORKER = """
import json, sys, time
from types import SimpleNamespace
import numpy as np, torch
from adaptive_rec.batch import FeatureSpec, TableSpec
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.kernels import row_update
from adaptive_rec.kernels.jit import usable_threads
from adaptive_rec.live.state_writer import StateWriter, Tier
from adaptive_rec.live.telemetry import StageTimes
from adaptive_rec.offline.forecast.placement_store import PlacementStore
from adaptive_rec.placement import Migration, RowSpace
from adaptive_rec.policy.find import load_policy
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.reclassify.window import Reclassifier
from adaptive_rec.tracking.count_min import UNIT

rows, dim, hot, candidates = json.loads(sys.argv[1])
STEPS = 100
space = RowSpace.of((TableSpec("rows", rows, dim),), (FeatureSpec("bag", 0),))
budget = hot * 4 * (dim + 1)
store = PlacementStore(space, RowRule(row_update.ROWWISE_ADAGRAD, 0, 0, 0), torch.float32, budget, False)
store.threads = usable_threads(torch.get_num_threads())
dice = np.random.default_rng(1)
known = dice.permutation(np.unique(dice.integers(0, rows, 3 * (hot + candidates) // 2)))[: hot + candidates]
store.migrate(Migration(known[:hot], known[:0]))  # in slots without order, as after many windows
observer = Observer(store, 1, StageTimes())
observer.tracker.counter.add(known[:hot], 1 + np.minimum(dice.pareto(1.0, hot), 1e6).astype(np.int64))
observer.tracker.counter.add(known[hot:], np.ones(len(known) - hot, np.int64))
observer.tracker.remember(np.sort(known[hot:]))
knobs = Knobs(hot_budget_bytes=budget, reclassify_every=STEPS, sample_ratio=1.0)
reclassifier = Reclassifier(load_policy("hotline"), store, observer)
reclassifier.window.first = False
writer = StateWriter([rows], 1 << 24, 1)
step = 0

def look_up():
    global step
    share = min(1.0, 8000 / hot)
    for _ in range(STEPS):
        some = store.device.row_of_slot[0][dice.integers(0, hot, int(share * hot))], dice.integers(0, rows, int(share * hot) // 4)
        row_U, count_U = np.unique(np.concatenate(some), return_counts=True)
        source_U = np.where(store.slot_of_row[row_U] >= 0, 0, -1)
        segments_U1 = np.concatenate([[0], np.cumsum(count_U)])
        work = SimpleNamespace(distinct_U=row_U, segments_U1=segments_U1, source_U=source_U)
        observer.count_lookups(step, work, knobs)
        step += 1
    observer.settle()

def publish():
    device, late = store.device, hasattr(writer, "write_sketch")  # newer checkouts write the sketch last
    tier = Tier(device.row_of_slot[0], device.stale[0], device.estimate[0], device.movement[0])
    sketch = None if late else (observer.tracker.counter.counters, observer.tracker.counter.seeds, UNIT)
    writer.write_placement(step, store.placement.version, store.slot_of_row, [tier], sketch)
    if late:
        writer.write_sketch((observer.tracker.counter.counters, observer.tracker.counter.seeds, UNIT))

def turn():
    look_up()
    began, processor = time.perf_counter(), time.process_time()
    moved = reclassifier.end_window(step, knobs, {})
    decided = time.perf_counter()
    publish()
    published = time.perf_counter()
    observer.settle()
    return decided - began, published - decided, time.process_time() - processor, moved.moved_rows

turn()
print(json.dumps("ready"), flush=True)
for _ in sys.stdin:
    print(json.dumps(turn()), flush=True)
"""
"""Runs in both checkouts: it may use only what both have."""


class Checkout:
    """The window ends of one checkout, in its process."""

    def __init__(self, folder: Path, cell: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        wait_briefly(environment)
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WORKER, json.dumps(CELLS[cell])], cwd=folder, text=True,
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def answer(self) -> list[float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a checkout must work to the end, its process ended with {self._process.wait()}")
        found: list[float] = json.loads(line)
        return found

    def turn(self) -> list[float]:
        """End a window. Returns the seconds of the decision and of publishing it, processor seconds, and the rows moved."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def compare(cell: str, folders: list[Path], rounds: int) -> None:
    """Let both checkouts take turns at a cell; print the result."""
    checkouts = []
    for folder in folders:
        checkouts.append(Checkout(folder, cell))
        checkouts[-1].answer()
    dice = np.random.default_rng(SEED)
    turns: list[list[list[float]]] = [[], []]
    for _ in range(rounds):
        for number in dice.permutation(len(checkouts)):
            turns[number].append(checkouts[number].turn())
    for each in checkouts:
        each.close()
    this, other = (np.array(each).T for each in turns)
    if (this[3] != other[3]).any():
        raise RuntimeError(f"both checkouts must move equally many rows, got {this[3]} and {other[3]}")
    for what, mine, theirs in zip(("decided", "published", "processor"), this, other, strict=False):
        found = ratio_of_medians(mine.tolist(), theirs.tolist())
        medians, least = (
            " and ".join(f"{1e3 * float(of(each)):.2f}" for each in (mine, theirs)) for of in (np.median, np.min)
        )
        ratio = f"{found['ratio']:.3f} ({found['low']:.3f}-{found['high']:.3f})"
        print(f"{cell:<11}{what:<10}{medians} ms: {ratio}; least {least}", flush=True)


def main() -> None:
    parse = parser(__doc__, "benchmarks.window_end")
    parse.add_argument("other", type=Path, help="folder of the other checkout")
    parse.add_argument("--only", nargs="+", default=list(CELLS), choices=list(CELLS))
    parse.add_argument("--rounds", type=int, default=15)
    arguments = parse.parse_args()
    for cell in arguments.only:
        compare(cell, [ROOT, arguments.other.resolve()], arguments.rounds)


if __name__ == "__main__":
    main()
