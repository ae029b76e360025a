"""A wrapped model under torch.compile, and torch.jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptive_rec.errors import AdaptiveRecError

from .training import wrapped

ROWS, DIM = 50, 4
READS: dict[str, Callable[[nn.Embedding, Tensor], Tensor]] = {
    "the module": lambda table, ids: table(ids),
    "functional": lambda table, ids: F.embedding(ids, table.weight),
    "rows": lambda table, ids: table.weight[ids],
    "a slice": lambda table, ids: table.weight[2:9],
    "all rows": lambda table, ids: table(ids) @ table.weight.T,
}


class Model(nn.Module):
    def __init__(self, read: str = "the module") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.bias, self.read = nn.Embedding(ROWS, DIM), nn.Parameter(torch.ones(1)), read

    def forward(self, ids: Tensor) -> Tensor:
        return (READS[self.read](self.table, ids) + self.bias).square().sum()


def train(read: str, adaptive: bool, compiled: str) -> Tensor:
    torch._dynamo.reset()
    model = Model(read).double()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    if adaptive:
        wrapped(model, optimizer, budget="1KiB")
    run = torch.compile(model, backend="eager") if compiled == "model" else model
    update: Callable[[], Any] = optimizer.step
    if compiled == "update":
        update = torch.compile(lambda: optimizer.step(), backend="eager")
    for number in range(3):

        def again(number: int = number) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = run(torch.arange(8) + number)
            loss.backward()
            return loss

        if compiled == "update by a closure":
            torch.compile(lambda: optimizer.step(again), backend="eager")()
        else:
            again()
            update()
    return model.table.weight.detach() + 0


@pytest.mark.parametrize(
    "read",
    ["the module", "a slice", "all rows", *(pytest.param(read, marks=pytest.mark.slow) for read in ("functional", "rows"))],
)
def test_a_compiled_model_may_read_its_weight_in_any_way(read: str) -> None:
    torch.testing.assert_close(train(read, True, "model"), train(read, False, ""), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["update", "update by a closure"])
def test_a_compiled_update_is_the_same(compiled: str) -> None:
    torch.testing.assert_close(train("the module", True, compiled), train("the module", False, ""), rtol=0, atol=1e-12)


@pytest.mark.parametrize("read", READS)
def test_torch_jit_is_refused_by_name(read: str) -> None:
    model = Model(read)
    wrapped(model, torch.optim.SGD, budget="1KiB")
    with pytest.raises(AdaptiveRecError, match=r"torch\.jit\.trace .*unwrap"):
        torch.jit.trace(model, (torch.arange(5),))
    with pytest.raises(AdaptiveRecError, match=r"torch\.jit\.script .*unwrap"):
        torch.jit.script(model)
