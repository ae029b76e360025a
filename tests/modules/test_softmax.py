"""A softmax over all items, tied to their table: at once, by blocks of rows, compiled, and under a scaler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .training import wrapped

ROWS, DIM, STEPS, BLOCK = 1000, 8, 30, 256


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items, self.top = nn.Embedding(ROWS, DIM), nn.Linear(DIM, DIM)

    def whole(self, seen: Tensor, following: Tensor) -> Tensor:
        """Read the whole table."""
        return F.cross_entropy(self.top(self.items(seen).mean(1)) @ self.items.weight.T, following)

    def blocks(self, seen: Tensor, following: Tensor) -> Tensor:
        """Read one block of rows after the other: the logits of all items never stand in memory at once."""
        state, weight = self.top(self.items(seen).mean(1)), self.items.weight
        sums = [torch.logsumexp(state @ weight[low : low + BLOCK].T, 1) for low in range(0, ROWS, BLOCK)]
        return (torch.logsumexp(torch.stack(sums), 0) - (state * self.items(following)).sum(1)).mean()


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def train(path: str, adaptive: bool, compiled: bool = False, scaled: bool = False) -> list[float]:
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=scaled)
    if adaptive:
        wrapped(model, optimizer, budget=16 << 10)
    loss_of: Callable[..., Tensor] = getattr(model, path)
    if compiled:
        loss_of = torch.compile(loss_of)
    scaler: Any = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=256.0, growth_interval=5)
    losses = []
    for number in range(STEPS):
        dice = torch.Generator().manual_seed(number)
        seen, following = (torch.randint(ROWS, shape, generator=dice) for shape in ((16, 5), (16,)))
        optimizer.zero_grad()
        loss = loss_of(seen, following)
        losses.append(loss.item())
        scaler.scale(loss * (torch.inf if scaled and number % 7 == 3 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    return losses


@pytest.mark.parametrize("path", ["whole", "blocks"])
def test_a_softmax_over_a_table_in_tiers_is_exact(path: str) -> None:
    assert train(path, adaptive=True) == pytest.approx(train("whole", adaptive=False), rel=1e-12)


def test_a_fused_optimizer_leaves_out_steps_of_its_scaler() -> None:
    assert train("whole", adaptive=True, scaled=True) == pytest.approx(
        train("whole", adaptive=False, scaled=True), rel=1e-12
    )


@pytest.mark.slow
def test_a_compiled_loss_is_the_same() -> None:
    assert train("whole", adaptive=True, compiled=True) == pytest.approx(train("whole", adaptive=False), rel=1e-12)
