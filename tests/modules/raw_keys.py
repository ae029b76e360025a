"""Raw ids for tests of modules: keys of any value, a tower over a table, and rows by key."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive_rec.data.raw import raw_ids
from adaptive_rec.modules.loop import ids as loop_ids
from tests.kernels.reference.fill import fill_rows

from .training import QUICK_WINDOWS

ROWS, DIM, SEED, PADDING = 900, 6, 5, -7
STEPS = 40
DICE = np.random.default_rng(11)
KEYS = DICE.integers(-(2**63), 2**63, 700, dtype=np.int64)
"""Ids of the tests: any numbers of 64 bits."""
KEYS[:4] = [2**63 - 1, -(2**63), 0, -1]


def drawn(steps: int, shape: tuple[int, ...] = (24, 3), seed: int = 0) -> list[Tensor]:
    """Places in KEYS, skewed."""
    dice = torch.Generator().manual_seed(seed)
    return [(len(KEYS) * torch.rand(shape, generator=dice) ** 3).long() for _ in range(steps)]


def keys_at(places: Tensor) -> Tensor:
    return torch.from_numpy(KEYS)[places]


def first_values(keys: NDArray[np.int64], table: int = 0, dim: int = DIM, dtype: torch.dtype | None = None) -> Tensor:
    """What the trainer's draw gives keys of a table of ROWS rows, by its plain twin."""
    rows = torch.zeros(len(keys), dim, dtype=dtype)
    fill_rows(SEED, table, 1 / np.sqrt(ROWS), keys, rows.numpy())
    return rows


def options(where: Path | None = None, **more: Any) -> dict[str, Any]:
    disk = {} if where is None else {"host_memory": "1MiB", "disk": where / "rows"}
    return {"budget": 6000, "knobs": {**QUICK_WINDOWS, **more.pop("knobs", {})}, "seed": SEED, **disk, **more}


def leave_sooner(patch: pytest.MonkeyPatch, factor: float) -> None:
    """Make the steps fewer that pass between the choice of the ids that leave and their leaving."""
    for module in (raw_ids, loop_ids):
        patch.setattr(module, "LATER", round(module.LATER * factor))


def numbered(batches: Iterable[Tensor]) -> NDArray[np.int64]:
    """The number of each place in KEYS, in the order in which they are seen first; -1 where it never is."""
    seen = list(dict.fromkeys(torch.cat([each.reshape(-1) for each in batches]).tolist()))
    number = np.full(len(KEYS), -1)
    number[seen] = np.arange(len(seen))
    return number


class Tower(nn.Module):
    """A module with a table, and a layer over its vectors."""

    def __init__(self, table: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.table, self.over = table, nn.Linear(DIM, 1, dtype=dtype)

    def forward(self, ids: Tensor) -> Tensor:
        vectors = self.table(ids)
        return self.over(vectors).sin().mean()


def train(tower: Tower, batches: Iterable[Tensor], rows: torch.optim.Optimizer | None, passes: int = 1) -> list[float]:
    """Train; `passes` backward passes make a step."""
    optimizers = [torch.optim.SGD(tower.over.parameters(), lr=0.1), *([] if rows is None else [rows])]
    losses = []
    for number, ids in enumerate(batches, start=1):
        loss = tower(ids)
        loss.backward()
        losses.append(loss.item())
        if number % passes == 0:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    return losses


def rows_by_key(module: Any) -> dict[int, Tensor]:
    return {key: row for keys, rows in module.keys_and_rows(100) for key, row in zip(keys.tolist(), rows, strict=True)}
