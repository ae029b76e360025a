"""What the examples train on: made by chance, but a few ids are looked up most of the time, and labels follow the ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

TABLE_ROWS = (20_000, 6_000, 900, 24)
"""Rows of each table of the click data; a sample has one id for each, of the second table none to three."""
DENSE_FEATURES = 4
USERS, ITEMS, TASTES = 8_000, 12_000, 20
"""Users and items of the viewing data; a user views items of his own taste, mostly."""


@dataclass
class Clicks:
    """A batch of B samples."""

    dense: Tensor
    """(B, DENSE_FEATURES)"""
    bags: list[tuple[Tensor, Tensor]]
    """For each table the ids of all samples, and where each sample's ids begin, (B,)."""
    labels: Tensor
    """(B,)"""


def clicks(batches: int, size: int = 128, seed: int = 0) -> Iterator[Clicks]:
    for number in range(batches):
        dice = torch.Generator().manual_seed(1000 * seed + number)
        dense = torch.randn(size, DENSE_FEATURES, generator=dice)
        bags, score = [], dense[:, 0].clone()
        for table, rows in enumerate(TABLE_ROWS):
            lengths = (
                torch.randint(0, 4, (size,), generator=dice) if table == 1 else torch.ones(size, dtype=torch.int64)
            )
            ids = skewed(rows, int(lengths.sum()), dice)
            bags.append((ids, lengths.cumsum(0) - lengths))
            score.index_add_(0, torch.arange(size).repeat_interleave(lengths), torch.sin(7.0 * ids + table))
        yield Clicks(dense, bags, (torch.rand(size, generator=dice) < torch.sigmoid(2 * score)).to(dense.dtype))


@dataclass
class Views:
    """A batch of B samples: a user, the items that he viewed, and the one that he viewed next."""

    users: Tensor
    """(B, 1)"""
    history: Tensor
    """The items of all samples; `offsets` (B,) tells where each sample's begin, some have none."""
    offsets: Tensor
    candidates: Tensor
    """(B, 1)"""


def views(batches: int, size: int = 128, seed: int = 0) -> Iterator[Views]:
    for number in range(batches):
        dice = torch.Generator().manual_seed(1000 * seed + number)
        users, lengths = skewed(USERS, size, dice), torch.randint(0, 6, (size,), generator=dice)
        viewers = torch.cat([users.repeat_interleave(lengths), users])
        items = skewed(ITEMS // TASTES, len(viewers), dice) * TASTES + viewers % TASTES
        history, candidates = items.split([len(items) - size, size])
        yield Views(users.unsqueeze(1), history, lengths.cumsum(0) - lengths, candidates.unsqueeze(1))


def skewed(rows: int, count: int, dice: torch.Generator) -> Tensor:
    """Ids below `rows`; a tenth of them is looked up in two of three cases."""
    return (rows * torch.rand(count, generator=dice, dtype=torch.float64) ** 6).long()


def tell(losses: list[float], every: int = 50) -> None:
    for first in range(0, len(losses), every):
        part = losses[first : first + every]
        print(f"steps {first + 1:4} to {first + len(part):4}: mean loss {sum(part) / len(part):.4f}")
