"""The staged store as a run uses it, read ahead by threads, under many orders of events."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.device import split_budget
from adaptive_rec.embedding.optimizer import RULES, RowRule
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.embedding.staged import stager
from adaptive_rec.embedding.staged.cuda_streams import CudaStreams
from adaptive_rec.embedding.staged.streams import Streams
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.live.telemetry import StageTimes
from adaptive_rec.placement import Migration, RowSpace
from adaptive_rec.runtime.pipeline import Pipeline
from tests.doubles.late_streams import LateEvent, LateStreams
from tests.stores import cpu_store, device_store

SPACE = RowSpace.of(
    (TableSpec("A", 30, 4), TableSpec("B", 14, 3), TableSpec("C", 9, 4)),
    (FeatureSpec("a", 0), FeatureSpec("b", 1, "mean"), FeatureSpec("b again", 1), FeatureSpec("c", 2, "mean")),
)
SAMPLES, BAG, STEPS = 8, 2, 40
BUDGET_ROWS = 20
DONE = LateEvent(done=True)


def make_store(
    streams: Streams | None, rule: str = "adagrad", classifies: bool = False, cold_rows: str = "staged"
) -> Any:
    settings = (SPACE, RowRule(RULES[rule], 1e-8, 0.9, 0.999), 1, torch.float64)
    budget = BUDGET_ROWS * 100
    if streams is None:
        return cpu_store(*settings, budget, True)
    return device_store(*settings, streams, budget, True, classifies=classifies, cold_rows=cold_rows)


def random_batches(random: np.random.Generator, steps: int) -> list[Batch]:
    """Few rows, so that successive batches share many. All batches are laid out alike in their slots, so that a mistake which
    has the device read another batch's integers finds wrong ones, but none that lead outside memory."""
    made = []
    for _ in range(steps):
        ids = random.random((SAMPLES, len(SPACE.features), BAG)) ** 2 * SPACE.rows_F[None, :, None]
        offsets = np.arange(0, ids.size + 1, BAG)
        labels = np.zeros(SAMPLES, np.float32)
        made.append(Batch(np.zeros((SAMPLES, 1), np.float32), ids.astype(np.int64).reshape(-1), offsets, labels))
    return made


def random_migration(store: EmbeddingStore, random: np.random.Generator) -> Migration:
    hot = np.flatnonzero(store.index.placement.slot_of_row >= 0)
    demote = hot[random.random(len(hot)) < 0.5]
    promote = []
    for pool, spec in enumerate(SPACE.pools):
        staying = np.setdiff1d(store.hot.tier.row_of_slot[pool], demote)
        free = store.hot.tier.capacities[pool] - np.count_nonzero(staying >= 0)
        cold = np.setdiff1d(np.arange(spec.first_row, spec.end_row), hot)
        promote.append(random.permutation(cold)[: random.integers(0, free + 1)])
    return Migration(np.concatenate(promote), demote)


def buffers(store: EmbeddingStore, lines: int) -> MicroBatch:
    """Filled with NaN, as if used before."""
    shapes = [(lines, 1), (lines,), (lines,), *((lines, len(pool.features), pool.dim) for pool in SPACE.pools)]
    dense, labels, scale, *pooled = (
        torch.full(shape, torch.nan, dtype=torch.float64, device=store.torch_device) for shape in shapes
    )
    return MicroBatch(dense, pooled, labels, scale, lines)


def run_step(store: EmbeddingStore, work: ClassifiedBatch, step: int, random: np.random.Generator) -> list[Any]:
    """Make a step as the runtime does: popular samples first, or all in one. Returns the gathered vectors."""
    store.batches.take(work)
    if random.random() < 0.15:  # all samples are skipped
        store.batches.release(work)
        return []
    split = [np.flatnonzero(work.popular_B), np.flatnonzero(~work.popular_B)]
    parts = split if random.random() < 0.7 else [np.arange(SAMPLES)]
    position_B, gradients, seen, trained = np.full(SAMPLES, -1), [], list[Any](), 0
    for samples in (part for part in parts if len(part)):
        micro = buffers(store, len(samples))
        store.batches.gather(work, samples, np.full(len(samples), 0.5), micro)
        store.hot.launch(lambda pooled=micro.pooled: seen.extend(part.cpu().numpy().copy() for part in pooled))
        gradients.append(micro.pooled)
        position_B[samples] = np.arange(trained, trained + len(samples))
        trained += len(samples)
    noise = [torch.from_numpy(random.normal(size=(trained, len(p.features), p.dim))) for p in SPACE.pools]
    targets = [torch.empty_like(part, device=store.torch_device) for part in noise]

    def differentiate() -> None:
        for target, of_pool, extra in zip(targets, zip(*gradients, strict=True), noise, strict=True):
            target.copy_(torch.cat(of_pool) * 0.1 + extra.to(target.device))

    store.hot.launch(differentiate)
    frozen_U = random.random(len(work.distinct_U)) < 0.2
    store.batches.apply(work, RowUpdate(targets, position_B, frozen_U, 0.05, step, measure=bool(step % 2)))
    return seen


