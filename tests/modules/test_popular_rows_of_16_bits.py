"""A row of 16 bits that a step looks up thousands of times: its gradients are summed in 32 bits, in every home.

In bfloat16 a sum of ones stops at 256, as 257 is rounded back, and in float16 at 2048.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.system.group import Alone, Group

from .ranks import patch_ranks
from .test_device import _device  # noqa: F401 - a fixture

ROWS, DIM, POPULAR, LOOKUPS, LR = 12, 4, 3, 3008, 2**-11
MOVED = -LOOKUPS * LR
"""How far the popular row moves; a number of both types."""

TYPES = [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]
HOMES: dict[str, Any] = {
    "hot": {"policy": "device_only", "budget": "1MiB"}, "cold": {"policy": "hybrid", "budget": 0}, "disk": {"host_memory": "4KiB"}
}  # fmt: skip


class Model(nn.Module):
    """A table that is read row by row, and one whose popular row stands often in one bag. All rows are 0."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.items = nn.Embedding.from_pretrained(torch.zeros(ROWS, DIM, dtype=dtype), freeze=False)
        self.words = nn.EmbeddingBag.from_pretrained(torch.zeros(ROWS, DIM, dtype=dtype), mode="sum", freeze=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.items(ids).float().sum() + self.words(ids[None]).float().sum()


def stepped(group: Group, dtype: torch.dtype, how: str, home: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tables after a step whose gradient is 1 for each lookup."""
    model = Model(dtype)
    optimizer = None if how == "backward" else torch.optim.SGD(model.parameters(), lr=LR)
    rule = {"optimizer": "sgd", "lr": LR} if optimizer is None else {"optimizer": optimizer}
    adaptive_rec.wrap(model, **rule, **home)
    ids = torch.full((LOOKUPS + 1,), POPULAR)
    ids[7] = 1
    own, passes = ids.tensor_split(group.ranks)[group.rank], 3 if how == "three passes" else 1
    for part in own.tensor_split(passes):
        (model(part) * group.ranks).backward()
    if how == "clipped":
        nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    if optimizer is not None:
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def check(found: dict[str, Tensor], dtype: torch.dtype) -> None:
    wanted = torch.zeros(ROWS, DIM, dtype=dtype)
    wanted[POPULAR], wanted[1] = MOVED, -LR
    for name, rows in found.items():
        assert rows.dtype == dtype
        assert torch.equal(rows, wanted), name


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("home", "how"),
    [
        *((home, "step") for home in HOMES), ("cold", "backward"), ("disk", "clipped"), ("hot", "three passes"),
        *(
            pytest.param(home, how, marks=pytest.mark.slow)
            for home in HOMES
            for how in ("backward", "clipped", "three passes")
        ),
    ],
)  # fmt: skip
def test_a_popular_row_gets_the_whole_sum(home: str, how: str, dtype: torch.dtype, tmp_path: Path) -> None:
    disk = {"disk": tmp_path} if home == "disk" else {}
    check(stepped(Alone(), dtype, how, {**HOMES[home], **disk}), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("home", ["cold", pytest.param("disk", marks=pytest.mark.slow)])
def test_ranks_sum_what_one_process_sums(home: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = {"disk": tmp_path} if home == "disk" else {}
    for found in patch_ranks(monkeypatch)(2, lambda group: stepped(group, dtype, "step", {**HOMES[home], **disk})):
        check(found, dtype)


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("home", ["hot", "cold", pytest.param("disk", marks=pytest.mark.slow)])
def test_a_device_sums_what_a_cpu_sums(home: str, dtype: torch.dtype, tmp_path: Path) -> None:
    disk = {"disk": tmp_path, "budget": "1KiB"} if home == "disk" else {}
    check(stepped(Alone(), dtype, "step", {**HOMES[home], **disk}), dtype)


def test_the_state_of_a_popular_row_is_of_32_bits() -> None:
    """The squares of Adagrad would stop at 256 too."""
    model = Model(torch.bfloat16)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    runtime = adaptive_rec.wrap(model, optimizer=optimizer, budget="1KiB")
    for _ in range(300):
        optimizer.zero_grad()
        model(torch.tensor([POPULAR])).backward()
        optimizer.step()
    assert (runtime.store.contents.export(0)[1][POPULAR] == 300).all()
