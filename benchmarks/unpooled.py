"""A step of un-pooled lookups in a loop of one's own: `wrap` beside torch, in turns in one process.

    python -m benchmarks.unpooled                  a sequence model, dim 64 and 512, by SparseAdam and Adagrad
    python -m benchmarks.unpooled --dense          dense Adam over 10 million rows: 4 GB beside the rival's 8
    python -m benchmarks.unpooled --rehearse       tiny shapes: whether it runs, no figure of anything

A sequence batch is 256 x 200 ids of 1,000,000 rows (300,000 at dim 512), a tenth of which gets two thirds of the lookups. The
model reads them, averages and multiplies, so the lookups are most of the step. Prints one JSON line a contestant.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import adaptive_rec
from benchmarks.common.command import facts_of_call, parser
from benchmarks.common.statistics import ratio_of_medians

RULES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SparseAdam": lambda weights: torch.optim.SparseAdam(weights, lr=0.01),
    "Adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.05),
    "Adam": lambda weights: torch.optim.Adam(weights, lr=0.001),
}
CONTESTANTS = ("torch", "wrap", "wrap, prefetch")


@dataclass(frozen=True)
class Shape:
    """A table, a batch of ids, and how often it is measured."""

    rows: int
    dim: int
    batch: tuple[int, int]
    rule: str
    rounds: int
    steps: int
    budget: str = "64MiB"


class Contestant:
    """A table, its optimizer and its loop."""

    def __init__(self, shape: Shape, kind: str) -> None:
        torch.manual_seed(0)
        sparse = shape.rule != "Adam"
        self.model = nn.ModuleDict({"rows": nn.Embedding(shape.rows, shape.dim, sparse=sparse)})
        self.optimizer = RULES[shape.rule](self.model.parameters())
        self.head = torch.randn(shape.dim, shape.dim) / shape.dim
        wrapped = kind != "torch"
        self.runtime = adaptive_rec.wrap(self.model, budget=shape.budget, optimizer=self.optimizer) if wrapped else None
        self._ahead = kind == "wrap, prefetch"

    def steps(self, batches: Sequence[Tensor]) -> tuple[float, float]:
        """Make a step with each batch. Returns seconds a step, and the last loss."""
        ahead = self.runtime is not None and self._ahead
        stream: Iterable[Tensor] = batches
        if ahead:
            assert self.runtime is not None
            stream = self.runtime.prefetch(batches, sparse=lambda ids: {"rows": ids})
        began, loss = time.perf_counter(), torch.zeros(())
        for ids in stream:
            self.optimizer.zero_grad()
            loss = (self.model["rows"](ids).mean(1) @ self.head).square().mean()
            loss.backward()
            self.optimizer.step()
        return (time.perf_counter() - began) / len(batches), loss.item()


def measure(shape: Shape, contestants: Sequence[str]) -> list[dict[str, Any]]:
    """Return a line for each contestant. Raises AssertionError where losses disagree."""
    dice = torch.Generator().manual_seed(0)
    count = shape.rounds * shape.steps + 2 * shape.steps
    batches = [(shape.rows * torch.rand(shape.batch, generator=dice, dtype=torch.float64) ** 6).long() for _ in range(count)]
    made = {kind: Contestant(shape, kind) for kind in contestants}
    seconds: dict[str, list[float]] = {kind: [] for kind in contestants}
    for turn in range(shape.rounds + 2):
        part = batches[turn * shape.steps : (turn + 1) * shape.steps]
        losses = {}
        for kind, contestant in made.items():
            took, losses[kind] = contestant.steps(part)
            if turn > 1:
                seconds[kind].append(took)
        first = losses[contestants[0]]
        assert all(abs(loss - first) <= 1e-3 * abs(first) for loss in losses.values()), losses
    lines = []
    for kind, found in seconds.items():
        ratio = ratio_of_medians(seconds["torch"], found)
        line = {"rule": shape.rule, "dim": shape.dim, "rows": shape.rows, "contestant": kind}
        line |= {"ms": round(1000 * statistics.median(found), 2), "times_torch": {k: round(v, 2) for k, v in ratio.items()}}
        if (runtime := made[kind].runtime) is not None:
            line["hot_lookup_ratio"] = round(runtime.stats().hot_lookup_ratio, 3)
            runtime.close()
        lines.append({**line, "load": round(os.getloadavg()[0], 1)})
    return lines


def shapes(dense: bool, rehearse: bool) -> list[Shape]:
    if rehearse:
        return [Shape(2000, 8, (8, 10), "Adam" if dense else "Adagrad", 2, 3, "16KiB")]
    if dense:
        return [Shape(10_000_000, 16, (2048, 26), "Adam", 9, 2)]
    sizes = ((1_000_000, 64), (300_000, 512))
    return [Shape(rows, dim, (256, 200), rule, 15, 6) for rows, dim in sizes for rule in ("SparseAdam", "Adagrad")]


def main() -> int:
    arguments = parser(__doc__, "benchmarks.unpooled")
    arguments.add_argument("--dense", action="store_true", help="measure dense Adam")
    arguments.add_argument("--rehearse", action="store_true", help="tiny shapes")
    args, began = arguments.parse_args(), time.perf_counter()
    for shape in shapes(args.dense, args.rehearse):
        for line in measure(shape, CONTESTANTS[: 2 if args.dense else 3]):
            print(json.dumps(line), flush=True)
    print(json.dumps(facts_of_call("benchmarks.unpooled", began)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
