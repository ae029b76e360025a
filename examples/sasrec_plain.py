"""SASRec (Kang and McAuley, 2018): self-attention over the items that a user viewed; one table of items, each read by itself.

The difference that adaptive-rec makes: diff examples/sasrec_plain.py examples/sasrec_adaptive.py
"""

from __future__ import annotations

import torch
from data import ITEMS, SEQUENCE_LENGTH, Sequences, print_losses, sequences
from torch import Tensor, nn


class SASRec(nn.Module):
    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, dim, padding_idx=0, sparse=True)
        self.places = nn.Parameter(0.1 * torch.randn(SEQUENCE_LENGTH, dim))
        self.block = nn.TransformerEncoderLayer(dim, 2, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, batch: Sequences) -> tuple[Tensor, Tensor]:
        """Return scores of the items viewed next and of others, both (B, SEQUENCE_LENGTH)."""
        later = torch.ones(SEQUENCE_LENGTH, SEQUENCE_LENGTH, dtype=torch.bool).triu(1)
        state = self.block(self.items(batch.viewed) + self.places, src_mask=later)
        return (state * self.items(batch.following)).sum(-1), (state * self.items(batch.others)).sum(-1)


def loss_of(scores: tuple[Tensor, Tensor], batch: Sequences) -> Tensor:
    real = batch.following > 0
    loss_fn = nn.functional.softplus
    return (loss_fn(-scores[0][real]) + loss_fn(scores[1][real])).mean()


def train(steps: int = 300, rule: type[torch.optim.Optimizer] = torch.optim.Adagrad) -> list[float]:
    torch.manual_seed(0)
    model, losses = SASRec(), []
    tables = rule([model.items.weight], lr=0.05)
    rest = torch.optim.Adam([model.places, *model.block.parameters()], lr=1e-3)
    for batch in sequences(steps):
        loss = loss_of(model(batch), batch)
        rest.zero_grad()
        tables.zero_grad()
        loss.backward()
        rest.step()
        tables.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    print_losses(train())
