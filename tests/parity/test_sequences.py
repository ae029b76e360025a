"""TBSM under the exact policies: samples with histories of all lengths, equal to plain steps and to plain PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adaptive_rec.batch import Batch, FeatureSpec, SequenceSpec, TableSpec
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.staged.cuda_streams import CudaStreams
from adaptive_rec.embedding.staged.streams import Streams
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from tests.doubles.late_streams import LateStreams
from tests.matrix import always, each, grid

HISTORY, DENSE, BATCH, BATCHES = 5, 8, 48, 50
TABLES = (TableSpec("item", 300, 8), TableSpec("kind", 20, 4), TableSpec("user", 90, 8))
FEATURES = tuple(
    FeatureSpec(f"{name}{step}", table) for table, name in enumerate(("item", "kind")) for step in range(HISTORY + 1)
) + (FeatureSpec("user", 2),)
SEQUENCE = SequenceSpec(
    (tuple(range(HISTORY + 1)), tuple(range(HISTORY + 1, 2 * HISTORY + 2))), (tuple(range(1, HISTORY + 1)),), 0
)


def batches() -> list[Batch]:
    """Skewed ids; the last batch is smaller; labels follow the candidate's kind."""
    random = np.random.default_rng(7)
    made = []
    for number in range(BATCHES):
        size = BATCH if number + 1 < BATCHES else BATCH // 3
        lengths_B = random.integers(0, HISTORY + 1, size)
        there_BT = np.arange(HISTORY) >= HISTORY - lengths_B[:, None]
        there_BS = np.concatenate([there_BT, np.ones((size, 1), dtype=np.bool_)], axis=1)
        bags_BF = np.concatenate([there_BS, there_BS, np.ones((size, 1), dtype=np.bool_)], axis=1)
        rows_F = np.array([TABLES[feature.table].rows for feature in FEATURES])
        ids_BF = (random.random((size, len(FEATURES))) ** 3 * rows_F).astype(np.int64)
        dense_BX = random.standard_normal((size, DENSE)).astype(np.float32)
        dense_BX[:, 0] = lengths_B
        dense_BX[:, 1 : HISTORY + 1] *= there_BT
        labels_B = (random.random(size) < 0.2 + 0.6 * (ids_BF[:, 2 * HISTORY + 1] % 2)).astype(np.float32)
        offsets = np.concatenate([[0], np.cumsum(bags_BF.reshape(-1))])
        made.append(Batch(dense_BX, ids_BF[bags_BF], offsets, labels_B))
    return made


@pytest.fixture(scope="module")
def source(memory_source: Any) -> Any:
    return memory_source(batches(), TABLES, FEATURES, sequence=SEQUENCE, held_out=batches()[:3])


def streams_of(device: str) -> Streams | None:
    made = {"cpu": lambda: None, "late": lambda: LateStreams(seed=3), "cuda": lambda: CudaStreams(torch.device("cuda"))}
    return made[device]()


DEVICES = ["cpu", "late", pytest.param("cuda", marks=pytest.mark.gpu)]


def build(source: Any, policy: str, device: str = "cpu", **changes: str) -> Runtime:
    settings = {
        "knobs.policy": policy, "model.name": "tbsm", "model.embedding_dim": "8", "model.bottom_mlp": "[6]",
        "model.top_mlp": "[7, 6]", "model.attention_mlp": "[6]", "model.final_mlp": "[9]", "run.precision": "float64",
        "run.split": "always", "run.batch_size": str(BATCH), "run.steps": "0", "run.device": "cpu", "run.threads": "1",
        "optimizer.embedding": "adagrad", "optimizer.dense": "SGD", "optimizer.dense_lr": "0.05",
        "optimizer.embedding_lr": "0.05", "run.linear": "torch", "knobs.hot_budget_bytes": "8000", "knobs.prefetch_depth": "3",
        "knobs.reclassify_every": "3", "knobs.hysteresis": "0.0", "knobs.sample_ratio": "1.0", "knobs.report_every": "1",
        **changes,
    }  # fmt: skip
    config = load_config(None, {}, [f"{key}={value}" for key, value in settings.items()])
    return assemble(config, source, streams_of(device))


def train(runtime: Runtime) -> tuple[list[float], list[Any]]:
    """Losses, and all rows and weights afterwards."""
    losses = [event.loss for event in runtime.run() if isinstance(event, Snapshot)]
    tables = [runtime.store.contents.export(table)[0] for table in range(len(TABLES))]
    runtime.store.settle()
    return losses, [*tables, *(p.detach().cpu().numpy() for p in runtime.dense.model.parameters())]