def look_at(store: EmbeddingStore, batch: Batch) -> list[Any]:
    """Gather a batch that is not trained, as an evaluation does."""
    work = ClassifiedBatch(batch, SPACE)
    store.path.classify(work)
    micro = buffers(store, SAMPLES)
    store.batches.gather(work, np.arange(SAMPLES), np.ones(SAMPLES), micro)
    store.batches.release(work)
    return [store.hot.fetch(part).copy() for part in micro.pooled]


def drive(store: Any, seed: int, depth: int = 4, resizes: bool = True, steps: int = STEPS) -> list[Any]:
    """Train; at random boundaries rows move, the budget changes, everything is waited for,
    memory is given back, rows are looked at, or threads get time.

    Returns all that was gathered on the way, then tables, optimizer state and movement.
    """
    batches = random_batches(np.random.default_rng(seed), steps)
    pipeline = Pipeline(iter(batches), store, lambda: depth, StageTimes())
    seen = []
    try:
        for step, work in enumerate(pipeline, start=1):
            random = np.random.default_rng([seed, step])
            seen.append(run_step(store, work, step, random))
            chance = random.random()
            if chance < 0.25:
                store.migrate(random_migration(store, random))
            elif chance < 0.3 and resizes:
                slots = split_budget(SPACE, store.hot.row_bytes(), int(random.integers(0, 40)) * 100)
                store.resize(slots, random.permutation(SPACE.rows))
            elif chance < 0.4:
                store.settle()
            elif chance < 0.45:
                store.path.free_memory()
            elif chance < 0.65:
                time.sleep(0.002)
            elif chance < 0.7:
                seen.append(look_at(store, random_batches(random, 1)[0]))
    finally:
        pipeline.close()
    found = [part for table in range(len(SPACE.tables)) for part in store.contents.export(table)]
    found += [store.hot.measure(pool) for pool in range(len(SPACE.pools))]
    store.close()
    return [part for parts in seen for part in parts] + found


def equal(mine: list[Any], other: list[Any]) -> bool:
    return len(mine) == len(other) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(mine, other, strict=True)
    )


def assert_as_in_place(seed: int, rule: str, ways: list[tuple[bool, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a batch goes up in one copy or its rows in another."""
    monkeypatch.setattr(stager, "LEAST_APART", seed % 4 // 2 << 20)
    plain = drive(make_store(None, rule), seed, 0)
    for classifies, cold_rows in ways:
        found = drive(make_store(LateStreams(seed), rule, classifies, cold_rows), seed)
        assert equal(found, plain), (seed, classifies, cold_rows)


@pytest.mark.parametrize(
    ("rule", "classifies", "cold_rows", "seed"),
    [
        ("rowwise_adagrad", False, "staged", 0),
        ("rowwise_adagrad", True, "direct", 1),
        ("lazy_adam", True, "in_place", 5),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("rowwise_adagrad", False, "in_place", 2),
                ("lazy_adam", True, "staged", 3),
                ("lazy_adam", False, "direct", 6),
            )
        ),
    ],
)
def test_whatever_happens_first_the_results_are_those_of_tables_in_place(
    rule: str, classifies: bool, cold_rows: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way of cold rows under both rules, both ways of classifying, and with batches that go up in one copy and in two."""
    assert_as_in_place(seed, rule, [(classifies, cold_rows)], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["rowwise_adagrad", "lazy_adam"])
def test_whatever_happens_first_the_results_are_those_of_tables_in_place_with_many_seeds(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(60):
        cold_rows = "direct" if seed % 2 else "staged"
        ways = [(classifies, place) for classifies in (False, True) for place in (cold_rows, "in_place")]
        assert_as_in_place(seed, rule, ways, monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize("rule", ["rowwise_adagrad", "lazy_adam"])
def test_on_a_cuda_device_too(rule: str) -> None:
    """Twice each way of classifying with each way of cold rows."""
    for seed in range(12):
        store = make_store(CudaStreams(torch.device("cuda")), rule, bool(seed % 2), ("staged", "direct", "in_place")[seed % 3])
        assert equal(drive(store, seed), drive(make_store(None, rule), seed, 0)), seed
