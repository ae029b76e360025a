"""How a run's costs grow with rows, with raw ids and with features: `python -m benchmarks.growth rows 1e6 1e7 1e8`.

rows      `train` of one table with that many rows, all in memory; with --host-memory the cold ones on a disk
raw_ids   a `RawIdEmbeddingBag` that has that many ids when its steps are timed
features  an `AdaptiveEmbeddingBagCollection` of that many tables of 1,000 rows

Each size runs in a process of its own. The last column of a cost is its exponent between this size and the one before: 0 where it
does not grow, 1 where it grows as the size does.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BATCH = 2048
Costs = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axis", choices=AXES)
    parser.add_argument("sizes", nargs="+", type=float)
    parser.add_argument("--host-memory", default="", help="rows: host memory of the run, such as 1GiB; the rest lies on a disk")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--dim", type=int, default=16, help="rows: components of a row")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(AXES[args.axis](int(args.sizes[0]), args)))
        return
    before: tuple[float, Costs] | None = None
    for size in args.sizes:
        more = [f"--host-memory={args.host_memory}", f"--dim={args.dim}", f"--steps={args.steps}", "--one"]
        command = [sys.executable, "-m", "benchmarks.growth", args.axis, str(size), *more]
        costs: Costs = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        cells = [f"{name} {value:,.2f}{exponent(before, size, name, value)}" for name, value in costs.items()]
        print(f"{args.axis} {int(size):,}: {'; '.join(cells)}", flush=True)
        before = size, costs


def exponent(before: tuple[float, Costs] | None, size: float, name: str, value: float) -> str:
    if before is None or min(value, before[1][name]) <= 0:
        return ""
    return f" ({math.log(value / before[1][name]) / math.log(size / before[0]):+.2f})"


def of_rows(rows: int, args: argparse.Namespace) -> Costs:
    """A run of `train`; its step and window's end are those of its second half."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        out = Path(folder) / "run"
        command = [
            sys.executable, "-m", "adaptive_rec", "train", "--no-serve", "--steps", str(args.steps), "--out", str(out),
            "--set", f"data.table_rows=[{rows}]", "--set", f"data.max_table_rows={rows}",
            "--set", f"model.embedding_dim={args.dim}",
            "--set", f"run.batch_size={BATCH}", "--set", "knobs.hot_budget_bytes=64MiB", "--set", "knobs.report_every=10",
            "--set", "data.synthetic.test_samples=2000",
            *(["--set", f"run.host_memory={args.host_memory}"] if args.host_memory else []),
        ]  # fmt: skip
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        whole_s = time.perf_counter() - began
        events = [json.loads(line) for line in (out / "events.jsonl").read_text(encoding="utf-8").splitlines()]
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        shots = [line for line in lines if line["event"] == "snapshot"]
        middle, last = shots[len(shots) // 2], shots[-1]
        windows = [event for event in events if event["kind"] == "reclassified" and event["step"] > middle["step"]]
        window_s = last["stage_seconds"]["reclassify"] - middle["stage_seconds"]["reclassify"]
        step_s = (last["seconds"] - middle["seconds"]) / (last["step"] - middle["step"])
        saved = next(event for event in reversed(events) if event["kind"] == "checkpoint")
        used = sum(path.stat().st_blocks * 512 for path in out.rglob("*") if path.is_file())
        return {
            "step ms": 1e3 * step_s,
            "window's end ms": 1e3 * window_s / max(1, len(windows)),
            "checkpoint s": saved["details"]["seconds"],
            "start and end s": whole_s - summary["seconds"],
            "memory MiB": summary["peak_rss_bytes"] / 2**20,
            "files MiB": used / 2**20,
        }


def of_raw_ids(ids: int, args: argparse.Namespace) -> Costs:
    """A table of raw ids that all have rows; each step looks up ten of them a sample, one in a hundred for the first time."""
    import torch

    from adaptive_rec import AdaptiveEmbeddingBag

    rows = int(1.1 * ids) + (20 + args.steps) * BATCH
    bag = AdaptiveEmbeddingBag(rows, 8, mode="sum", optimizer="sgd", lr=0.01, budget="64MiB", ids="raw", knobs={"admit_after": 1})
    draw = torch.Generator().manual_seed(1)
    with timed() as admitted:
        for first in range(0, ids, 1 << 18):
            bag(spread(torch.arange(first, min(ids, first + (1 << 18))))[:, None]).mean().backward()

    def train(steps: int) -> None:
        for _ in range(steps):
            found = torch.randint(0, ids, (BATCH, 10), generator=draw)
            found[:, 0] += ids * (torch.rand(BATCH, generator=draw) < 0.1)
            bag(spread(found)).mean().backward()

    train(20)
    return {"admission us an id": 1e6 * admitted[0] / ids, "step ms": step_ms(train, args.steps), "memory MiB": peak_mib()}


def spread(numbers: torch.Tensor) -> torch.Tensor:
    """Return ids that lie all over the numbers of 64 bits."""
    return (numbers + 1) * -7046029254386353131


def of_features(features: int, args: argparse.Namespace) -> Costs:
    """A step of a collection whose vectors are averaged, so that nothing but its tables grows."""
    import torch

    from adaptive_rec import AdaptiveEmbeddingBagCollection, EmbeddingBagConfig

    names = [f"f{number}" for number in range(features)]
    tables = [EmbeddingBagConfig(name=f"t_{name}", embedding_dim=16, num_embeddings=1000, feature_names=[name]) for name in names]
    draw = torch.Generator().manual_seed(1)
    with timed() as built:
        bags = AdaptiveEmbeddingBagCollection(tables, optimizer="rowwise_adagrad", lr=0.01, budget="64MiB")
    steps, samples = max(10, args.steps // max(1, features // 64)), 256
    ids = Ids(names, torch.randint(0, 1000, (features * samples,), generator=draw), samples)

    def train(steps: int) -> None:
        for _ in range(steps):
            bags(ids).values().mean().backward()

    train(10)
    return {"step ms": step_ms(train, steps), "construction ms": 1e3 * built[0], "memory MiB": peak_mib()}


class Ids:
    """One id for each feature and sample, as a KeyedJaggedTensor gives them."""

    def __init__(self, names: list[str], values: torch.Tensor, samples: int) -> None:
        self.keys, self.values = lambda: names, lambda: values
        lengths = values.new_ones(len(names) * samples)
        self.lengths = lambda: lengths


def step_ms(train: Callable[[int], None], steps: int) -> float:
    """Return the processor time of a step, the least of ten parts of the steps: threads that wait for a core compute, too."""
    parts = []
    for _ in range(10):
        with timed() as took:
            train(max(1, steps // 10))
        parts.append(1e3 * took[0] / max(1, steps // 10))
    return min(parts)


@contextmanager
def timed() -> Iterator[list[float]]:
    """The processor seconds that its block takes."""
    found, began = [0.0], time.process_time()
    yield found
    found[0] = time.process_time() - began


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


AXES: dict[str, Callable[[int, argparse.Namespace], Costs]] = {"rows": of_rows, "raw_ids": of_raw_ids, "features": of_features}

if __name__ == "__main__":
    main()
