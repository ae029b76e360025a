"""`DistributedDataParallel` leaves the tables of a model to their owners. `test_torchrun.py` trains beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import adaptive_rec
from adaptive_rec.errors import ConfigError


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def averaged(model: nn.Module) -> list[torch.Tensor]:
    """The parameters whose gradients the wrapper averages."""
    return list(DistributedDataParallel(model)._module_parameters)


class Outer(nn.Module):
    """A table of its own, one that is nested, and one that two modules share."""

    def __init__(self) -> None:
        super().__init__()
        options = {"optimizer": "sgd", "lr": 0.1, "budget": 0}
        self.own = adaptive_rec.AdaptiveEmbedding(9, 2, **options)  # type: ignore[arg-type]
        self.inner = nn.ModuleDict({"table": adaptive_rec.AdaptiveEmbedding(9, 2, **options)})  # type: ignore[arg-type]
        self.tied, self.net = nn.Linear(2, 9, bias=False), nn.Linear(2, 1)
        self.tied.weight = self.own.weight


def test_tables_are_left_out_wherever_they_are() -> None:
    model = Outer()
    assert {id(one) for one in averaged(model)} == {id(one) for one in model.net.parameters()}


def test_a_table_of_the_model_itself_is_left_out() -> None:
    table = adaptive_rec.AdaptiveEmbedding(9, 2, optimizer="sgd", lr=0.1, budget=0)
    table.head = nn.Linear(2, 1)
    assert len(averaged(table)) == 2


def test_an_unwrapped_model_is_averaged_whole() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(9, 2), "net": nn.Linear(2, 1)})
    adaptive_rec.wrap(model, optimizer="sgd", lr=0.1)
    assert len(averaged(model)) == 2
    assert len(averaged(adaptive_rec.unwrap(model))) == 3


def test_a_model_of_tables_alone_needs_no_data_parallel() -> None:
    table = nn.Embedding(9, 2)
    adaptive_rec.wrap(table, optimizer="sgd", lr=0.1)
    with pytest.raises(ConfigError, match="must be given a model with parameters besides its tables in two tiers"):
        DistributedDataParallel(table)


def test_wrap_comes_before_data_parallel() -> None:
    inner = nn.ModuleDict({"table": nn.Embedding(9, 2), "net": nn.Linear(2, 1)})
    model = DistributedDataParallel(inner)
    with pytest.raises(ConfigError, match="table must be free to move, .*; call wrap before DistributedDataParallel"):
        adaptive_rec.wrap(inner, optimizer="sgd", lr=0.1)
    assert type(inner["table"]) is nn.Embedding
    with pytest.raises(ConfigError, match="model must be wrapped before it is given to DistributedDataParallel"):
        adaptive_rec.wrap(model, optimizer="sgd", lr=0.1)
