"""A step of the language model of examples/ngram_lm_adaptive.py beside the same model without n-gram tables, and beside torch's.

    python -m benchmarks.language_model --rows 6700000 --dim 128 --only "no tables" "wrap, row-wise Adagrad"
    python -m benchmarks.language_model --rows 500000 --dim 128 --memory

All train on the same text in turns, in an order drawn for each round. --memory trains each in a process of its own instead, and
prints the most memory that it held. --host-memory and --disk are those of `adaptive_rec.wrap`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from benchmarks.common.command import ROOT
from benchmarks.common.statistics import ratio_of_medians
from benchmarks.common.turns import Turn, take_turns

sys.path.insert(0, str(ROOT / "examples"))

WRAPPED, ROWWISE, ON_DISK, NONE = "wrap", "wrap, row-wise Adagrad", "wrap, rows on a disk", "no tables"
SPARSE, DENSE = "torch, SparseAdam", "torch, dense AdamW"
SIZES = {"rows": 500_000, "dim": 128, "width": 256, "heads": 4, "depth": 4, "length": 1024, "sequences": 16}


class Training:
    """One of those who take turns: a model that trains on and on."""

    def __init__(self, name: str, size: Any, disk: dict[str, Any]) -> None:
        import ngram_lm_adaptive
        import ngram_lm_plain

        torch.manual_seed(0)
        script = ngram_lm_adaptive if name in (WRAPPED, ROWWISE, ON_DISK) else ngram_lm_plain
        orders, home = 0 if name == NONE else size.orders, disk if name == ON_DISK else size.home
        if name in (ROWWISE, ON_DISK):
            home = {**home, "optimizer": "rowwise_adagrad", "lr": 0.02}
        size = replace(size, orders=orders, sparse=name != DENSE, home=home)
        rule = torch.optim.AdamW if name == DENSE else torch.optim.SparseAdam
        self._losses: Iterator[float] = script.training(script.LanguageModel(size), size, sys.maxsize, rule)
        self.loss = next(self._losses)

    def turn(self, steps: int) -> Turn:
        turn = Turn()
        with turn.stage("step"):
            for _ in range(steps):
                self.loss = next(self._losses)
        return turn

    def facts(self) -> dict[str, Any]:
        return {"loss": self.loss}


def most_memory() -> int:
    """Return the most bytes that this process held in memory."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def main() -> None:
    from ngrams import Size

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--budget", default="64MiB")
    parser.add_argument("--host-memory")
    parser.add_argument("--disk")
    parser.add_argument("--only", nargs="+", default=[WRAPPED, NONE, SPARSE, DENSE])
    parser.add_argument("--memory", action="store_true")
    given = parser.parse_args()
    if given.memory and len(given.only) > 1:
        for name in given.only:
            subprocess.run([sys.executable, "-m", "benchmarks.language_model", *sys.argv[1:], "--only", name], check=True)
        return
    size = Size(**{name: getattr(given, name) for name in SIZES}, files=400, home={"budget": given.budget})
    disk = {"host_memory": given.host_memory, "disk": given.disk}
    began = time.perf_counter()
    contestants = {name: Training(name, size, disk) for name in given.only}
    print(f"first steps after {time.perf_counter() - began:.0f} s", flush=True)
    found = take_turns(contestants, given.rounds, given.steps, note=lambda line: print(line, flush=True))
    for name, each in found.items():
        first = ratio_of_medians(each["seconds"], found[given.only[0]]["seconds"])
        print(
            f"{name:22} {1e3 * each['median']:8.1f} ms a step, {first['ratio']:.2f} ({first['low']:.2f}-{first['high']:.2f}) of "
            f"{given.only[0]!r}, loss {each['facts']['loss']:.4f}"
        )
    if given.memory:
        print(f"{given.only[0]:22} held {most_memory() / 2**20:,.0f} MiB at most")


if __name__ == "__main__":
    main()
