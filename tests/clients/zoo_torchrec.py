"""TorchRec: its DLRM over an un-sharded EmbeddingBagCollection, and a model over an EmbeddingCollection."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tests.clients.client import Client, ids

ROWS = {"word": 200, "place": 60, "hour": 24}
DIM, SIZE, DENSE = 8, 32, 4


def _configs(kind: str) -> list[Any]:
    config = getattr(importlib.import_module("torchrec"), kind)
    return [
        config(name=f"t_{name}", embedding_dim=DIM, num_embeddings=rows, feature_names=[name])
        for name, rows in ROWS.items()
    ]


def _dlrm() -> nn.Module:
    torchrec = importlib.import_module("torchrec")
    tables = torchrec.EmbeddingBagCollection(tables=_configs("EmbeddingBagConfig"))
    return importlib.import_module("torchrec.models.dlrm").DLRM(tables, DENSE, [16, DIM], [16, 1]).double()


class Sequences(nn.Module):
    """The vectors of each feature of an EmbeddingCollection, summed over a sample's ids."""

    def __init__(self) -> None:
        super().__init__()
        torchrec = importlib.import_module("torchrec")
        self.tables = torchrec.EmbeddingCollection(tables=_configs("EmbeddingConfig"))
        self.top = nn.Sequential(nn.Linear(DIM * len(ROWS) + DENSE, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor, features: Any) -> Tensor:
        found = self.tables(features)
        parts = [
            torch.zeros(SIZE, DIM).index_add(
                0, torch.arange(SIZE).repeat_interleave(found[name].lengths()), found[name].values()
            )
            for name in ROWS
        ]
        return self.top(torch.cat([dense, *parts], 1))


def _batches(steps: int) -> list[tuple[Tensor, Any, Tensor]]:
    torchrec, dice, found = importlib.import_module("torchrec"), torch.Generator().manual_seed(1), []
    for _ in range(steps):
        lengths = torch.randint(0, 4, (len(ROWS), SIZE), generator=dice)
        parts = [ids(dice, rows, int(own.sum())) for rows, own in zip(ROWS.values(), lengths, strict=True)]
        features = torchrec.KeyedJaggedTensor(list(ROWS), torch.cat(parts), lengths=lengths.flatten())
        found.append((torch.rand(SIZE, DENSE, generator=dice), features, torch.rand(SIZE, generator=dice).round()))
    return found


def _loss(model: nn.Module, batch: tuple[Tensor, Any, Tensor]) -> Tensor:
    dense, features, labels = batch
    return nn.functional.binary_cross_entropy_with_logits(model(dense, features).squeeze(1), labels)


def clients() -> Iterator[Client]:
    importlib.import_module("torchrec")
    yield Client("TorchRec", "DLRM over EmbeddingBagCollection", _dlrm, _batches, _loss)
    yield Client("TorchRec", "EmbeddingCollection", lambda: Sequences().double(), _batches, _loss)
