"""Random training data of the examples: a few ids get most of the lookups, and labels depend on the ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

TABLE_ROWS = (20_000, 6_000, 900, 24)
"""Rows of each table of the click data. A sample has one id per table, but none to three of the second table."""
DENSE_FEATURES = 4
SEQUENCE_LENGTH = 20
USERS, ITEMS, TASTES = 8_000, 12_000, 20
"""Users and items of the viewing data; a user mostly views items of the same taste."""


@dataclass
class Clicks:
    """A batch of B samples."""

    dense: Tensor
    """(B, DENSE_FEATURES)"""
    bags: list[tuple[Tensor, Tensor]]
    """For each table: the ids of all samples, and the offsets (B,) at which each sample's ids begin."""
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
    """A batch of B samples: a user, the items that this user viewed, and the item viewed next."""

    users: Tensor
    """(B, 1)"""
    history: Tensor
    """The items of all samples. Those of each sample begin at `offsets` (B,); some have none."""
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


@dataclass
class Sequences:
    """A batch of B sequences of items that a user viewed, one after the other; id 0 fills the places before the first."""

    viewed: Tensor
    """(B, SEQUENCE_LENGTH)"""
    following: Tensor
    """(B, SEQUENCE_LENGTH) The item viewed next, at each place; 0 where there is none."""
    others: Tensor
    """(B, SEQUENCE_LENGTH) Items that were not viewed."""


def sequences(batches: int, size: int = 128, seed: int = 0) -> Iterator[Sequences]:
    for number in range(batches):
        dice = torch.Generator().manual_seed(1000 * seed + number)
        shape = size, SEQUENCE_LENGTH + 1
        tastes = torch.randint(TASTES, (size, 1), generator=dice)
        items = 1 + skewed((ITEMS - 1) // TASTES, size * shape[1], dice).view(shape) * TASTES + tastes
        lengths = torch.randint(2, shape[1] + 1, (size, 1), generator=dice)
        items[torch.arange(shape[1]) < shape[1] - lengths] = 0
        others = 1 + skewed(ITEMS - 1, size * SEQUENCE_LENGTH, dice).view(size, SEQUENCE_LENGTH)
        yield Sequences(items[:, :-1], torch.where(items[:, :-1] > 0, items[:, 1:], 0), others)


def skewed(rows: int, count: int, dice: torch.Generator) -> Tensor:
    """Draw ids below `rows`; a tenth of the ids gets two thirds of the lookups."""
    return (rows * torch.rand(count, generator=dice, dtype=torch.float64) ** 6).long()


def print_losses(losses: list[float], every: int = 50) -> None:
    for first in range(0, len(losses), every):
        part = losses[first : first + every]
        print(f"steps {first + 1:4} to {first + len(part):4}: mean loss {sum(part) / len(part):.4f}")
