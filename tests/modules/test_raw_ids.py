"""Modules that are given raw ids train as with the same ids numbered beforehand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adaptive_rec import (
    AdaptiveEmbedding,
    AdaptiveEmbeddingBag,
    AdaptiveEmbeddingBagCollection,
    AdaptiveEmbeddingCollection,
    EmbeddingBagConfig,
)
from adaptive_rec.batch import Position
from adaptive_rec.config.tree import load_config
from adaptive_rec.recipes.columns import LogFile
from adaptive_rec.recipes.movietweetings import LIKED_FROM, LOG_COLUMNS
from adaptive_rec.runtime.assemble import assemble
from tests.data.conftest import find
from tests.kernels.reference.fill import fill_rows
from tests.matrix import always, grid

from .cases import few_or_many_steps, in_turn
from .jagged import Jagged, draw
from .raw_keys import (
    DIM,
    KEYS,
    ROWS,
    SEED,
    STEPS,
    Tower,
    drawn,
    first_values,
    keys_at,
    numbered,
    options,
    rows_by_key,
    train,
)
from .test_resume import through_file
from .training import assert_moved

pytestmark = pytest.mark.usefixtures("small_segments")


@few_or_many_steps(
    20,
    STEPS,
    how=[
        ("sum", "adagrad", True),
        ("mean", torch.optim.SGD, False),
        ("rows", torch.optim.Adagrad, True),
        ("rows", "lazy_adam", False),
    ],
    where=[(torch.float32, True), (torch.float64, False), (torch.float64, True), (torch.float32, False)],
)
def test_a_module_trains_as_with_ids_numbered_beforehand(
    how: tuple[str, Any, bool], where: tuple[torch.dtype, bool], steps: int, tmp_path: Path
) -> None:
    """The losses, and each id's row, to the last bit, from first values that are the trainer's."""
    (kind, optimizer, prefetch), (dtype, on_disk) = how, where
    batches, seen = drawn(steps), numbered(drawn(steps))
    rule = {"lr": 0.1} if isinstance(optimizer, str) else {}
    given = options(tmp_path if on_disk else None, optimizer=optimizer, dtype=dtype, **rule)
    make: Any = AdaptiveEmbedding if kind == "rows" else AdaptiveEmbeddingBag
    shape = {} if kind == "rows" else {"mode": kind}
    own = np.argsort(seen)[np.count_nonzero(seen < 0) :]  # places in KEYS by number
    weight = torch.zeros(ROWS, DIM, dtype=dtype)
    weight[: len(own)] = first_values(KEYS[own], dtype=dtype)
    found = []
    for ids_of, module in (
        (keys_at, make(ROWS, DIM, **shape, **given, ids="raw")),
        (lambda places: torch.from_numpy(seen)[places], make(ROWS, DIM, _weight=weight, **shape, **given)),
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
    assert counts == {"keys": len(own), "evicted": 0, "refused": 0, "lookups": steps * 72, "lookups_shared": 0}
    assert f"{len(own)} raw ids have a row of their own, 0.0% of lookups share a row" in str(raw.runtime.stats())
    if kind == "sum":  # a step of several items is not looked up ahead as a whole
        assert raw.runtime.stats().looked_up_ahead_ratio == 1


def test_tables_begin_as_those_of_a_run_of_the_command_line() -> None:
    """Shared rows, rows of ids, and which row an id has."""
    settings = [
        "data.ids=raw",
        "data.shared_rows=3",
        "run.precision=float64",
        f"run.seed={SEED}",
        "knobs.admit_after=2",
    ]
    trainer = assemble(load_config("tiny", {}, settings))
    source: Any = trainer.source
    raw = next(source._source.train_batches(Position(seed=SEED), 500))
    next(source.train_batches(Position(seed=SEED), 500))
    names = [feature.name for feature in source.features]
    length_BF = np.diff(raw.offsets).reshape(-1, len(names))
    by_feature = np.argsort(
        np.repeat(np.tile(np.arange(len(names)), len(length_BF)), length_BF.reshape(-1)), kind="stable"
    )
    batch = Jagged(names, torch.from_numpy(raw.ids_N[by_feature]), torch.from_numpy(length_BF.T.reshape(-1).copy()))
    tables = [
        EmbeddingBagConfig(table.name, table.dim, table.rows, [feature])
        for table, feature in zip(source._source.tables, names, strict=True)
    ]
    collection = AdaptiveEmbeddingBagCollection(
        tables, ids="raw", shared_rows=3, seed=SEED, knobs={"admit_after": 2}, optimizer="sgd", lr=0.1
    )
    collection(batch)

    assert collection.runtime.stats().raw_ids["keys"] > 100
    assert 0.05 < collection.runtime.stats().raw_ids["lookups_shared"] / len(raw.ids_N) < 0.9
    for number, table in enumerate(tables):
        weight: Any = collection.embedding_bags[table.name].weight
        assert torch.equal(weight.whole(), torch.from_numpy(trainer.store.contents.export(number)[0]))


def jagged(seed: int, size: int = 20) -> Jagged:
    """Bags of four features, as places in KEYS."""
    return draw({"word": 600, "place": 300, "hour": 24, "query": 700}, size, seed, weighted=True)


def of_keys(batch: Jagged) -> Jagged:
    return Jagged(batch.names, keys_at(batch.ids), batch.counts, batch.scale)


def tables() -> list[EmbeddingBagConfig]:
    """One for two features, and a feature of two tables."""
    read = {"text": ["word", "query"], "place": ["place"], "wide": ["place", "hour"]}
    pooling = ["sum", "mean", "sum"]
    given = zip(read.items(), (DIM, DIM + 2, DIM), pooling, strict=True)
    return [EmbeddingBagConfig(name, dim, ROWS, features, pooling=how) for (name, features), dim, how in given]


@few_or_many_steps(12, 25, kind=["bags", "weighted", "rows"], prefetch=[True, False])
def test_a_collection_trains_as_with_ids_numbered_beforehand(kind: str, prefetch: bool, steps: int) -> None:
    """Their numbers are their places in KEYS, in every table."""
    make: Any = AdaptiveEmbeddingCollection if kind == "rows" else AdaptiveEmbeddingBagCollection
    weighted = {"is_weighted": True} if kind == "weighted" else {}
    configs = [replace(one, pooling="sum") if kind == "weighted" else one for one in tables()]
    configs = [replace(one, embedding_dim=DIM) if kind == "rows" else one for one in configs]
    raw, plain = (
        make(configs, **ids, **weighted, **options(optimizer="adagrad", lr=0.1)) for ids in ({"ids": "raw"}, {})
    )
    modules = [getattr(one, "embeddings" if kind == "rows" else "embedding_bags") for one in (raw, plain)]
    with torch.no_grad():
        for number, config in enumerate(configs):
            modules[1][config.name].weight[: len(KEYS)] = first_values(KEYS, number, dim=config.embedding_dim)
    losses: list[list[float]] = []
    for collection, given in ((raw, of_keys), (plain, lambda batch: batch)):
        losses.append([])
        items: Any = [given(jagged(seed)) for seed in range(steps)]
        for batch in collection.runtime.prefetch(items, sparse=lambda batch: batch) if prefetch else items:
            vectors = collection(batch)
            loss = sum(one.values().sin().sum() for one in (vectors.values() if kind == "rows" else [vectors]))
            loss.backward()
            losses[-1].append(loss.item())

    assert losses[0] == losses[1]
    place_of = {key: place for place, key in enumerate(KEYS.tolist())}
    for config in configs:
        known = rows_by_key(modules[0][config.name])
        assert len(known) > 15
        assert all(
            torch.equal(row, modules[1][config.name].weight[place_of[key]].detach()) for key, row in known.items()
        )
    assert_moved(raw.runtime)
    again = make(configs, ids="raw", **weighted, **options(optimizer="adagrad", lr=0.1))
    again.load_state_dict(through_file(raw.state_dict()))
    assert all(
        torch.equal(one, other)
        for one, other in zip(again.state_dict().values(), raw.state_dict().values(), strict=True)
    )
    vectors = [one.eval()(of_keys(jagged(99))) for one in (raw, again)]
    for one, other in zip(*([*v.values()] if kind == "rows" else [v] for v in vectors), strict=True):
        assert torch.equal(one.values(), other.values())


@grid(always, in_turn, prefetch=[True, False], on_disk=[True, False])
def test_rows_that_are_on_the_device_before_an_id_has_them_begin_alike(
    prefetch: bool, on_disk: bool, tmp_path: Path
) -> None:
    found = []
    for policy in ("hybrid", "device_only"):
        how = options(tmp_path / policy if on_disk else None, optimizer="adagrad", lr=0.1, policy=policy)
        table = AdaptiveEmbeddingBag(ROWS, DIM, mode="sum", ids="raw", **how)
        items: Any = [keys_at(places) for places in drawn(20)]
        found.append(
            train(
                Tower(table, torch.float64),
                table.runtime.prefetch(items, sparse=lambda ids: ids) if prefetch else items,
                None,
            )
        )
        assert table.runtime.stats().hot_rows == (0 if policy == "hybrid" else ROWS + 1)
    assert found[0] == found[1]


def test_a_recommender_of_real_ratings_trains_on_64_bit_ids() -> None:
    """Two tables in a loop, on MovieTweetings: users and films by ids of 64 bits, and by numbers in the order of time."""
    log = LogFile(find("movietweetings_141695.dat.zst"), LOG_COLUMNS, False, separator="::").rows()
    log = log[np.argsort(log[:, 3], kind="stable")][:6000]
    labels = torch.from_numpy((log[:, 2] >= LIKED_FROM).astype(np.float64))
    number_of = [
        {one: number for number, one in enumerate(dict.fromkeys(log[:, column].tolist()))} for column in (0, 1)
    ]
    numbers = [torch.tensor([of[one] for one in log[:, column].tolist()]) for column, of in enumerate(number_of)]
    long = [np.random.default_rng(1).integers(-(2**63), 2**63, len(of), dtype=np.int64) for of in number_of]
    runs = []
    for raw in (True, False):
        torch.manual_seed(4)
        both = []
        for keys in long:
            weight = torch.zeros(len(keys), DIM)
            fill_rows(SEED, 0, 1 / np.sqrt(len(keys)), keys, weight.numpy())
            ids: dict[str, Any] = {"ids": "raw"} if raw else {"_weight": weight}
            both.append(AdaptiveEmbedding(len(keys), DIM, **ids, **options(optimizer=torch.optim.Adagrad)))
        top = nn.Linear(DIM, 1)
        optimizer = torch.optim.Adagrad([*both[0].parameters(), *both[1].parameters(), *top.parameters()], lr=0.1)
        users, films = (torch.from_numpy(keys)[of] if raw else of for keys, of in zip(long, numbers, strict=True))
        losses = []
        for some in torch.arange(len(log)).split(200):
            scores = top(both[0](users[some]) * both[1](films[some])).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(scores, labels[some])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(top.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        runs.append((losses, both))
    assert runs[0][0] == runs[1][0]
    for raw_table, plain, keys in zip(runs[0][1], runs[1][1], long, strict=True):
        known = rows_by_key(raw_table)
        assert len(known) == len(keys) > 1000
        assert torch.equal(torch.stack([known[key] for key in keys.tolist()]), plain.weight.whole())  # type: ignore[operator]
