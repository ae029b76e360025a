"""`unwrap` of modules with raw ids: ordinary modules that take the same ids, with the same outputs."""

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
from adaptive_rec.modules.api.raw_id_modules import RawIdEmbedding, RawIdEmbeddingBag

from .raw_keys import KEYS, drawn, keys_at, options
from .test_resume import through_file
from .test_wrap_raw import IDS, PADDING, Towers, items, of_ids, train, wrapped

STRANGERS = torch.tensor([2**63 - 1, -(2**63), 0, -1, PADDING, 17, 10**18])
"""Ids of which some have no row: the hash by which they share rows must be that of the runtime."""
HOW: dict[str, Any] = {"knobs": {"admit_after": 3}}


def trained(where: Path | None = None, kind: Any = torch.optim.Adagrad) -> tuple[Towers, torch.optim.Optimizer, Any]:
    """A model whose `words` have ids from the start, and whose `places` are admitted while it trains."""
    model = Towers()
    model.hours.weight.requires_grad_(False)
    for module in (model.words, model.places):
        module.sparse = kind is torch.optim.SparseAdam
    optimizer = kind([model.words.weight, model.places.weight], lr=0.05)
    runtime = wrapped(model, {"words": IDS["words"][:200], "places": None}, where, optimizer=optimizer, **HOW)
    train(model, map(of_ids, items(20)), optimizer)
    assert runtime.stats().raw_ids["lookups_shared"] > 50
    optimizer.zero_grad()
    return model, optimizer, runtime


def outputs(model: Any) -> list[Tensor]:
    """What a model makes of its ids and of others, in evaluation mode."""
    words, places, _ = map(torch.cat, zip(*map(of_ids, items(6, 9)), strict=True))
    model.eval()
    with torch.no_grad():
        bags = [model.words(words), model.words(STRANGERS, torch.tensor([0, 2, 2]))]
        found = [*bags, model.places(places), model.places(STRANGERS)]
    model.train()
    return found


