"""A DLRM as facebookresearch/dlrm writes it: bottom MLP, embedding bags, dot interaction, top MLP, an ordinary loop.

The difference that adaptive-rec makes: diff examples/dlrm_plain.py examples/dlrm_adaptive.py
"""

from __future__ import annotations

import torch
from data import DENSE_FEATURES, TABLE_ROWS, clicks, print_losses
from torch import Tensor, nn

import adaptive_rec


class DLRM(nn.Module):
    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum", sparse=True) for rows in TABLE_ROWS)
        self.bot_l = nn.Sequential(nn.Linear(DENSE_FEATURES, 32), nn.ReLU(), nn.Linear(32, dim), nn.ReLU())
        vectors = len(TABLE_ROWS) + 1
        self.top_l = nn.Sequential(nn.Linear(dim + vectors * (vectors - 1) // 2, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: Tensor, bags: list[tuple[Tensor, Tensor]]) -> Tensor:
        x = self.bot_l(dense)
        ly = [emb(ids, offsets) for emb, (ids, offsets) in zip(self.emb_l, bags, strict=True)]
        return self.top_l(self.interact(x, ly)).squeeze(1)

    def interact(self, x: Tensor, ly: list[Tensor]) -> Tensor:
        T = torch.stack([x, *ly], dim=1)
        high, low = torch.tril_indices(T.shape[1], T.shape[1], offset=-1)
        return torch.cat([x, torch.bmm(T, T.transpose(1, 2))[:, high, low]], dim=1)


def train(steps: int = 300, rule: type[torch.optim.Optimizer] = torch.optim.Adagrad) -> list[float]:
    torch.manual_seed(0)
    model, loss_fn, losses = DLRM(), nn.BCEWithLogitsLoss(), []
    sparse_optimizer = rule(model.emb_l.parameters(), lr=0.05)
    dense_optimizer = torch.optim.Adam([*model.bot_l.parameters(), *model.top_l.parameters()], lr=1e-3)
    runtime = adaptive_rec.wrap(model, budget="512KiB", optimizer=sparse_optimizer)
    for batch in runtime.prefetch(clicks(steps), sparse=lambda b: {f"emb_l.{k}": bag for k, bag in enumerate(b.bags)}):
        loss = loss_fn(model(batch.dense, batch.bags), batch.labels)
        dense_optimizer.zero_grad()
        sparse_optimizer.zero_grad()
        loss.backward()
        dense_optimizer.step()
        sparse_optimizer.step()
        losses.append(loss.item())
    print(runtime.stats())
    return losses


if __name__ == "__main__":
    print_losses(train())
