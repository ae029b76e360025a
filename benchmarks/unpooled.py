"""A step of un-pooled lookups in a loop of one's own: `wrap` beside torch, in turns in one process.

    python -m benchmarks.unpooled                  a sequence model, dim 64 and 512, by SparseAdam and Adagrad
    python -m benchmarks.unpooled --dense          dense Adam over 10 million rows: 4 GB beside the rival's 8
    python -m benchmarks.unpooled --ngrams         n-gram tables of a language model: 3 x 16 x 1024 ids, dim 256; 15 GB in all
    python -m benchmarks.unpooled --rehearse       tiny shapes: whether it runs, no figure of anything

A sequence batch is 256 x 200 ids of 1,000,000 rows (300,000 at dim 512), a tenth of which gets two thirds of the lookups. The
model reads them, averages and multiplies, so the lookups are most of the step. Where torchrec can be imported, FBGEMM's table
(updated in the backward pass) and TorchRec's EmbeddingCollection compete too, under Adagrad or SGD. The collection is un-sharded:
its fused twin needs a GPU in TorchRec 1.8, so torch updates its rows by dense gradients. Prints one JSON line a contestant.
"""

from __future__ import annotations

import importlib.util
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
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.05),
}
CONTESTANTS = ("torch", "wrap", "wrap, prefetch")
RIVALS = ("FBGEMM", "TorchRec")
"""They compete under Adagrad and SGD."""


LookUp = Callable[[list[Tensor]], list[Tensor]]


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
    tables: int = 1


class Contestant:
    """Tables, their optimizer and their loop."""

    runtime: Any = None
    _optimizer: torch.optim.Optimizer | None = None
    model: Any
    _look_up: LookUp

    def __init__(self, shape: Shape, kind: str) -> None:
        torch.manual_seed(0)
        self.head = torch.randn(shape.dim, shape.dim) / shape.dim
        torch.manual_seed(1)
        self._ahead = kind == "wrap, prefetch"
        if kind == "FBGEMM":
            self._look_up = fbgemm(shape)
            return
        if kind == "TorchRec":
            self.model, self._look_up = torchrec(shape)
            self._optimizer = RULES[shape.rule](self.model.parameters())
            return
        self.model = nn.ModuleList(
            nn.Embedding(shape.rows, shape.dim, sparse=shape.rule != "Adam") for _ in range(shape.tables)
        )
        self._optimizer = RULES[shape.rule](self.model.parameters())
        self._look_up = lambda ids_T: [table(ids) for table, ids in zip(self.model, ids_T, strict=True)]
        if kind != "torch":
            self.runtime = adaptive_rec.wrap(self.model, budget=shape.budget, optimizer=self._optimizer)

    def steps(self, batches: Sequence[list[Tensor]]) -> tuple[float, float]:
        """Make a step with each batch, which has the ids of every table. Returns seconds a step, and the last loss."""
        stream: Iterable[list[Tensor]] = batches
        if self._ahead:
            stream = self.runtime.prefetch(batches, sparse=lambda ids_T: {str(n): ids for n, ids in enumerate(ids_T)})
        began, loss = time.perf_counter(), torch.zeros(())
        for ids_T in stream:
            if self._optimizer is not None:
                self._optimizer.zero_grad()
            loss = (sum(each.mean(1) for each in self._look_up(ids_T)) @ self.head).square().mean()
            loss.backward()
            if self._optimizer is not None:
                self._optimizer.step()
        return (time.perf_counter() - began) / len(batches), loss.item()


def fbgemm(shape: Shape) -> LookUp:
    """FBGEMM's tables on the CPU, un-pooled, with the first values of nn.Embedding."""
    ops: Any = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    kind = {"Adagrad": ops.OptimType.EXACT_ADAGRAD, "SGD": ops.OptimType.EXACT_SGD}[shape.rule]
    place = ops.EmbeddingLocation.HOST, ops.ComputeDevice.CPU
    made = [
        ops.SplitTableBatchedEmbeddingBagsCodegen(
            [(shape.rows, shape.dim, *place)], optimizer=kind, learning_rate=0.05, eps=1e-10,
            pooling_mode=ops.PoolingMode.NONE,
        )
        for _ in range(shape.tables)
    ]  # fmt: skip
    for table in made:
        nn.init.normal_(table.split_embedding_weights()[0])
    each = torch.arange(shape.batch[0] * shape.batch[1] + 1)
    return lambda ids_T: [
        table(ids.flatten(), each[: ids.numel() + 1]).view(*ids.shape, -1) for table, ids in zip(made, ids_T, strict=True)
    ]


