"""A model with TorchRec's interface: a KeyedJaggedTensor goes into an EmbeddingBagCollection, a KeyedTensor comes out.

The difference that adaptive-rec makes: diff examples/kjt_plain.py examples/kjt_adaptive.py
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from data import DENSE_FEATURES, TABLE_ROWS, clicks, print_losses
from jagged import RULES, EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torch import Tensor, nn

FEATURES = ["ad", "interests", "site", "hour"]
DIMS = [16, 16, 8, 8]


def small(rows: Tensor) -> Tensor:
    return nn.init.uniform_(rows, -0.1, 0.1)


class Model(nn.Module):
    def __init__(self, rule: str) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(f"t_{name}", dim, rows, [name], init_fn=small)
            for name, dim, rows in zip(FEATURES, DIMS, TABLE_ROWS, strict=True)
        ]
        self.ebc = EmbeddingBagCollection(tables=tables)
        self.over = nn.Sequential(nn.Linear(DENSE_FEATURES + sum(DIMS), 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        return self.over(torch.cat([dense, self.ebc(features).values()], dim=1)).squeeze(1)


def batches(steps: int) -> Iterator[tuple[Tensor, KeyedJaggedTensor, Tensor]]:
    for batch in clicks(steps):
        values = torch.cat([ids for ids, _ in batch.bags])
        lengths = [torch.cat([begin, torch.tensor([len(ids)])]).diff() for ids, begin in batch.bags]
        yield batch.dense, KeyedJaggedTensor(FEATURES, values, lengths=torch.cat(lengths)), batch.labels


def train(steps: int = 300, rule: str = "adagrad") -> list[float]:
    torch.manual_seed(0)
    model, loss_fn, losses = Model(rule), nn.BCEWithLogitsLoss(), []
    optimizers = [torch.optim.Adam(model.over.parameters(), lr=1e-3)]
    optimizers.append(RULES[rule](model.ebc.parameters(), lr=0.05))
    for dense, features, labels in batches(steps):
        loss = loss_fn(model(dense, features), labels)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    print_losses(train())
