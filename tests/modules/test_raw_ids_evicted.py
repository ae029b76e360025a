"""Raw ids of a user's loop that lose their rows: the same ones as in a run of the command line."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive_rec import AdaptiveEmbeddingBag, AdaptiveEmbeddingBagCollection, EmbeddingBagConfig
from adaptive_rec.batch import Batch, Position
from adaptive_rec.embedding.host import first_bound
from adaptive_rec.kernels.fill import fill_rows
from tests.runtime.test_eviction import ReplacedIds, replaced_ids, rows_by_key, run_of  # noqa: F401

from .jagged import Jagged
from .raw_keys import DIM, drawn, keys_at, leave_sooner, options
from .raw_keys import rows_by_key as keys_and_values
from .test_resume import through_file

STEPS, AHEAD = 260, 64
KNOBS = "reclassify_every", "sample_ratio", "evict_ratio", "evict_after", "admit_after", "hysteresis", "decay"
RUN = ["knobs.decay=0.6", "run.split=never", "knobs.admit_after=2", "optimizer.embedding=adagrad"]


class Pace:
    """Says when things happen that are stated for the product's own distance between the choice of ids and their leaving."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, steps: int) -> int:
        return round(steps * self.factor)

    def settings(self) -> list[str]:
        steps = {"run.steps": STEPS, "knobs.reclassify_every": 20, "knobs.evict_after": 60}
        return [*RUN, *(f"{name}={self(number)}" for name, number in steps.items())]


@pytest.fixture(params=[0.2, pytest.param(1.0, marks=pytest.mark.slow)], ids=["sooner", "as it is"])
def pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pace:
    found = Pace(request.param)
    leave_sooner(monkeypatch, request.param)
    monkeypatch.setattr(ReplacedIds, "every", found(80))
    return found


def jagged(batch: Batch, names: list[str]) -> Jagged:
    """The lookups of a batch, ordered by feature."""
    length_BF = np.diff(batch.offsets).reshape(-1, len(names))
    feature_N = np.repeat(np.tile(np.arange(len(names)), len(length_BF)), length_BF.reshape(-1))
    order = np.argsort(feature_N, kind="stable")
    return Jagged(names, torch.from_numpy(batch.ids_N[order]), torch.from_numpy(length_BF.T.reshape(-1).copy()))


class Loop:
    """The dense part of a run, over a collection in a loop of the user's own."""

    def __init__(self, folder: Path, pace: Pace, on_disk: bool = False, depth: int | None = None, **knobs: float) -> None:
        run = run_of(folder / "run", *pace.settings())
        config, self.dense, self.depth, self.losses = run.config, run.dense, depth, 0.0
        source = ReplacedIds(config)
        self.seed, self.names_of_tables = config.run.seed, [table.name for table in source.tables]
        self.names = [feature.name for feature in source.features]
        batches = source.train_batches(Position(seed=config.run.seed), config.run.batch_size)
        self.items = [
            (
                torch.from_numpy(batch.dense_BX).double(),
                torch.from_numpy(batch.labels_B).double(),
                jagged(batch, self.names),
            )
            for batch in islice(batches, pace(STEPS))
        ]
        tables = [
            EmbeddingBagConfig(table.name, table.dim, table.rows, [name])
            for table, name in zip(source.tables, self.names, strict=True)
        ]
        given = config.knobs.model_dump(include=set(KNOBS))
        disk: dict[str, Any] = {"host_memory": "1MiB", "disk": folder / "rows"} if on_disk else {}
        self.collection = AdaptiveEmbeddingBagCollection(
            tables, ids="raw", shared_rows=3, seed=config.run.seed, budget="24KiB", dtype=torch.float64, optimizer="adagrad",
            lr=config.optimizer.embedding_lr, eps=config.optimizer.eps, **disk,
            knobs={**given, "prefetch_depth": depth or 0, **knobs},
        )  # fmt: skip

    def train(self, first: int = 0, stop: int | None = None) -> Loop:
        items, runtime = self.items[first:], self.collection.runtime
        taken = items if self.depth is None else runtime.prefetch(items, sparse=lambda item: item[2])
        for number, (dense_BX, labels_B, features) in enumerate(taken, first + 1):
            self.dense.begin_step()
            pooled = self.collection(features).values().view(len(labels_B), len(self.names), -1)
            losses_B = binary_cross_entropy_with_logits(
                self.dense.model(dense_BX, [pooled]), labels_B, reduction="none"
            )
            losses_B.backward(torch.full_like(losses_B, 1 / len(losses_B)))
            self.dense.optimizer.step()
            self.losses += float(losses_B.detach().sum())
            if number == stop:
                break
        return self

    def outcome(self) -> Any:
        runtime: Any = self.collection.runtime
        found: list[dict[int, bytes]] = []
        for number, module in enumerate(self.collection.embedding_bags.values()):
            keys_K, row_K = runtime.raw_ids.keys_and_rows(number)
            parts = runtime.table(number).numpy(), runtime.store.export_table(number)[1]
            found.append(
                {
                    key: b"".join(part[row].tobytes() for part in parts)
                    for key, row in zip(keys_K.tolist(), row_K, strict=True)
                }
            )
            assert len(module.state_dict()["raw_ids"]) == len(keys_K)
        return self.losses, runtime.stats().raw_ids, found


