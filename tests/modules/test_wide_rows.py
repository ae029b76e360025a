"""Rows of hundreds of components, and sequences of thousands of ids in a sample: the model of plain tables, in every home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.system.group import Alone, Group
from tests.matrix import grid

from .ranks import FIRST, patch_ranks
from .test_device import _device  # noqa: F401 - a fixture
from .training import QUICK_WINDOWS

ROWS, SAMPLES, LENGTH = 300, 4, 2_000
HOMES: dict[str, Any] = {"hot": {"budget": "64MiB"}, "some hot": {"budget": "1MiB"}, "disk": {"host_memory": "2MiB"}}
RULES = {"adagrad": torch.optim.Adagrad, "sparse_adam": torch.optim.SparseAdam, "sgd": torch.optim.SGD}


class Sequences(nn.Module):
    """A table that long sequences read row by row, and another one in bags."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items = nn.Embedding(ROWS, dim, padding_idx=0, sparse=True)
        self.words = nn.EmbeddingBag(ROWS, dim, mode="mean", sparse=True)

    def forward(self, ids: Tensor) -> Tensor:
        near = torch.linspace(0.1, 1, ids.shape[1])
        return (self.items(ids) * near[:, None]).sum(1).sin().sum() + (self.words(ids) ** 2).sum()


def batches(steps: int, length: int) -> Iterator[Tensor]:
    for step in range(steps):
        yield (ROWS * torch.rand(SAMPLES, length, generator=torch.Generator().manual_seed(step)) ** 3).long()


def trained(
    group: Group, dim: int, rule: str, home: dict[str, Any] | None, steps: int = 6, length: int = 40, ahead: bool = True
) -> tuple[dict[str, Tensor], Any]:
    """Return the tables after some steps on a rank's part of each batch, and the runtime; without `home` in plain PyTorch."""
    with FIRST:
        model = Sequences(dim)
    optimizer = RULES[rule](model.parameters(), lr=0.01)
    own: Any = (batch[group.part_of(SAMPLES)] for batch in batches(steps, length))
    runtime = None
    if home is not None:
        runtime = adaptive_rec.wrap(model, optimizer=optimizer, knobs=QUICK_WINDOWS, **home)
        own = runtime.prefetch(own, lambda ids: {"items": ids, "words": ids}) if ahead else own
    for ids in own:
        optimizer.zero_grad()
        (group.ranks * model(ids)).backward()  # the step averages over the ranks
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}, runtime


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-9, msg=name)


def few(cases: list[Any]) -> list[Any]:
    chosen = [{"home": "disk", "dim": 1000, "rule": "adagrad"}, {"home": "some hot", "dim": 256, "rule": "sparse_adam"}]
    return [case for case in cases if case in chosen]


@grid(lambda case: True, few, home=list(HOMES), dim=[256, 512, 1000, 1024], rule=list(RULES))
def test_wide_rows_are_those_of_plain_tables(home: str, dim: int, rule: str, tmp_path: Path) -> None:
    where = {**HOMES[home], **({"disk": tmp_path} if home == "disk" else {})}
    ours, runtime = trained(Alone(), dim, rule, where)
    assert_close(ours, trained(Alone(), dim, rule, None)[0])
    assert runtime.store.cold.on_disk == (home == "disk")


@pytest.mark.slow
@pytest.mark.parametrize("home", ["some hot", "disk"])
@pytest.mark.parametrize("dim", [256, 1024])
def test_wide_rows_of_ranks_are_those_of_plain_tables(
    dim: int, home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {**HOMES[home], **({"disk": tmp_path} if home == "disk" else {})}
    theirs, _ = trained(Alone(), dim, "adagrad", None)
    for ours, _ in patch_ranks(monkeypatch)(2, lambda group: trained(group, dim, "adagrad", where)):
        assert_close(ours, theirs)


@pytest.mark.slow
@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("dim", [256, 1024])
def test_wide_rows_on_a_device_are_those_of_plain_tables(dim: int) -> None:
    assert_close(trained(Alone(), dim, "adagrad", HOMES["some hot"])[0], trained(Alone(), dim, "adagrad", None)[0])


@pytest.mark.parametrize(
    ("home", "ahead"),
    [("disk", True), *(pytest.param(home, ahead, marks=pytest.mark.slow) for home in HOMES for ahead in (False, True))],
)
def test_long_sequences_are_looked_up_ahead(home: str, ahead: bool, tmp_path: Path) -> None:
    """Thousands of ids in a sample, far more than a table has rows."""
    where = {**HOMES[home], **({"disk": tmp_path, "host_memory": "64KiB"} if home == "disk" else {})}
    ours, runtime = trained(Alone(), 8, "adagrad", where, steps=4, length=LENGTH, ahead=ahead)
    assert_close(ours, trained(Alone(), 8, "adagrad", None, steps=4, length=LENGTH)[0])
    stats = runtime.stats()
    assert stats.lookups > 4 * SAMPLES * LENGTH
    assert stats.looked_up_ahead_ratio == float(ahead)
