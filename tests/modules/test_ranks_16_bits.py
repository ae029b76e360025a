"""Rows of 16 bits in a loop of several processes: exact where nothing is rounded, repeated by as many processes, and rounded by
dice of each process's own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.system.group import Alone, Group
from tests.modules.ranks import patch_ranks
from tests.modules.training import QUICK_WINDOWS

ROWS, SAMPLES, STEPS = 40, 12, 6
TYPES = [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]


class Model(nn.Module):
    """A table that is looked up row by row, and one in bags, of one type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 4, dtype=dtype)
        self.words = nn.EmbeddingBag(ROWS, 4, mode="sum", dtype=dtype)
        for table in (self.items, self.words):  # multiples of a quarter stay exact in 16 bits
            table.weight.data.copy_((torch.arange(ROWS * 4).view(ROWS, 4) % 17 - 8) / 4)

    def forward(self, ids_S: Tensor, bags_SL: Tensor, factor_SD: Tensor) -> Tensor:
        return ((self.items(ids_S) + self.words(bags_SL)).float() * factor_SD).sum()


def train(
    group: Group, dtype: torch.dtype, lr: float, where: str = "memory", disk: Path | None = None, looks_ahead: bool = False
) -> Any:  # fmt: skip
    """Return the losses of all ranks' samples and the weights, after some steps whose gradients are whole numbers."""
    random, model = torch.Generator().manual_seed(5), Model(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    options: Any = {"budget": "1KiB"}
    if where == "disk":
        options = {"host_memory": "4KiB", "disk": disk}
    elif where == "raw":
        options |= {"ids": "raw", "keys": {"items": torch.arange(ROWS), "words": torch.arange(ROWS)}}
    runtime = adaptive_rec.wrap(model, optimizer=optimizer, knobs=QUICK_WINDOWS, **options)
    own, batches = group.part_of(SAMPLES), []
    for _ in range(STEPS):
        ids_S, bags_SL = torch.randint(ROWS, (SAMPLES,), generator=random), torch.randint(ROWS, (SAMPLES, 2), generator=random)
        batches.append((ids_S[own], bags_SL[own], torch.randint(-2, 3, (SAMPLES, 4), generator=random)[own]))
    losses = []
    for batch in runtime.prefetch(batches, lambda one: {"items": one[0], "words": one[1]}) if looks_ahead else batches:
        optimizer.zero_grad()
        loss = group.ranks * model(*batch)  # the step averages over the ranks
        loss.backward()
        optimizer.step()
        losses.append(float(group.total(loss.detach().double().numpy().reshape(1))[0]) / group.ranks)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    runtime.close()
    return losses, weights


def trained_in_parts(group: Group, dtype: torch.dtype, stop: int, clip: float) -> dict[str, Tensor]:
    """Return the weights after ten steps of Adagrad, saved and resumed after some of them."""
    random, saved, model = torch.Generator().manual_seed(7), None, Model(dtype)
    for part in (range(stop), range(stop, 10)):
        model = Model(dtype)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        runtime = adaptive_rec.wrap(model, optimizer=optimizer, budget="1KiB", knobs=QUICK_WINDOWS)
        for one, state in zip((model, optimizer, runtime), saved or (), strict=False):
            one.load_state_dict(state)
        for _ in part:
            ids_SL, own = torch.randint(ROWS, (SAMPLES, 3), generator=random), group.part_of(SAMPLES)
            optimizer.zero_grad()
            loss = model(ids_SL[own, 0], ids_SL[own, 1:], torch.ones(1, 4)) * group.ranks
            (loss + model.items.weight.float().square().mean()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
        saved = copy.deepcopy([one.state_dict() for one in (model, optimizer, runtime)])
        runtime.close()
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(value.dtype == other[name].dtype and torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("where", ["memory", *(pytest.param(each, marks=pytest.mark.slow) for each in ("disk", "raw"))])
def test_where_no_number_is_rounded_ranks_equal_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, where: str
) -> None:
    on_ranks = patch_ranks(monkeypatch)
    losses, weights = train(Alone(), dtype, 0.25, where, tmp_path)
    if where != "raw":
        assert not same(weights, dict(Model(dtype).state_dict()))
    for ahead in (False, True):
        for found in on_ranks(3, lambda group, ahead=ahead: train(group, dtype, 0.25, where, tmp_path, ahead)):
            assert found[0] == losses
            assert same(found[1], weights)


@pytest.mark.parametrize("dtype", TYPES)
def test_small_updates_are_kept_on_average_by_dice_of_each_rank(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Updates of a hundredth of the distance of two numbers would all be lost if they were rounded to the nearest."""
    on_ranks = patch_ranks(monkeypatch)
    once, again = (on_ranks(2, lambda group: train(group, dtype, 1e-4), seed) for seed in (1, 2))
    assert same(once[0][1], once[1][1])
    assert same(once[0][1], again[0][1])
    _, exact = train(Alone(), torch.float32, 1e-4)
    _, alone = train(Alone(), dtype, 1e-4)
    first = Model(torch.float32).state_dict()
    assert not same(once[0][1], alone)
    for name, weight in once[0][1].items():
        moved, wanted = (weight.float() - first[name]).double(), (exact[name] - first[name]).double()
        deviation = float((wanted.abs() * 2.0**-7).sum().sqrt())
        assert abs(float((moved - wanted).sum())) < 5 * deviation
        assert float(moved.abs().sum()) > 0


@pytest.mark.parametrize("dtype", TYPES)
def test_a_loop_resumes_bit_by_bit_and_clips_alike(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    on_ranks = patch_ranks(monkeypatch)
    whole, parts = (on_ranks(2, lambda group, stop=stop: trained_in_parts(group, dtype, stop, 3.0)) for stop in (0, 4))
    assert same(whole[0], whole[1])
    assert same(whole[0], parts[1])
    alone = trained_in_parts(Alone(), dtype, 0, 3.0)
    for name, weight in whole[0].items():
        torch.testing.assert_close(weight.float(), alone[name].float(), rtol=0.02, atol=0.02)