@pytest.mark.parametrize(
    ("on_disk", "depths"),
    [(True, (AHEAD,)), pytest.param(True, (None, 0), marks=pytest.mark.slow),
     pytest.param(False, (None, 0, AHEAD), marks=pytest.mark.slow)],
    ids=["disk-ahead", "disk-in line and one ahead", "memory"],
)  # fmt: skip
def test_the_same_ids_leave_as_in_a_run_and_all_else_is_equal_too(
    tmp_path: Path, pace: Pace, on_disk: bool, depths: tuple[int | None, ...]
) -> None:
    """Losses, counts, keys, rows and optimizer state, however far is read ahead."""
    run = run_of(tmp_path / "run", *pace.settings(), *(["run.host_memory=1MiB"] if on_disk else []))
    list(run.run())
    assert run.state.input.keys is not None
    expected = run.reports.totals()["loss_sum"], run.state.input.keys.counts(), rows_by_key(run)
    assert expected[1]["evicted"] > 100
    for depth in depths:
        found = Loop(tmp_path / str(depth), pace, on_disk, depth and pace(depth)).train().outcome()
        assert found[1] == {name: expected[1][name] for name in found[1]}
        assert found[2] == expected[2]
        assert found[0] == expected[0]


@pytest.mark.parametrize(
    ("on_disk", "depth"),
    [*(pytest.param(False, depth, marks=pytest.mark.slow) for depth in (None, 7)), (True, 7)],
    ids=["in line", "ahead", "disk"],
)
def test_a_loop_resumes_amid_ids_that_leave(tmp_path: Path, pace: Pace, on_disk: bool, depth: int | None) -> None:
    whole = Loop(tmp_path / "whole", pace, on_disk, depth).train()
    saved: Any = None
    expected, first, losses = whole.outcome(), 0, 0.0
    # while ids are about to leave, have left, and their rows are cleared, given again
    for stop in (pace(30), pace(101), pace(120), pace(120) + 1, pace(189), pace(STEPS)):
        loop = Loop(tmp_path / str(stop), pace, on_disk, depth)
        model, dense, runtime = loop.dense.model, loop.dense.optimizer, loop.collection.runtime
        parts: dict[str, Any] = {"collection": loop.collection, "model": model, "dense": dense, "runtime": runtime}
        for name, part in parts.items() if saved is not None else ():
            part.load_state_dict(saved[name])
        loop.losses = losses
        loop.train(first, stop)
        saved = through_file({name: part.state_dict() for name, part in parts.items()})
        first, losses = stop, loop.losses
    assert loop.outcome() == expected
    assert expected[1]["evicted"] > 100


