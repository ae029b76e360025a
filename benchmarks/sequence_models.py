"""A step of the sequence models of examples/ with rows in two tiers, beside torch's tables and without tables.

    python -m benchmarks.sequence_models ngram_lm --rows 6700000 --only "no tables" "wrap, row-wise Adagrad"
    python -m benchmarks.sequence_models hstu --tracks 2000000
    python -m benchmarks.sequence_models ngram_lm --memory

All train on the same data in turns, in an order drawn for each round. --memory trains each in a process of its own instead, and
prints the most memory that it held. --host-memory and --disk are those of `adaptive_rec.wrap`. --cpu-time goes by the processor
time of all threads, with one of torch: for machines on which other work runs.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common.command import ROOT
from benchmarks.common.statistics import ratio_of_medians
from benchmarks.common.turns import CLOCK, Turn, take_turns

sys.path.insert(0, str(ROOT / "examples"))

WRAPPED, ROWWISE, ON_DISK, NONE = "wrap", "wrap, row-wise Adagrad", "wrap, rows on a disk", "no tables"
SPARSE, DENSE = "torch, sparse", "torch, dense AdamW"
SIZES: dict[str, dict[str, int]] = {
    "ngram_lm": {"rows": 500_000, "dim": 128, "width": 256, "heads": 4, "depth": 4, "length": 1024, "sequences": 16,
                 "files": 400},
    "hstu": {"tracks": 1_000_000, "users": 1_000, "dim": 256, "heads": 4, "depth": 2, "history": 512, "batch": 32,
             "listens": 1_000_000, "begin": 910_000},  # by then most histories are full, and the day is far from its end
}  # fmt: skip
CLASSES = {"ngram_lm": "LanguageModel", "hstu": "HSTU"}
RULES = {"ngram_lm": torch.optim.SparseAdam, "hstu": torch.optim.Adagrad}
"""Of the tables, under `wrap` as with torch's sparse gradients."""


class NoTable(nn.Module):
    """One vector for all ids, in place of a table."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dim))

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[0].expand(*ids.shape, -1)


class Training:
    """One of those who take turns: a model that trains on and on."""

    def __init__(self, model: str, name: str, size: Any, disk: dict[str, Any]) -> None:
        torch.manual_seed(0)
        script = importlib.import_module(f"{model}_{'adaptive' if name in (WRAPPED, ROWWISE, ON_DISK) else 'plain'}")
        home = disk if name == ON_DISK else size.home
        if name in (ROWWISE, ON_DISK):
            home = {**home, "optimizer": "rowwise_adagrad", "lr": 0.02}
        without = {"orders": 0} if model == "ngram_lm" else {}
        changed: dict[str, dict[str, Any]] = {NONE: without, DENSE: {"sparse": False}}
        size = replace(size, home=home, **changed.get(name, {}))
        rule = torch.optim.AdamW if name == DENSE else RULES[model]
        self._model = getattr(script, CLASSES[model])(size)
        if name == NONE and model == "hstu":
            self._model.tracks, self._model.users = NoTable(size.dim), NoTable(size.dim)
        self._losses: Iterator[float] = script.training(self._model, size, sys.maxsize, rule)
        self.loss = next(self._losses)

    def turn(self, steps: int) -> Turn:
        turn = Turn()
        with turn.stage("step"):
            for _ in range(steps):
                self.loss = next(self._losses)
        return turn

    def facts(self) -> dict[str, Any]:
        tiered = next((module for module in self._model.modules() if getattr(module, "runtime", None)), None)
        return {"loss": self.loss, "stats": tiered and tiered.runtime.stats()}


def most_memory() -> int:
    """Return the most bytes that this process held in memory."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = parser.add_subparsers(dest="model", required=True)
    for model, sizes in SIZES.items():
        one = models.add_parser(model)
        for name, default in sizes.items():
            one.add_argument(f"--{name}", type=int, default=default)
        one.add_argument("--rounds", type=int, default=9)
        one.add_argument("--steps", type=int, default=2)
        one.add_argument("--budget", default="64MiB")
        one.add_argument("--host-memory")
        one.add_argument("--disk")
        one.add_argument("--only", nargs="+", default=[WRAPPED, SPARSE, NONE, *([DENSE] if model == "ngram_lm" else [])])
        one.add_argument("--cpu-time", action="store_true")
        one.add_argument("--memory", action="store_true")
    given = parser.parse_args()
    if given.cpu_time:
        CLOCK.by_processor = True
        torch.set_num_threads(1)
    if given.memory and len(given.only) > 1:
        for name in given.only:
            subprocess.run([sys.executable, "-m", "benchmarks.sequence_models", *sys.argv[1:], "--only", name], check=True)
        return
    sizes = {name: getattr(given, name) for name in SIZES[given.model]}
    size = importlib.import_module(f"{given.model}_plain").Size(**sizes, home={"budget": given.budget})
    disk = {"host_memory": given.host_memory, "disk": given.disk}
    began = time.perf_counter()
    contestants = {name: Training(given.model, name, size, disk) for name in given.only}
    print(f"first steps after {time.perf_counter() - began:.0f} s", flush=True)
    found = take_turns(contestants, given.rounds, given.steps, note=lambda line: print(line, flush=True))
    for name, each in found.items():
        first = ratio_of_medians(each["seconds"], found[given.only[0]]["seconds"])
        print(
            f"{name:22} {1e3 * each['median']:8.1f} ms a step, {first['ratio']:.2f} ({first['low']:.2f}-{first['high']:.2f}) of "
            f"{given.only[0]!r}, loss {each['facts']['loss']:.4f}"
        )
        if (stats := each["facts"]["stats"]) is not None:
            waits = sum(stats.seconds_by_stage.get(stage, 0.0) for stage in ("wait", "disk"))
            share, hot = f"{stats.hot_lookup_ratio:.1%} of lookups hot", f"{stats.device_bytes / 2**20:,.0f} MiB of hot rows"
            print(f"{'':22} {share}, {hot}, waits {1e3 * waits / stats.steps:.1f} ms a step by the clock")
    if given.memory:
        print(f"{given.only[0]:22} held {most_memory() / 2**20:,.0f} MiB at most")


if __name__ == "__main__":
    main()
