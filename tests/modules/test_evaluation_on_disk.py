"""An evaluation reads rows from the disk as they are: none gets a place in memory, none is written, and nothing is counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec

from .training import QUICK_WINDOWS

ROWS, DIM = 4000, 4

pytestmark = pytest.mark.usefixtures("small_segments")


def batches(first: int, steps: int) -> Iterator[Tensor]:
    for number in range(first, first + steps):
        yield (ROWS * torch.rand(40, generator=torch.Generator().manual_seed(number)) ** 6).long()


class Loop:
    def __init__(self, folder: Path, raw: bool) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(ROWS, DIM))
        self._optimizer = torch.optim.Adagrad(self.model.parameters(), lr=0.1)
        more: dict[str, Any] = {"ids": "raw", "keys": {"0": None}} if raw else {}
        self.runtime = adaptive_rec.wrap(
            self.model, optimizer=self._optimizer, host_memory="16KiB", disk=folder, knobs=QUICK_WINDOWS, **more
        )

    def lookups(self, ids: Tensor) -> dict[str, Tensor]:
        return {"0": ids}

    def train(self, first: int, steps: int) -> list[float]:
        losses = []
        self.model.train()
        for ids in self.runtime.prefetch(batches(first, steps), self.lookups):
            self._optimizer.zero_grad()
            loss = self.model(ids).sin().sum()
            loss.backward()
            self._optimizer.step()
            losses.append(loss.item())
        return losses

    def evaluate(self, ahead: bool) -> Tensor:
        """Read every row of the table."""
        self.model.eval()
        every = torch.arange(ROWS).split(100)
        with torch.no_grad():
            return torch.cat([self.model(ids) for ids in (self.runtime.prefetch(every, self.lookups) if ahead else every)])

    def figures(self) -> dict[str, Any]:
        """Return what an evaluation must leave as it is."""
        stats = self.runtime.stats()
        store = self.runtime.store
        return {
            "counts": (stats.steps, stats.lookups, stats.hot_lookup_ratio, stats.migrated_rows, stats.row_updates),
            "hot": [rows.tolist() for rows in store.hot.tier.row_of_slot],
            "written": stats.disk["rows_written"],
            "ids": stats.raw_ids,
        }


@pytest.mark.parametrize(("ahead", "raw"), [(False, False), (True, False), (True, True)])
def test_an_evaluation_changes_nothing(ahead: bool, raw: bool, tmp_path: Path) -> None:
    ours, theirs = (Loop(tmp_path / name, raw) for name in ("ours", "theirs"))
    assert ours.train(0, 30) == theirs.train(0, 30)
    before, read = ours.figures(), ours.runtime.stats().disk["rows_read"]

    found = ours.evaluate(ahead)

    assert ours.figures() == before
    more = ours.runtime.stats().disk["rows_read"] - read
    assert more > 0 if raw else more > ROWS / 2, "rows were read from the disk"
    if not raw:
        assert torch.equal(found, theirs.model.state_dict()["0.weight"])
    assert ours.train(30, 30) == theirs.train(30, 30)
    assert ours.figures() == {**theirs.figures(), "ids": ours.figures()["ids"]}
    mine, others = ours.model.state_dict(), theirs.model.state_dict()
    assert all(torch.equal(mine[name], others[name]) for name in others)
    assert theirs.runtime.stats().migrated_rows > 0