def test_rows_that_ids_have_left_are_free_in_a_state_of_the_module_alone(tmp_path: Path, pace: Pace) -> None:
    """Its ids have the rows that they had; rows in between are given to others, and begin anew."""
    loop = Loop(tmp_path / "first", pace).train(stop=pace(150))
    state = loop.collection.state_dict()
    pairs_K2 = state[f"embedding_bags.{loop.names_of_tables[0]}.raw_ids"]
    assert not np.array_equal(pairs_K2[:, 1], np.arange(3, 3 + len(pairs_K2))), "some rows in between have no id"
    other = Loop(tmp_path / "other", pace, admit_after=1)
    other.collection.load_state_dict(through_file(state))
    assert all(torch.equal(value, state[name]) for name, value in other.collection.state_dict().items())
    new_K = torch.arange(60) - 10**15
    size = torch.full((len(other.names),), len(new_K))
    other.collection(Jagged(other.names, new_K.repeat(len(other.names)), size))
    for number, module in enumerate(other.collection.embedding_bags.values()):
        old = dict(state[f"embedding_bags.{other.names_of_tables[number]}.raw_ids"].tolist())
        found = module.state_dict()
        row_of = dict(found["raw_ids"].tolist())
        assert len(row_of) == 60
        assert row_of.items() >= old.items()
        keys = np.array([key for key in row_of if key not in old])
        first = np.empty((len(keys), found["weight"].shape[1]))
        fill_rows(np.uint64(other.seed), number, first_bound(60), keys, first)
        assert np.array_equal(found["weight"][[row_of[key] for key in keys.tolist()]], first)


def accumulated(pace: Pace, depth: int | None, items_per_step: int, policy: str = "hotline") -> Any:
    """Train on two lookups of a table an item, in steps of some items, with ids that replace one another."""
    knobs = {"admit_after": 2, "evict_ratio": 0.3, "prefetch_depth": depth or 0}
    how = options(optimizer=torch.optim.Adagrad, knobs=knobs, policy=policy)
    table: Any = AdaptiveEmbeddingBag(60, DIM, mode="sum", ids="raw", dtype=torch.float64, **how)
    optimizer = torch.optim.Adagrad(table.parameters(), lr=0.1)
    count, every = max(pace(300), 40 * items_per_step), pace(60)
    shapes = drawn(count, (8, 3)), drawn(count, (8, 1), seed=3)
    items = [
        (keys_at(one) ^ n // every, keys_at(other) ^ n // every) for n, (one, other) in enumerate(zip(*shapes, strict=True))
    ]
    losses = []
    loader = items if depth is None else table.runtime.prefetch(items, lambda item: {"weight": list(item)})
    for number, (one, other) in enumerate(loader, 1):
        loss = (table(one) * table(other)).sum().sin()
        loss.backward()
        losses.append(loss.item())
        if number % items_per_step == 0:
            optimizer.step()
            optimizer.zero_grad()
    rows = {key: row.numpy().tobytes() for key, row in keys_and_values(table).items()}
    return table.runtime.stats().raw_ids, rows, losses


@pytest.mark.parametrize("items_per_step", [1, 3])
def test_looking_ahead_changes_nothing_where_ids_leave(pace: Pace, items_per_step: int) -> None:
    """Of several lookups an item, and of several items a step."""
    expected = accumulated(pace, 0, items_per_step)
    assert expected[0]["evicted"] > 50
    assert accumulated(pace, pace(AHEAD), items_per_step) == expected
    if items_per_step == 1:  # in line a step is a batch; gradients of two calls are summed in another order
        counts, rows, _ = accumulated(pace, None, 1)
        assert (counts, rows.keys()) == (expected[0], expected[1].keys())


@pytest.mark.parametrize("policy", ["device_only", pytest.param("hybrid", marks=pytest.mark.slow)])
def test_the_same_ids_leave_under_a_baseline(pace: Pace, policy: str) -> None:
    assert accumulated(pace, 0, 1, policy) == accumulated(pace, 0, 1)
