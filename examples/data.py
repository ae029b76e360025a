"""Random training data of the examples: a few ids get most of the lookups, and labels depend on the ids."""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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


def add_home(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where rows are."""
    for name in ("budget", "host_memory", "disk"):
        parser.add_argument(f"--{name}", help="where rows are, see adaptive_rec.wrap")
    raw = "raw: ids of any 64 bits get the rows of the tables as they come (adaptive script)"
    parser.add_argument("--ids", choices=("rows", "raw"), default="rows", help=raw)


def home_of(parser: argparse.ArgumentParser, given: dict[str, Any], tables: Iterable[str]) -> dict[str, Any]:
    """Take the arguments of `adaptive_rec.wrap` out of those of the command line. `tables`: names of the tables."""
    home = {name: value for name in ("budget", "host_memory", "disk") if (value := given.pop(name))} or {"budget": "512KiB"}
    if given.pop("ids") == "raw":
        if not is_adaptive():
            parser.error("--ids raw needs the adaptive script: a table of torch has a row for each number up to the largest id")
        home |= {"ids": "raw", "keys": dict.fromkeys(tables)}
    return home


def is_adaptive() -> bool:
    """Return whether the script that runs is one of the adaptive ones."""
    return Path(sys.argv[0]).stem.endswith("_adaptive")


class StepTimes:
    """How long the steps of a loop take, the first ones, in which kernels are compiled and memory is filled, left out."""

    def __init__(self, first: int = 5) -> None:
        self._first, self._times = first, list[float]()

    def of(self, losses: Iterator[float]) -> list[float]:
        """Run a loop that yields the loss of each step, and return them."""
        self._times, found = [time.perf_counter()], []
        for loss in losses:
            found.append(loss)
            self._times.append(time.perf_counter())
        return found

    def __str__(self) -> str:
        steps = [end - begin for begin, end in itertools.pairwise(self._times)]
        return f"a step takes {1e3 * statistics.median(steps[self._first :] or steps or [0.0]):.1f} ms (median)"


def print_facts(model: nn.Module, times: StepTimes) -> None:
    """Print how long a step takes and, of a model whose rows are in tiers, which of them are hot, and their bytes and budget."""
    print(times)
    runtime = next((module.runtime for module in model.modules() if hasattr(module, "runtime")), None)
    if runtime is not None:
        print(runtime.stats())


def print_losses(losses: list[float], every: int = 50) -> None:
    for first in range(0, len(losses), every):
        part = losses[first : first + every]
        print(f"steps {first + 1:4} to {first + len(part):4}: mean loss {sum(part) / len(part):.4f}")
