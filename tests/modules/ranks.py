"""A training loop on several ranks, which are threads whose messages are late by a seed, beside the same loop of one process."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.modules.api import bag, collection_tables, options, wrap
from adaptive_rec.system.group import Alone, Group
from tests.doubles import late_threads
from tests.doubles.late_threads import LateThreads

from .training import QUICK_WINDOWS

T = TypeVar("T")
ROWS = {"sums": 61, "means": 40, "weighted": 23, "items": 50}
BUDGET = 4 << 10


def patch_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Return `LateThreads.train`, in whose threads tables are shared among the ranks."""
    current, plain = threading.local(), options.setup_from
    monkeypatch.setattr(late_threads, "MOST_LATE_SECONDS", 0.0003)

    def with_group(given: Any, place: torch.device) -> options.Setup:
        return replace(plain(given, place), group=getattr(current, "group", Alone()))

    for module in (bag, collection_tables, wrap):
        monkeypatch.setattr(module, "setup_from", with_group)

    def train(ranks: int, work: Callable[[Group], T], seed: int = 0) -> list[T]:
        def with_rank(group: Group) -> T:
            current.group = group
            return work(group)

        return LateThreads.train(ranks, with_rank, seed)

    return train


class Model(nn.Module):
    """Bags of both modes and of weighted ids, of two dims, and a table that a forward pass reads twice, with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = nn.EmbeddingBag(ROWS["sums"], 4, mode="sum", sparse=True)
        self.means = nn.EmbeddingBag(ROWS["means"], 6, mode="mean", sparse=True)
        self.weighted = nn.EmbeddingBag(ROWS["weighted"], 4, mode="sum", sparse=True)
        self.items = nn.Embedding(ROWS["items"], 4, padding_idx=0, sparse=True)
        self.dense = nn.Linear(22, 1)

    def forward(self, part: Part) -> Tensor:
        vectors = [
            self.sums(*part.bags["sums"]), self.means(*part.bags["means"]),
            self.weighted(*part.bags["weighted"], per_sample_weights=part.weights), self.items(part.items[:, 0]),
            self.items(part.items[:, 1:]).sum(1),
        ]  # fmt: skip
        return self.dense(torch.cat(vectors, 1)).squeeze(1)


@dataclass
class Part:
    """Samples of a batch."""

    bags: dict[str, tuple[Tensor, Tensor]]
    weights: Tensor
    items: Tensor
    labels: Tensor


@cache
def batch_of(step: int, size: int) -> list[Part]:
    """Return the samples of a step's batch, each as a part."""
    random = torch.Generator().manual_seed(step)
    samples = []
    for _ in range(size):
        bags = {}
        for name in ("sums", "means", "weighted"):
            length = int(torch.randint(0, 4, (), generator=random))
            ids = (torch.rand(length, generator=random) ** 3 * ROWS[name]).long()
            bags[name] = ids, torch.zeros(1, dtype=torch.int64)
        weights = torch.rand(len(bags["weighted"][0]), generator=random)
        items = (torch.rand(1, 3, generator=random) ** 2 * ROWS["items"]).long()
        samples.append(Part(bags, weights, items, torch.rand(1, generator=random)))
    return samples


def joined(samples: list[Part]) -> Part:
    """Return samples as one part."""
    empty = torch.empty(0, dtype=torch.int64)
    bags = {}
    for name in ("sums", "means", "weighted"):
        lengths = torch.tensor([len(sample.bags[name][0]) for sample in samples], dtype=torch.int64)
        ids = torch.cat([empty, *(sample.bags[name][0] for sample in samples)])
        bags[name] = ids, torch.cat([empty, lengths.cumsum(0) - lengths])
    return Part(
        bags,
        torch.cat([torch.empty(0), *(sample.weights for sample in samples)]),
        torch.cat([torch.empty(0, 3, dtype=torch.int64), *(sample.items for sample in samples)]),
        torch.cat([torch.empty(0), *(sample.labels for sample in samples)]),
    )


def part_of(group: Group, samples: list[Part], step: int) -> Part:
    """Return a rank's samples: parts differ in size, and every fourth step rank 0 has none."""
    bounds = [len(samples) * rank**2 // group.ranks**2 for rank in range(group.ranks + 1)]
    if group.ranks > 1 and step % 4 == 0:
        bounds[1] = 0
    return joined(samples[bounds[group.rank] : bounds[group.rank + 1]])


@dataclass
class Trained:
    losses: list[float]
    weights: dict[str, Tensor]
    runtime: Any = None
    model: Any = None
    optimizers: Any = ()


def first_model() -> Model:
    torch.manual_seed(3)
    return Model()


FIRST = threading.Lock()
"""Torch has one generator for all threads."""


def lookups_of(part: Part) -> dict[str, Any]:
    """Return what a forward pass looks up, but for the weighted bags, which `prefetch` does not take."""
    return {"sums": part.bags["sums"], "means": part.bags["means"], "items": [part.items[:, 0], part.items[:, 1:]]}


def tables_of(model: Model) -> list[nn.Parameter]:
    return [module.weight for module in (model.sums, model.means, model.weighted, model.items)]


def train(
    group: Group, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None, steps: int, wrapped: bool = True,
    rule: str = "", size: int = 12, first: int = 0,
    between: Callable[[Model, int], None] | None = None,
    penalty: float = 0.0, state: Any = None, prefetch: bool = False, clip: float = 0.0, **more: Any,
) -> Trained:  # fmt: skip
    """Train the model on a rank's parts; without `wrapped` in plain PyTorch. `make` makes the optimizer of its tables; without it
    a rule is named."""
    with FIRST:
        model = first_model()
    if group.rank:  # rank 0 has the first values
        for table in tables_of(model):
            table.data.mul_(7)
    tables = make(tables_of(model)) if make else None
    runtime = None
    if wrapped:
        named = {"optimizer": tables} if tables is not None else {"optimizer": rule, "lr": 0.05}
        runtime = adaptive_rec.wrap(model, budget=BUDGET, **named, knobs={**QUICK_WINDOWS}, **more)
    dense = torch.optim.SGD(model.dense.parameters(), lr=0.05)
    losses = []
    if state is not None:
        for one, saved in zip((model, runtime), state, strict=True):
            one.load_state_dict(saved)
    parts: Any = (part_of(group, batch_of(step, size), step) for step in range(first, steps))
    for step, part in enumerate(runtime.prefetch(parts, lookups_of) if prefetch else parts, first):
        loss = nn.functional.mse_loss(model(part), part.labels, reduction="sum") * group.ranks / size
        for one in (tables, dense):
            if one is not None:
                one.zero_grad()
        if penalty:
            loss = loss + penalty * model.items.weight.square().sum()
        loss.backward()
        for parameter in model.dense.parameters():
            assert parameter.grad is not None
            group.add("gradients", parameter.grad.numpy())
            parameter.grad /= group.ranks
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        for one in (tables, dense):
            if one is not None:
                one.step()
        losses.append(float(group.total(loss.detach().numpy().reshape(1))[0]) / group.ranks)
        if between is not None:
            between(model, step)
    return Trained(losses, copy.deepcopy(model.state_dict()), runtime, model, (tables, dense))