@pytest.fixture(scope="module")
def plain(source: Any) -> tuple[list[float], list[Any]]:
    return train(build(source, "hybrid"))


@grid(always, each, policy=["hotline", "device_only"], device=DEVICES)
def test_exact_policies_equal_plain_steps(source: Any, plain: Any, policy: str, device: str) -> None:
    runtime = build(source, policy, device)
    losses, state = train(runtime)
    np.testing.assert_allclose(losses, plain[0], rtol=1e-11 if device == "cuda" else 1e-12)
    for mine, theirs in zip(state, plain[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-11)
    totals = runtime.reports.totals()
    assert totals["samples_trained"] == totals["samples_seen"] == (BATCHES - 1) * BATCH + BATCH // 3
    assert totals["lookups_hot"] > 0
    assert totals["lookups"] == sum(batch.lookups for batch in source.batches), "missing steps are no lookups"
    assert (totals["samples_popular"] < totals["samples_seen"]) == (policy == "hotline")


def test_plain_steps_equal_plain_pytorch(source: Any, plain: Any) -> None:
    """`nn.EmbeddingBag` for each feature over the shared tables, torch's own sparse Adagrad."""
    fresh = build(source, "hybrid")
    weights = [nn.Parameter(torch.from_numpy(fresh.store.contents.export(t)[0])) for t in range(len(TABLES))]
    rows = torch.optim.Adagrad(weights, lr=0.05, eps=1e-8)
    model, dense = fresh.dense.model, fresh.dense.optimizer
    losses = []
    for batch in source.batches:
        ids = [
            torch.from_numpy(batch.ids_N[batch.offsets[i] : batch.offsets[i + 1]])
            for i in range(len(batch.offsets) - 1)
        ]
        pooled = [
            torch.stack([_bag(weights[FEATURES[f].table], ids[f :: len(FEATURES)]) for f in pool.features], dim=1)
            for pool in fresh.store.space.pools
        ]
        logits = model(torch.from_numpy(batch.dense_BX).double(), pooled)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels_B).double())
        dense.zero_grad()
        rows.zero_grad()
        loss.backward()
        dense.step()
        rows.step()
        losses.append(loss.item())
    np.testing.assert_allclose(plain[0], losses, rtol=1e-12)
    for mine, theirs in zip(plain[1], weights, strict=False):
        np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=0, atol=1e-11)


def _bag(weight: nn.Parameter, bags: list[torch.Tensor]) -> torch.Tensor:
    offsets = torch.tensor([0, *np.cumsum([len(bag) for bag in bags])])
    return nn.functional.embedding_bag(
        torch.cat(bags), weight, offsets, mode="sum", sparse=True, include_last_offset=True
    )


@grid(always, each, device=DEVICES, rule=["sgd", "adagrad"], precision=["float32", "bf16"])
def test_one_step_parity(source: Any, plain: Any, device: str, rule: str, precision: str) -> None:
    """Adagrad makes a whole step of a gradient that is nothing but rounding, in which a GPU's network differs from a CPU's:
    it is compared with plain steps whose network is on the GPU as well."""
    tolerance = {"float32": 1e-5, "bf16": 2e-2}[precision]
    settings = {"run.precision": precision, "run.steps": "1", "optimizer.embedding": rule}
    losses, state = train(build(source, "device_only", device, **settings))
    first, expected = train(build(source, "hybrid", **settings))
    if device == "cuda" and rule != "sgd":
        _, expected = train(build(source, "hybrid", device, **settings))
    np.testing.assert_allclose(losses, first, rtol=tolerance)
    np.testing.assert_allclose(losses, plain[0][:1], rtol=tolerance)
    for mine, theirs in zip(state, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)


def test_it_learns_and_is_scored_alike_on_a_device(source: Any) -> None:
    fast = {"optimizer.dense": "Adagrad", "optimizer.dense_lr": "0.05", "optimizer.embedding_lr": "0.2"}
    runs = [build(source, "hotline", device, **fast) for device in ("cpu", "late")]
    for runtime in runs:
        train(runtime)
    here, there = [runtime.evaluate() for runtime in runs]
    assert here is not None
    assert there is not None
    assert here.quality.auc == pytest.approx(there.quality.auc, abs=1e-9)
    assert here.quality.auc > 0.6


@pytest.mark.slow
def test_a_compiled_run_equals_one_that_is_not(source: Any, plain: Any) -> None:
    losses, _ = train(build(source, "hotline", **{"run.compile": "true"}))
    np.testing.assert_allclose(losses, plain[0], rtol=1e-12)
