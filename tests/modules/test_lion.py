"""The rule `lion` in a loop of one's own: it equals a plain loop and resumes to the bit; no optimizer's class stands for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.errors import ConfigError
from tests.plain_lion import PlainLion

from .training import QUICK_WINDOWS

ROWS, STEPS = {"bags": 300, "items": 40}, 40
LION: dict[str, Any] = {"optimizer": "lion", "lr": 0.01, "betas": (0.8, 0.95), "budget": "8KiB", "knobs": QUICK_WINDOWS}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.bags = nn.EmbeddingBag(ROWS["bags"], 4, mode="mean", sparse=True, dtype=torch.float64)
        self.items = nn.Embedding(ROWS["items"], 8, sparse=True, dtype=torch.float64)
        self.top = nn.Linear(12, 1, dtype=torch.float64)

    def forward(self, step: int) -> Tensor:
        draw = torch.Generator().manual_seed(step)
        few = (torch.rand((64, 3), generator=draw) ** 3 * ROWS["bags"]).long()
        item = torch.randint(ROWS["items"], (64,), generator=draw)
        return self.top(torch.cat([self.bags(few), self.items(item)], dim=1))


def train(model: Model, optimizers: list[Any], first: int, last: int) -> list[float]:
    losses = []
    for step in range(first, last):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = (model(step) - step % 3).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


def wrapped() -> tuple[Model, Any, Any]:
    model = Model()
    runtime = adaptive_rec.wrap(model, **LION)
    return model, runtime, torch.optim.SGD(model.top.parameters(), lr=0.05)


def test_rows_equal_those_of_a_plain_loop() -> None:
    plain = Model()
    rows = PlainLion([plain.bags.weight, plain.items.weight], LION["lr"], LION["betas"])
    expected = train(plain, [rows, torch.optim.SGD(plain.top.parameters(), lr=0.05)], 0, STEPS)

    model, runtime, dense = wrapped()
    losses = train(model, [dense], 0, STEPS)

    assert 0 < runtime.stats().hot_rows < sum(ROWS.values())
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    for name, weight in plain.state_dict().items():
        np.testing.assert_allclose(model.state_dict()[name].numpy(), weight.numpy(), rtol=0, atol=1e-11)


def test_a_fresh_model_resumes_to_the_bit() -> None:
    model, _, dense = wrapped()
    expected = train(model, [dense], 0, STEPS)
    first, runtime, its_dense = wrapped()
    losses = train(first, [its_dense], 0, STEPS // 2)
    second, resumed, other_dense = wrapped()
    second.load_state_dict(first.state_dict())
    other_dense.load_state_dict(its_dense.state_dict())
    resumed.load_state_dict(runtime.state_dict())

    losses += train(second, [other_dense], STEPS // 2, STEPS)

    assert losses == expected
    assert all(torch.equal(second.state_dict()[name], weight) for name, weight in model.state_dict().items())


def test_the_class_of_another_library_is_refused_and_the_rule_named() -> None:
    """torch has no Lion, and what a class of this name does is not known."""
    model = Model()
    with pytest.raises(ConfigError, match=r"got PlainLion.*name a rule \(.*lion"):
        adaptive_rec.wrap(model, optimizer=PlainLion([model.bags.weight, model.items.weight], 0.1), budget="8KiB")
