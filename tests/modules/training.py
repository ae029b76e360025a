"""Training of a model on the same batches in plain PyTorch and with replaced bags, for comparison step by step."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import adaptive_rec

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples"))

import data
import deepfm_plain
import dlrm_plain
import kjt_plain
import sasrec_plain
import two_tower_plain

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SIZE = 48
RULES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.05),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.05),
    "sparse_adam": lambda weights: torch.optim.SparseAdam(weights, lr=0.01),
}
QUICK_WINDOWS = {"reclassify_every": 5, "sample_ratio": 1.0, "hysteresis": 0.0}
"""Knobs under which rows move every five steps."""
BUDGET = 48 << 10
"""Device tier for a few hundred of some ten thousand rows."""


@dataclass
class Case:
    """A model, its batches, the loss of one, and the lookups that one will make."""

    make: Callable[[], nn.Module]
    batches: Callable[[int], Iterable[Any]]
    loss: Callable[[nn.Module, Any], Tensor]
    lookups: Callable[[Any], Any]


def _click_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(logits, labels)


def _in_batch_softmax(model: nn.Module, batch: data.Views) -> Tensor:
    scores = model(batch)
    return nn.functional.cross_entropy(scores, torch.arange(len(scores)))


def _by_table(item: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """The lookups of a KeyedJaggedTensor, where its collection's bags were wrapped one by one."""
    _, features, _ = item
    offsets, values = features.offsets(), features.values()
    samples, found = (len(offsets) - 1) // len(kjt_plain.FEATURES), {}
    for number, name in enumerate(features.keys()):
        own = offsets[number * samples : (number + 1) * samples + 1]
        found[f"ebc.embedding_bags.t_{name}"] = (values[own[0] : own[-1]], own - own[0])
    return found


CASES = {
    "dlrm": Case(
        dlrm_plain.DLRM,
        lambda steps: data.clicks(steps, SIZE),
        lambda model, batch: _click_loss(model(batch.dense, batch.bags), batch.labels),
        lambda batch: {f"emb_l.{number}": bag for number, bag in enumerate(batch.bags)},
    ),
    "two_tower": Case(
        two_tower_plain.TwoTower,
        lambda steps: data.views(steps, SIZE),
        _in_batch_softmax,
        lambda batch: {"users": batch.users, "items": [(batch.history, batch.offsets), batch.candidates]},
    ),
    "deepfm": Case(
        deepfm_plain.DeepFM,
        lambda steps: data.clicks(steps, SIZE),
        lambda model, batch: _click_loss(model(batch), batch.labels),
        lambda batch: {f"{part}.{k}": bag for part in ("first", "second") for k, bag in enumerate(batch.bags)},
    ),
    "sasrec": Case(
        sasrec_plain.SASRec,
        lambda steps: data.sequences(steps, SIZE),
        lambda model, batch: sasrec_plain.loss_of(model(batch), batch),
        lambda batch: {"items": [batch.viewed, batch.following, batch.others]},
    ),
    "kjt": Case(
        lambda: kjt_plain.Model("adagrad"),
        kjt_plain.batches,
        lambda model, item: _click_loss(model(item[0], item[1]), item[2]),
        _by_table,
    ),
}


@dataclass
class Trained:
    model: nn.Module
    losses: list[float] = field(default_factory=list)
    runtime: Any = None

    @property
    def weights(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.model.state_dict().items() if value.dim() == 2}


@dataclass
class Loop:
    """A training loop that keeps an eye on the budget."""

    case: Case
    rule: str
    options: dict[str, Any] | None = None
    """For `wrap`; none: plain PyTorch."""
    prefetch: bool = False
    scheduled: bool = False
    """Whether learning rates change at every step."""
    step: Callable[[nn.Module, Any, Loop], Tensor] | None = None
    """Forward and backward; the loss."""

    def __post_init__(self) -> None:
        torch.manual_seed(7)
        self.model = self.case.make()
        tables = tables_of(self.model)
        own = {id(table) for table in tables}
        self.sparse = RULES[self.rule](tables)
        self.dense = torch.optim.SGD([one for one in self.model.parameters() if id(one) not in own], lr=0.05)
        self.schedulers = [torch.optim.lr_scheduler.ExponentialLR(one, 0.97) for one in (self.sparse, self.dense)]
        self.runtime = None if self.options is None else wrapped(self.model, self.sparse, **self.options)
        self.number = 0

    def run(self, steps: int) -> Trained:
        batches = self.case.batches(steps)
        if self.prefetch:
            assert self.runtime is not None
            batches = self.runtime.prefetch(batches, sparse=self.case.lookups)
        out = Trained(self.model, runtime=self.runtime)
        for self.number, batch in enumerate(batches):
            self.zero_grad()
            loss = (self.step or self.forward_backward)(self.model, batch, self)
            self.update()
            if self.scheduled:
                for scheduler in self.schedulers:
                    scheduler.step()
            out.losses.append(loss.item())
            self.check_budget()
        return out

    def forward_backward(self, model: nn.Module, batch: Any, loop: Loop) -> Tensor:
        loss = self.case.loss(model, batch)
        loss.backward()
        return loss

    def zero_grad(self) -> None:
        self.sparse.zero_grad()
        self.dense.zero_grad()

    def update(self) -> None:
        self.sparse.step()
        self.dense.step()

    def check_budget(self) -> None:
        if self.runtime is not None:
            stats = self.runtime.stats()
            assert stats.device_bytes <= stats.budget_bytes <= self.runtime.knobs.hot_budget_bytes


def fewer_rows(patch: pytest.MonkeyPatch) -> None:
    """Make the tables of the models on clicks, and their ids, a sixth as many."""
    for module in (data, dlrm_plain, deepfm_plain):
        patch.setattr(module, "TABLE_ROWS", (3000, 1000, 300, 24))


def tables_of(model: nn.Module) -> list[nn.Parameter]:
    found = {id(part.weight): part.weight for part in model.modules() if isinstance(part, (nn.EmbeddingBag, nn.Embedding))}
    return list(found.values())


def wrapped(
    model: nn.Module, optimizer: Any, policy: str = "hotline", budget: Any = BUDGET, update: str | None = None,
    host_memory: int | str = 0, disk: Path | None = None, **knobs: Any,
) -> Any:  # fmt: skip
    options = {"budget": budget, "optimizer": optimizer, "policy": policy, "update": update}
    options |= {"host_memory": host_memory, "disk": disk}
    return adaptive_rec.wrap(model, **options, knobs={**QUICK_WINDOWS, **knobs})


@cache
def plain(case: str, rule: str, steps: int, scheduled: bool = False) -> Trained:
    return Loop(CASES[case], rule, scheduled=scheduled).run(steps)


def assert_same(ours: Trained, theirs: Trained) -> None:
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-12, atol=0)
    mine, others = ours.weights, theirs.weights
    assert mine.keys() == others.keys()
    for name, weight in others.items():
        torch.testing.assert_close(
            mine[name], weight, rtol=0, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )


def assert_moved(runtime: Any) -> None:
    stats = runtime.stats()
    assert stats.migrated_rows > 0
    assert 0 < stats.hot_lookup_ratio < 1
    assert 0 < stats.device_bytes


def load(name: str) -> Any:
    """A script under examples/, read anew."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, script)
    spec.loader.exec_module(script)
    return script