def torchrec(shape: Shape) -> tuple[nn.Module, LookUp]:
    """TorchRec's EmbeddingCollection, with the first values of nn.Embedding."""
    modules: Any = importlib.import_module("torchrec.modules.embedding_modules")
    configs: Any = importlib.import_module("torchrec.modules.embedding_configs")
    sparse: Any = importlib.import_module("torchrec.sparse.jagged_tensor")
    names = [f"f{number}" for number in range(shape.tables)]
    made = modules.EmbeddingCollection(
        tables=[
            configs.EmbeddingConfig(name=f"t_{n}", embedding_dim=shape.dim, num_embeddings=shape.rows, feature_names=[n])
            for n in names
        ],
        device=torch.device("cpu"),
    )
    for weight in made.parameters():
        nn.init.normal_(weight)

    def look_up(ids_T: list[Tensor]) -> list[Tensor]:
        lengths = torch.full((len(ids_T) * len(ids_T[0]),), ids_T[0].shape[1])
        found = made(sparse.KeyedJaggedTensor(names, torch.cat([ids.flatten() for ids in ids_T]), lengths=lengths))
        return [found[name].values().view(*ids.shape, -1) for name, ids in zip(names, ids_T, strict=True)]

    return made, look_up


def measure(shape: Shape, contestants: Sequence[str]) -> list[dict[str, Any]]:
    """Return a line for each contestant. Raises AssertionError where losses disagree."""
    dice = torch.Generator().manual_seed(0)
    count = shape.rounds * shape.steps + 2 * shape.steps
    batches = [
        [
            (shape.rows * torch.rand(shape.batch, generator=dice, dtype=torch.float64) ** 6).long()
            for _ in range(shape.tables)
        ]
        for _ in range(count)
    ]
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
        exact = [kind for kind in losses if kind not in RIVALS]  # those draw rows of their own
        assert all(abs(losses[kind] - first) <= 1e-3 * abs(first) for kind in exact), losses
    lines = []
    for kind, found in seconds.items():
        ratio = ratio_of_medians(seconds["torch"], found)
        line = {"rule": shape.rule, "dim": shape.dim, "rows": shape.rows, "tables": shape.tables, "contestant": kind}
        line |= {"ms": round(1000 * statistics.median(found), 2), "times_torch": {k: round(v, 2) for k, v in ratio.items()}}
        if (runtime := made[kind].runtime) is not None:
            line["hot_lookup_ratio"] = round(runtime.stats().hot_lookup_ratio, 3)
            runtime.close()
        lines.append({**line, "load": round(os.getloadavg()[0], 1)})
    return lines


def contestants(shape: Shape, wanted: Sequence[str] | None) -> list[str]:
    """Return who competes under a shape's rule, of those wanted."""
    everyone = [*CONTESTANTS[: 2 if shape.rule == "Adam" else 3]]
    if shape.rule in ("Adagrad", "SGD") and importlib.util.find_spec("torchrec"):
        everyone += RIVALS
    return [kind for kind in everyone if kind == "torch" or wanted is None or kind in wanted]


def shapes(dense: bool, ngrams: bool, rehearse: bool) -> list[Shape]:
    if rehearse:
        return [Shape(2000, 8, (8, 10), "Adam" if dense else "Adagrad", 2, 3, "16KiB", tables=3 if ngrams else 1)]
    if dense:
        return [Shape(10_000_000, 16, (2048, 26), "Adam", 9, 2)]
    if ngrams:
        return [Shape(800_000, 256, (16, 1024), "SGD", 15, 4, tables=3)]
    sizes = ((1_000_000, 64), (300_000, 512))
    return [Shape(rows, dim, (256, 200), rule, 15, 6) for rows, dim in sizes for rule in ("SparseAdam", "Adagrad")]


def main() -> int:
    arguments = parser(__doc__, "benchmarks.unpooled")
    arguments.add_argument("--dense", action="store_true", help="measure dense Adam")
    arguments.add_argument("--ngrams", action="store_true", help="measure n-gram tables")
    arguments.add_argument("--only", nargs="+", choices=[*CONTESTANTS, *RIVALS], help="contestants beside torch")
    arguments.add_argument("--rehearse", action="store_true", help="tiny shapes")
    args, began = arguments.parse_args(), time.perf_counter()
    for shape in shapes(args.dense, args.ngrams, args.rehearse):
        for line in measure(shape, contestants(shape, args.only)):
            print(json.dumps(line), flush=True)
    print(json.dumps(facts_of_call("benchmarks.unpooled", began)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
