"""A loop whose cold rows lie on a disk equals the loop with all rows in memory, bit by bit."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_rec
from adaptive_rec.batch import TableSpec
from adaptive_rec.errors import ConfigError, ConflictError
from adaptive_rec.modules.loop.rates import named_rates
from adaptive_rec.modules.loop.setup import Setup
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.group import Alone

from .cases import few_or_many_steps
from .ranks import patch_ranks, train
from .test_resume import BREAK, STEPS, only, restore, states, through_file
from .training import CASES, QUICK_WINDOWS, Loop, Trained, assert_moved, fewer_rows

pytestmark = pytest.mark.usefixtures("small_segments")


@pytest.fixture
def on_disk(tmp_path: Path) -> dict[str, Any]:
    return {"host_memory": "1MiB", "disk": tmp_path / "rows"}


def assert_same_bits(ours: Trained, theirs: Trained) -> None:
    assert ours.losses == theirs.losses
    mine, others = ours.model.state_dict(), theirs.model.state_dict()
    assert all(torch.equal(mine[name], others[name]) for name in others)


LOOPS: list[tuple[str, str, bool, dict[str, Any]]] = [
    ("dlrm", "adagrad", True, {}),
    ("dlrm", "sgd", False, {"update": "backward"}),
    ("two_tower", "sparse_adam", True, {"prefetch_depth": 4}),
    ("sasrec", "adagrad", True, {}),
    ("sasrec", "sparse_adam", False, {}),
    ("kjt", "sgd", True, {"policy": "hybrid"}),
    ("dlrm", "adagrad", True, {"policy": "slipstream", "target_skip_ratio": 0.8, "min_touch_ratio": 0.0, "probe_ratio": 0.5}),
]


@pytest.mark.parametrize(
    ("case", "rule", "prefetch", "more", "steps"),
    [*((*LOOPS[number], 20) for number in (0, 1)), *(pytest.param(*loop, STEPS, marks=pytest.mark.slow) for loop in LOOPS)],
)
def test_rows_on_a_disk_are_those_in_memory(
    case: str, rule: str, prefetch: bool, more: dict[str, Any], steps: int, on_disk: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if steps < STEPS:
        fewer_rows(monkeypatch)
    ours = Loop(CASES[case], rule, {**more, **on_disk}, prefetch=prefetch).run(steps)

    assert_same_bits(ours, Loop(CASES[case], rule, more, prefetch=prefetch).run(steps))
    store = ours.runtime.store
    assert store.cold.on_disk
    store.close()  # nothing is compacted any more
    stats = ours.runtime.stats()
    assert stats.disk["rows_read"] == sum(log.counts.rows_read for log in store.cold.types.logs) > 500
    files = list(on_disk["disk"].rglob("*.rows"))  # some may be left that nothing needs
    assert 0 < stats.disk["segments"] <= len(files)
    assert 0 < stats.disk["size_bytes"] <= sum(file.stat().st_size for file in files)
    assert f"{stats.disk['rows_read']:,} rows read from the disk" in str(stats)
    if more.get("policy") != "hybrid":
        assert_moved(ours.runtime)


@pytest.mark.parametrize(
    ("then_on_disk", "stop", "steps"),
    [
        (True, 7, 13),
        pytest.param(True, BREAK, STEPS, marks=pytest.mark.slow),
        pytest.param(False, BREAK, STEPS, marks=pytest.mark.slow),
    ],
    ids=["disk, few steps", "disk", "memory"],
)
def test_a_state_resumes_on_the_disk_and_in_memory(
    then_on_disk: bool, stop: int, steps: int, on_disk: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if steps < STEPS:
        fewer_rows(monkeypatch)
    common: dict[str, Any] = {"rule": "adagrad", "prefetch": True}
    unbroken = Loop(only("dlrm", 0, steps), options={}, **common)
    expected = unbroken.run(steps)
    first = Loop(only("dlrm", 0, stop), options=on_disk, **common)
    losses = first.run(stop).losses
    saved = through_file(states(first))
    second = Loop(only("dlrm", stop, steps), options=on_disk if then_on_disk else {}, **common)
    restore(second, saved)
    losses += second.run(steps).losses
    assert losses == expected.losses
    theirs, ours = unbroken.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


OPTIMIZERS: dict[str, Any] = {
    "adagrad": partial(torch.optim.Adagrad, lr=0.05),
    "two rates": lambda tables: torch.optim.Adagrad([{"params": tables[:2]}, {"params": tables[2:], "lr": 0.02}], lr=0.05),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adagrad with decay": partial(torch.optim.Adagrad, lr=0.05, weight_decay=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01),
}
"""The last four move every row at every step."""


@pytest.mark.parametrize(
    ("name", "prefetch", "steps"),
    [
        *((name, True, 12) for name in ("two rates", "momentum")),
        *(pytest.param(name, prefetch, 30, marks=pytest.mark.slow) for name in OPTIMIZERS for prefetch in (True, False)),
    ],
)
def test_rows_on_a_disk_make_the_steps_of_those_in_memory(
    name: str, prefetch: bool, steps: int, on_disk: dict[str, Any]
) -> None:
    ours, theirs = (train(Alone(), OPTIMIZERS[name], steps, prefetch=prefetch, **where) for where in (on_disk, {}))
    assert ours.losses == theirs.losses
    assert all(torch.equal(ours.weights[key], theirs.weights[key]) for key in theirs.weights)
    assert ours.runtime.stats().migrated_rows > 0


@pytest.mark.parametrize(
    ("name", "ranks", "steps"),
    [("adam", 2, 8), *(pytest.param(name, 3, 25, marks=pytest.mark.slow) for name in ("adam", "adagrad"))],
)
def test_ranks_with_rows_on_a_disk_are_those_in_memory(
    name: str, ranks: int, steps: int, monkeypatch: pytest.MonkeyPatch, on_disk: dict[str, Any]
) -> None:
    on_ranks, make = patch_ranks(monkeypatch), OPTIMIZERS[name]
    found = on_ranks(ranks, lambda group: train(group, make, steps, **on_disk))
    expected = on_ranks(ranks, lambda group: train(group, make, steps))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.losses == theirs.losses
        assert all(torch.equal(ours.weights[key], theirs.weights[key]) for key in theirs.weights)
        assert ours.runtime.store.cold.on_disk
    assert len(list(on_disk["disk"].iterdir())) == ranks


@few_or_many_steps(12, 30, dtype=[torch.float32, torch.bfloat16])
def test_modules_of_their_own_are_those_in_memory(dtype: torch.dtype, steps: int, on_disk: dict[str, Any]) -> None:
    def train(**where: Any) -> list[torch.Tensor]:
        torch.manual_seed(3)
        options: dict[str, Any] = {"optimizer": "adagrad", "lr": 0.1, "dtype": dtype, "knobs": QUICK_WINDOWS, **where}
        bags = adaptive_rec.AdaptiveEmbeddingBag(3000, 8, mode="mean", **options)
        rows = adaptive_rec.AdaptiveEmbedding(2000, 8, padding_idx=0, **options)
        found = []
        for _ in range(steps):
            ids, history = (torch.rand(40).square() * 2000).long(), (torch.rand(40, 5).square() * 3000).long()
            both = bags(history) * rows(ids)
            both.float().sum().backward()
            found.append(both.detach().clone())
        with torch.no_grad():
            rows.weight[7:9] = 5.0
            found += [rows(torch.arange(5, 12)), bags.weight.clone(), rows.weight.clone()]
        return found

    ours, theirs = train(**on_disk, budget=20_000), train(budget=20_000)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_budget_follows_from_the_memory_and_a_model_is_unwrapped(
    on_disk: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer_rows(monkeypatch)
    loop = Loop(CASES["dlrm"], "adagrad", {**on_disk, "budget": None})
    loop.run(5)
    assert loop.runtime.knobs.hot_budget_bytes == 7 << 17
    with pytest.raises(ConflictError, match="hot rows must fit in run.host_memory=1MiB"):
        loop.runtime.set_knobs(hot_budget_bytes="2MiB")
    before = loop.model.state_dict()
    after = adaptive_rec.unwrap(loop.model, loop.sparse).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_folder_goes_with_the_store(tmp_path: Path) -> None:
    space = RowSpace.by_pool((TableSpec("ids", 100, 4),))
    _, _, store = Setup(host_memory="1MiB", disk=tmp_path).build(space, named_rates("sgd", 0.1, None, None), torch.float32)
    store.contents.replace_table(0, np.ones((100, 4), np.float32), np.zeros((100, 0), np.float32))
    assert len(list(tmp_path.glob("rows-*/pool-0/*.rows"))) == 1
    store.close()
    del store
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"host_memory": "1MiB"}, "host_memory and disk must be given together, got 1048576 and None"),
        ({"disk": "here"}, "host_memory and disk must be given together, got 0 and 'here'"),
        ({"host_memory": "much", "disk": "here"}, "host_memory must be a whole number of bytes.*got 'much'"),
        ({"host_memory": 1000, "budget": 2000, "disk": "here"}, "hot rows must fit in run.host_memory=1000, policy"),
        ({"host_memory": "1MiB", "disk": "/proc/none"}, "disk must be a folder that can be written to, /proc/none is not"),
    ],
    ids=str,
)
def test_what_cannot_lie_on_a_disk_is_refused_by_name(
    options: dict[str, Any], rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = nn.EmbeddingBag(100, 4)
    with pytest.raises(ConfigError, match=rule):
        adaptive_rec.wrap(nn.Sequential(table), optimizer="sgd", lr=0.1, **options)
    assert not list(tmp_path.glob("here/*"))
    assert type(table) is nn.EmbeddingBag