def assert_alike(found: list[Tensor], expected: list[Tensor]) -> None:
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)  # bags are summed in another order
    for ours, theirs in zip(found[2:], expected[2:], strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", [torch.optim.Adagrad, pytest.param(torch.optim.SparseAdam, marks=pytest.mark.slow)])
@pytest.mark.parametrize("on_disk", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["memory", "disk"])
def test_an_unwrapped_model_takes_the_same_raw_ids_and_goes_on_training(tmp_path: Path, kind: Any, on_disk: bool) -> None:
    """Losses too, as long as no new id would get a row."""
    model, optimizer, runtime = trained(tmp_path / "rows" if on_disk else None, kind)
    known = next(model.places.keys_and_rows(10_000))[0]
    assert 10 < len(known) < len(KEYS)
    given = [(IDS["words"][:200][words % 200], known[places % len(known)], hours) for words, places, hours in items(8, 4)]
    expected, saved = outputs(model), through_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    held = runtime.state_dict()
    losses = train(model, given, optimizer)
    after = outputs(model)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    runtime.load_state_dict(held)
    optimizer.zero_grad()

    assert adaptive_rec.unwrap(model, optimizer) is model
    assert runtime.closed
    assert (type(model.words), type(model.places), type(model.hours)) == (RawIdEmbeddingBag, RawIdEmbedding, nn.Embedding)
    assert all(type(one) is nn.Parameter for one in model.parameters())
    assert_alike(outputs(model), expected)
    torch.testing.assert_close(train(model, given, optimizer), losses, rtol=1e-12, atol=0)
    for ours, theirs in zip(outputs(model), after, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_state_dicts_of_wrapped_and_unwrapped_models_are_those_of_each_other() -> None:
    model, _, _ = trained()
    wrapped_state, expected = through_file(model.state_dict()), outputs(model)
    state = through_file(adaptive_rec.unwrap(model).state_dict())
    assert list(state) == list(wrapped_state)
    assert all(torch.equal(state[name], wrapped_state[name]) for name in state)
    fresh = Towers()
    fresh.hours.weight.requires_grad_(False)
    optimizer = torch.optim.Adagrad([fresh.words.weight, fresh.places.weight], lr=0.05)
    wrapped(fresh, {"words": None, "places": None}, optimizer=optimizer, **HOW)
    fresh.load_state_dict(state)
    assert_alike(outputs(fresh), expected)
    emptied = Towers()
    emptied.hours.weight.requires_grad_(False)
    optimizer = torch.optim.Adagrad([emptied.words.weight, emptied.places.weight], lr=0.05)
    wrapped(emptied, {"words": None, "places": None}, optimizer=optimizer, **HOW)
    adaptive_rec.unwrap(emptied)
    for assign in (False, True):
        emptied.load_state_dict(wrapped_state, assign=assign)
        assert_alike(outputs(emptied), expected)
    pairs = state["places.raw_ids"]
    for wrong, rule in (
        (pairs.int(), r"raw_ids must be of shape \(K, 2\) and int64"),
        (pairs - torch.tensor([[0, 9]]), r"raw_ids must have rows in \[3, 304\)"),
        (torch.cat([pairs[:1], pairs]), "raw_ids must have different ids"),
    ):
        with pytest.raises(RuntimeError, match=rule):
            emptied.load_state_dict({**state, "places.raw_ids": wrong})
    assert_alike(outputs(emptied), expected)


def test_an_unwrapped_model_with_raw_ids_is_copied_and_exported_and_not_wrapped_again(tmp_path: Path) -> None:
    model, _, _ = trained()
    adaptive_rec.unwrap(model)
    expected = outputs(model)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for made in (copy.deepcopy(model), loaded, copy.deepcopy(model).half().double()):
        assert torch.equal(made.places.row_numbers(STRANGERS), model.places.row_numbers(STRANGERS))
    assert "raw_ids=" in repr(made)
    assert_alike(outputs(loaded), expected)
    exported = torch.export.export(model.places, (STRANGERS,)).module()
    assert torch.equal(exported(STRANGERS), model.places(STRANGERS))
    numbers = model.places.row_numbers(STRANGERS)  # what an ordinary module of the weight takes
    assert torch.equal(nn.Embedding.from_pretrained(model.places.weight.detach())(numbers), model.places(STRANGERS))
    del model.hours
    with pytest.raises(ConfigError, match='its raw ids have rows already: wrap a fresh model with ids="raw"'):
        adaptive_rec.wrap(model, optimizer="sgd", lr=0.1)


def test_modules_that_share_a_table_and_one_without_rows_for_ids() -> None:
    model = nn.ModuleDict({"one": nn.Embedding(40, 4), "bag": nn.EmbeddingBag(40, 4, mode="sum")})
    model["bag"].weight = model["one"].weight
    adaptive_rec.wrap(model, optimizer="sgd", lr=0.1, ids="raw", keys={"one": None}, **options(shared_rows=3))
    model.eval()
    ids = keys_at(drawn(1, (9, 2))[0])
    expected = model["one"](ids), model["bag"](ids)
    adaptive_rec.unwrap(model)
    assert model["bag"].weight is model["one"].weight
    assert torch.equal(model["one"](ids), expected[0])
    torch.testing.assert_close(model["bag"](ids), expected[1])
    table = AdaptiveEmbedding(9, 4, padding_idx=-1, ids="raw", **options(optimizer="sgd", lr=0.1))
    table(ids)
    table.eval()
    expected = table(STRANGERS), table(ids)
    adaptive_rec.unwrap(table)
    assert type(table) is RawIdEmbedding
    assert torch.equal(table(STRANGERS), expected[0])
    assert torch.equal(table(ids), expected[1])
    with pytest.raises(ValueError, match="input must"):
        table(ids.double())


@pytest.mark.filterwarnings("error")
def test_ids_that_lie_apart_are_looked_up_without_a_warning() -> None:
    """A column of a history, as `history[:, 0]`: torch's bisection warns of such a tensor, once in a program."""
    model, optimizer, _ = trained()
    adaptive_rec.unwrap(model, optimizer)
    ids = torch.cat([IDS["words"][:6], STRANGERS[:2]]).view(4, 2)
    assert not ids[:, 1].is_contiguous()
    assert torch.equal(model.words.row_numbers(ids[:, 1]), model.words.row_numbers(ids)[:, 1])
    assert torch.equal(model.places.row_numbers(ids.T), model.places.row_numbers(ids).T)
