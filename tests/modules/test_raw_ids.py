"""Modules that are given raw ids: they train as with the same ids numbered beforehand, also after an interruption."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec import AdaptiveEmbedding, AdaptiveEmbeddingBag
from adaptive_rec.embedding.disk import row_log
from adaptive_rec.errors import ConfigError, ConflictError
from adaptive_rec.kernels.reference.fill import fill_rows

from .test_resume import through_file
from .training import QUICK_WINDOWS, assert_moved

ROWS, DIM, SEED, PADDING = 900, 6, 5, -7
STEPS = 40
DICE = np.random.default_rng(11)
KEYS = DICE.integers(-(2**63), 2**63, 700, dtype=np.int64)
"""Ids of the tests: any numbers of 64 bits."""
KEYS[:4] = [2**63 - 1, -(2**63), 0, -1]


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)


def drawn(steps: int, shape: tuple[int, ...] = (24, 3), seed: int = 0) -> list[Tensor]:
    """Places in KEYS, skewed."""
    dice = torch.Generator().manual_seed(seed)
    return [(len(KEYS) * torch.rand(shape, generator=dice) ** 3).long() for _ in range(steps)]


def keys_at(places: Tensor) -> Tensor:
    return torch.from_numpy(KEYS)[places]


def first_values(keys: NDArray[np.int64], table: int = 0, dtype: torch.dtype | None = None) -> Tensor:
    """What the trainer's draw gives keys of a table of ROWS rows, by its plain twin."""
    rows = torch.zeros(len(keys), DIM, dtype=dtype)
    fill_rows(SEED, table, 1 / np.sqrt(ROWS), keys, rows.numpy())
    return rows


def options(where: Path | None = None, **more: Any) -> dict[str, Any]:
    disk = {} if where is None else {"host_memory": "1MiB", "disk": where / "rows"}
    return {"budget": 6000, "knobs": {**QUICK_WINDOWS, **more.pop("knobs", {})}, "seed": SEED, **disk, **more}


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


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("kind", "optimizer", "prefetch"),
    [("sum", "adagrad", True), ("mean", torch.optim.SGD, False), ("rows", torch.optim.Adagrad, True), ("rows", "lazy_adam", False)],
)
def test_a_module_trains_as_with_ids_numbered_beforehand(
    kind: str, optimizer: Any, prefetch: bool, dtype: torch.dtype, on_disk: bool, tmp_path: Path
) -> None:
    """The losses, and each id's row, to the last bit, from first values that are the trainer's."""
    batches, seen = drawn(STEPS), numbered(drawn(STEPS))
    rule = {"lr": 0.1} if isinstance(optimizer, str) else {}
    how = options(tmp_path if on_disk else None, optimizer=optimizer, dtype=dtype, **rule)
    make: Any = AdaptiveEmbedding if kind == "rows" else AdaptiveEmbeddingBag
    shape = {} if kind == "rows" else {"mode": kind}
    own = np.argsort(seen)[np.count_nonzero(seen < 0) :]  # places in KEYS by number
    weight = torch.zeros(ROWS, DIM, dtype=dtype)
    weight[: len(own)] = first_values(KEYS[own], dtype=dtype)
    found = []
    for ids_of, module in (
        (keys_at, make(ROWS, DIM, **shape, **how, ids="raw")),
        (lambda places: torch.from_numpy(seen)[places], make(ROWS, DIM, _weight=weight, **shape, **how)),
    ):
        tower = Tower(module, dtype)
        rows = None if isinstance(optimizer, str) else optimizer([module.weight], lr=0.1)
        items: Any = [ids_of(places) for places in batches]
        if prefetch:
            items = module.runtime.prefetch(items, sparse=lambda ids: ids)
        found.append((train(tower, items, rows, passes=1 if rows is None else 2), module))
    (losses, raw), (expected, plain) = found

    assert losses == expected
    mine = rows_by_key(raw)
    assert len(mine) == len(own)
    for number, place in enumerate(own):
        assert torch.equal(mine[int(KEYS[place])], plain.weight[number].detach())
    assert_moved(raw.runtime)
    counts = raw.runtime.stats().raw_ids
    assert counts == {"keys": len(own), "refused": 0, "lookups": STEPS * 72, "lookups_shared": 0}
    assert f"{len(own)} raw ids have a row of their own, 0.0% of lookups share a row" in str(raw.runtime.stats())
    if kind == "sum":  # a step of several items is not looked up ahead as a whole
        assert raw.runtime.stats().looked_up_ahead_ratio == 1

