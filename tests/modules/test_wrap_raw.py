"""`wrap` with raw ids: rows keep their values where ids are named for them, and are dropped only where that is said."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec import AdaptiveEmbedding
from adaptive_rec.errors import ConfigError

from .raw_keys import KEYS, drawn, options, rows_by_key
from .test_resume import through_file

ROWS, DIM, PADDING = 300, 6, 5


class Towers(nn.Module):
    """Words in bags, with padding, and places, one a sample; hours are numbered."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.EmbeddingBag(ROWS, DIM, mode="sum", padding_idx=PADDING, dtype=torch.float64)
        self.places = nn.Embedding(ROWS, DIM, dtype=torch.float64)
        self.hours = nn.Embedding(24, DIM, dtype=torch.float64)
        self.top = nn.Linear(DIM, 1, dtype=torch.float64)

    def forward(self, words: Tensor, places: Tensor, hours: Tensor) -> Tensor:
        return self.top(self.words(words) * self.places(places) + self.hours(hours)).sin().mean()


def train(model: nn.Module, items: Any, optimizer: torch.optim.Optimizer) -> list[float]:
    losses = []
    for item in items:
        optimizer.zero_grad()
        loss = model(*item)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def items(steps: int, seed: int = 0) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Numbers of words, places and hours."""
    words, places, hours = (drawn(steps, shape, seed + n) for n, shape in enumerate([(24, 3), (24,), (24,)]))
    return [(w % ROWS, p % ROWS, h % 24) for w, p, h in zip(words, places, hours, strict=True)]


IDS = {"words": torch.from_numpy(KEYS[:ROWS].copy()), "places": torch.from_numpy(KEYS[-ROWS:].copy())}
IDS["words"][PADDING] = PADDING


def of_ids(item: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    words, places, hours = item
    return IDS["words"][words], IDS["places"][places], hours


def lookups(item: tuple[Tensor, Tensor, Tensor]) -> dict[str, Tensor]:
    return {"words": item[0], "places": item[1]}


def wrapped(model: Towers, keys: Any, where: Path | None = None, **how: Any) -> Any:
    return adaptive_rec.wrap(model, ids="raw", keys=keys, **options(where, shared_rows=3, **how))


@pytest.mark.parametrize("kind", [torch.optim.Adagrad, torch.optim.SparseAdam])
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_a_trained_model_goes_on_with_the_ids_of_its_rows(tmp_path: Path, kind: Any, on_disk: bool) -> None:
    """As one that is wrapped with its numbers: losses, rows and optimizer state, to the last bit."""
    first = Towers()
    first.hours.weight.requires_grad_(False)
    for module in (first.words, first.places):
        module.sparse = kind is torch.optim.SparseAdam
    optimizer = kind([first.words.weight, first.places.weight], lr=0.05)
    train(first, items(10), optimizer)
    optimizer.zero_grad()
    (plain, own), (raw, raws_own) = (copy.deepcopy((first, optimizer)) for _ in range(2))
    where = [tmp_path / name if on_disk else None for name in ("plain", "raw")]

    runtime = adaptive_rec.wrap(plain, **options(where[0], optimizer=own))
    expected = train(plain, runtime.prefetch(items(30, 5), sparse=lookups), own)
    runtime = wrapped(raw, IDS, where[1], optimizer=raws_own)
    assert "places: 304 rows x 6, 300 with a raw id" in str(runtime.report)
    assert train(raw, runtime.prefetch(map(of_ids, items(30, 5)), sparse=lookups), raws_own) == expected

    assert runtime.stats().raw_ids["lookups_shared"] == 0
    for name, module in (("words", raw.words), ("places", raw.places)):
        known, weight = rows_by_key(module), getattr(plain, name).weight.whole()
        assert len(known) == ROWS - (name == "words")
        for place, key in enumerate(IDS[name].tolist()):
            padding = name == "words" and place == PADDING
            assert torch.equal(module.weight[-1] if padding else known[key], weight[place])


def test_a_table_whose_rows_are_dropped_begins_as_one_of_raw_ids() -> None:
    """Also after a restart from state dicts; the table that is not named stays as it is."""
    model, table = Towers(), AdaptiveEmbedding(ROWS, DIM, ids="raw", shared_rows=3, **options(optimizer="sgd", lr=0.1))
    optimizer = torch.optim.SGD([model.places.weight], lr=0.1)
    runtime = wrapped(model, {"places": None}, optimizer=optimizer, knobs={"admit_after": 2})
    assert "words, its ids are numbers of rows, as keys does not name it" in str(runtime.report)
    assert type(model.words) is nn.EmbeddingBag
    given = [(words, IDS["places"][places], hours) for words, places, hours in items(30)]
    train(model, given[:20], optimizer)
    state = through_file([one.state_dict() for one in (model, optimizer, runtime)])
    expected = train(model, given[20:], optimizer)
    again = Towers()
    optimizer = torch.optim.SGD([again.places.weight], lr=0.1)
    runtime = wrapped(again, {"places": None}, optimizer=optimizer, knobs={"admit_after": 2})
    for one, saved in zip((again, optimizer, runtime), state, strict=True):
        one.load_state_dict(saved)
    assert train(again, given[20:], optimizer) == expected
    assert 0 < runtime.stats().raw_ids["lookups_shared"] < runtime.stats().raw_ids["lookups"]

    model, keys = Towers(), IDS["places"][:50]
    runtime = wrapped(model, {"places": None}, optimizer="sgd", lr=0.1)
    assert torch.equal(model.places(keys), table(keys).double())


def test_what_wrap_cannot_do_is_refused_by_name_and_leaves_the_model() -> None:
    model, ids = Towers(), torch.arange(9)
    for keys, rule in (
        (None, r"keys must name the modules that are given raw ids \(words, places, hours\), each .*, or with None"),
        ({}, "keys must name the modules that are given raw ids"),
        ({"plaices": None}, "keys must name modules of the model .*, got plaices: there are words, places, hours"),
        (
            {"places": ids.double()},
            "keys of places must be a tensor .* of torch.int64, or None, got .* of torch.float64",
        ),
        ({"places": [1, 2]}, "keys of places must be a tensor .* got list"),
        ({"places": torch.arange(ROWS + 1)}, "keys of places must be 1 to 300, .* got 301"),
        ({"places": ids % 8}, "keys of places must differ, some are given twice"),
        ({"words": ids + 1}, "keys of words must have its padding_idx, 5, at that very place, .* got 6"),
        ({"words": torch.tensor([PADDING])}, "keys of words must have its padding_idx, 5, .* got it elsewhere"),
    ):
        with pytest.raises(ConfigError, match=rule):
            wrapped(model, keys, optimizer="sgd", lr=0.1)
    with pytest.raises(ConfigError, match='keys must be left out unless ids="raw", got those of words'):
        adaptive_rec.wrap(model, keys={"words": None}, optimizer="sgd", lr=0.1)
    with pytest.raises(ConfigError, match="initial_accumulator_value must be 0 where ids are raw, .* got 0.1"):
        wrapped(model, IDS, optimizer=torch.optim.Adagrad(model.parameters(), initial_accumulator_value=0.1))
    model.places.weight.requires_grad_(False)
    with pytest.raises(ConfigError, match="got places: frozen: its weight requires no gradient"):
        wrapped(model, {"places": None}, optimizer="sgd", lr=0.1)
    model.places.weight.requires_grad_(True)
    model(*items(1)[0]).backward()
    with pytest.raises(ConfigError, match="the weight of words must have no gradient when its ids become raw"):
        wrapped(model, {"words": None}, optimizer=torch.optim.SGD)
    tied = nn.ModuleDict({"goods": nn.Embedding(9, 4), "scores": nn.Linear(4, 9, bias=False)})
    tied["scores"].weight = tied["goods"].weight
    with pytest.raises(
        ConfigError, match="a module Linear has the weight of goods, whose rows it would read by their numbers"
    ):
        adaptive_rec.wrap(tied, ids="raw", keys={"goods": None}, optimizer=torch.optim.SGD)
    assert type(model.words) is nn.EmbeddingBag
    assert type(model.words.weight) is nn.Parameter
