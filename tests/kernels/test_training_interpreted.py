"""A whole run through the device's own kernels, by Triton's interpreter, on the late device: equals the run on the CPU."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from adaptive_rec.config.tree import load_config
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.runtime.assemble import assemble
from tests.doubles.late_streams import LateStreams

TINY = [
    "run.split=always", "run.device=cpu", "run.threads=1", "run.precision=float64", "run.batch_size=12", "run.steps=10",
    "data.table_rows=[40, 20, 9]", "data.dense_features=2", "data.synthetic.samples=600", "data.synthetic.test_samples=8",
    "data.synthetic.head_ratio=0.1", "data.synthetic.lookups_per_feature=2", "data.pooling=mean", "model.embedding_dim=4",
    "model.table_dims=[4, 3, 4]", "model.bottom_mlp=[8]", "model.top_mlp=[8]", "optimizer.embedding_lr=0.05",
    "optimizer.dense=SGD", "knobs.reclassify_every=3", "knobs.report_every=1", "knobs.sample_ratio=1.0",
    "knobs.hysteresis=0.0", "knobs.hot_budget_bytes=2500", "knobs.prefetch_depth=2",
]  # fmt: skip


def train(
    kernels: ModuleType | None, policy: str, optimizer: str
) -> tuple[list[float], list[np.ndarray], dict[str, float]]:
    config = load_config(None, {}, [*TINY, f"knobs.policy={policy}", f"optimizer.embedding={optimizer}"])
    runtime = assemble(config, None, LateStreams(4, kernels) if kernels else None)
    losses = [event.loss for event in runtime.run() if isinstance(event, Snapshot)]
    tables = [part for table in range(3) for part in runtime.store.contents.export(table)]
    return losses, tables, runtime.reports.totals()


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "lazy_adam"])
def test_training_through_the_interpreted_kernels_equals_the_cpu(interpreter: ModuleType, optimizer: str) -> None:
    losses, tables, totals = train(interpreter, "hotline", optimizer)
    plain_losses, plain_tables, _ = train(None, "hybrid", optimizer)

    assert 0 < totals["samples_popular"] < totals["samples_seen"]
    assert totals["migrated_rows"] > 0
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-12)
    for mine, plain in zip(tables, plain_tables, strict=True):
        np.testing.assert_allclose(mine, plain, rtol=0, atol=1e-12)
