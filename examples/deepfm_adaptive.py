"""DeepFM: a weight for each id, a factorization machine over the ids' vectors, and a network over the same vectors.

The difference that adaptive-rec makes: diff examples/deepfm_plain.py examples/deepfm_adaptive.py
"""

from __future__ import annotations

import torch
from data import TABLE_ROWS, Clicks, clicks, print_losses
from torch import Tensor, nn

import adaptive_rec


class DeepFM(nn.Module):
    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.EmbeddingBag(rows, 1, mode="sum", sparse=True) for rows in TABLE_ROWS)
        self.second = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum", sparse=True) for rows in TABLE_ROWS)
        for emb in self.second:
            nn.init.normal_(emb.weight, std=0.1)
        self.deep = nn.Sequential(nn.Linear(len(TABLE_ROWS) * dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: Clicks) -> Tensor:
        weights = torch.cat([emb(*bag) for emb, bag in zip(self.first, batch.bags, strict=True)], dim=1)
        vectors = torch.stack([emb(*bag) for emb, bag in zip(self.second, batch.bags, strict=True)], dim=1)
        pairs = vectors.sum(1).square() - vectors.square().sum(1)
        return weights.sum(1) + pairs.sum(1) / 2 + self.deep(vectors.flatten(1)).squeeze(1)


def train(steps: int = 300, rule: type[torch.optim.Optimizer] = torch.optim.Adagrad) -> list[float]:
    torch.manual_seed(0)
    model, loss_fn, losses = DeepFM(), nn.BCEWithLogitsLoss(), []
    tables = rule([*model.first.parameters(), *model.second.parameters()], lr=0.02)
    network = torch.optim.Adam(model.deep.parameters(), lr=1e-3)
    runtime = adaptive_rec.wrap(model, budget="512KiB", optimizer=tables)

    def lookups(batch: Clicks) -> dict:
        return {f"{part}.{k}": bag for part in ("first", "second") for k, bag in enumerate(batch.bags)}

    for batch in runtime.prefetch(clicks(steps), sparse=lookups):
        loss = loss_fn(model(batch), batch.labels)
        network.zero_grad()
        tables.zero_grad()
        loss.backward()
        network.step()
        tables.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    print_losses(train())
