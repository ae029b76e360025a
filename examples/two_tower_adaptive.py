"""A two-tower model: user and viewed items in one tower, the next item in the other, one item table for both; in-batch softmax.

The difference that adaptive-rec makes: diff examples/two_tower_plain.py examples/two_tower_adaptive.py
"""

from __future__ import annotations

import torch
from data import ITEMS, USERS, Views, print_losses, views
from torch import Tensor, nn

import adaptive_rec


class TwoTower(nn.Module):
    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.users = nn.EmbeddingBag(USERS, dim, mode="sum", sparse=True)
        self.items = nn.EmbeddingBag(ITEMS, dim, mode="mean", sparse=True)
        self.user_tower = nn.Sequential(nn.Linear(2 * dim, 32), nn.ReLU(), nn.Linear(32, dim))
        self.item_tower = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, dim))

    def forward(self, batch: Views) -> Tensor:
        """Return scores of each user (B) for each item (B)."""
        viewed = self.items(batch.history, batch.offsets)
        user = self.user_tower(torch.cat([self.users(batch.users), viewed], dim=1))
        item = self.item_tower(self.items(batch.candidates))
        return user @ item.T


def train(steps: int = 300, rule: type[torch.optim.Optimizer] = torch.optim.Adagrad) -> list[float]:
    torch.manual_seed(0)
    model, loss_fn, losses = TwoTower(), nn.CrossEntropyLoss(), []
    tables = rule([model.users.weight, model.items.weight], lr=0.05)
    towers = torch.optim.Adam([*model.user_tower.parameters(), *model.item_tower.parameters()], lr=1e-3)
    runtime = adaptive_rec.wrap(model, budget="512KiB", optimizer=tables)

    def lookups(batch: Views) -> dict:
        return {"users": batch.users, "items": [(batch.history, batch.offsets), batch.candidates]}

    for batch in runtime.prefetch(views(steps), sparse=lookups):
        scores = model(batch)
        loss = loss_fn(scores, torch.arange(len(scores)))
        towers.zero_grad()
        tables.zero_grad()
        loss.backward()
        towers.step()
        tables.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    print_losses(train())
