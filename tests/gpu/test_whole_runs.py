"""What a user does on a CUDA device: the command line, resuming, raw ids, a loop of one's own with replaced tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_rec
from adaptive_rec import checkpoint
from adaptive_rec.config.tree import load_config
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from tests.conftest import test_data_folder

pytestmark = pytest.mark.gpu
SAMPLE = test_data_folder() / "criteo_kaggle_sample_137k.tsv.zst"

SETTINGS = [
    "run.device=cuda", "run.precision=float32", "run.batch_size=256", "run.steps=60", "data.table_rows=[20000, 3000, 40]",
    "data.max_table_rows=20000", "data.dense_features=4", "data.synthetic.samples=40000", "data.synthetic.test_samples=2000",
    "model.embedding_dim=16", "model.bottom_mlp=[32]", "model.top_mlp=[32]", "optimizer.embedding=rowwise_adagrad",
    "optimizer.dense=SGD", "knobs.policy=hotline", "knobs.reclassify_every=10", "knobs.report_every=1",
    "knobs.hot_budget_bytes=200000", "knobs.prefetch_depth=3", "knobs.sample_ratio=1.0",
]  # fmt: skip


def build(*changes: str) -> Runtime:
    return assemble(load_config(None, {}, [*SETTINGS, *changes]))


def losses(runtime: Runtime) -> list[float]:
    return [report.loss for report in runtime.run() if isinstance(report, Snapshot)]


def rows_of(runtime: Runtime) -> list[Any]:
    return [part for table in range(len(runtime.store.space.tables)) for part in runtime.store.contents.export(table)]


@pytest.mark.parametrize(
    "ways",
    [
        (), ("run.classify=device",), ("run.cold_rows=direct", "run.row_precision=bf16"), ("run.cold_rows=in_place",),
        ("run.cold_rows=in_place", "run.classify=device", "run.row_precision=bf16"),
    ],
    ids=str,
)  # fmt: skip
def test_a_resumed_run_ends_with_the_same_bits(ways: tuple[str, ...], tmp_path: Path) -> None:
    straight, first, second = build(*ways), build(*ways, "run.steps=25"), build(*ways)
    whole = losses(straight)
    before = losses(first)
    checkpoint.load(second.parts, checkpoint.save(first.parts, tmp_path))
    np.testing.assert_array_equal(before + losses(second), whole)
    for mine, theirs in zip(rows_of(second), rows_of(straight), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert second.store.hot.tier.hot_rows > 0


@pytest.mark.parametrize("way", ["run.classify=host", "run.classify=device"])
def test_what_is_evaluated_is_what_the_cpu_evaluates(way: str) -> None:
    there, here = build(way), build("run.device=cpu", "run.linear=torch")
    np.testing.assert_allclose(losses(there), losses(here), rtol=1e-4)
    mine, theirs = there.evaluate(), here.evaluate()
    assert mine is not None
    assert theirs is not None
    assert mine.quality.auc == pytest.approx(theirs.quality.auc, abs=1e-4)


def test_raw_ids_get_the_rows_that_they_get_on_the_cpu() -> None:
    raw = "data.ids=raw", "run.precision=float64"
    there, here = build(*raw), build(*raw, "run.device=cpu", "run.linear=torch")
    np.testing.assert_allclose(losses(there), losses(here), rtol=1e-10)


@pytest.mark.skipif(not SAMPLE.exists(), reason="the Criteo sample is not here")
@pytest.mark.parametrize("policy", ["hotline", "slipstream", "fae", "adaptive"])
def test_the_command_line_trains_on_clicks(policy: str, tmp_path: Path) -> None:
    """Trains, evaluates, saves, with its sidecar."""
    out = tmp_path / "run"
    words = ["--policy", policy, "--device", "cuda", "--out", str(out), "--set", "run.batch_size=512"]
    command = [sys.executable, "-m", "adaptive_rec", "train", "criteo_kaggle", "--data", str(SAMPLE), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["device"].startswith("cuda"), summary["device"]
    assert summary["eval"]["auc"] > 0.75, summary["eval"]
    assert summary["hot_rows"] > 0
    assert summary["device_peak_bytes"] > summary["device_tier_bytes"]
    assert list((out / "checkpoints").iterdir())


# A loop of one's own ---------------------------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.bags = nn.EmbeddingBag(5000, 16, mode="mean", include_last_offset=True)
        self.items = nn.Embedding(3000, 8, padding_idx=0)
        self.top = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, ids_N: torch.Tensor, offsets: torch.Tensor, items_BL: torch.Tensor) -> torch.Tensor:
        return self.top(torch.cat([self.bags(ids_N, offsets), self.items(items_BL).sum(1)], dim=1))[:, 0]  # type: ignore[no-any-return]


def batches(steps: int) -> list[tuple[torch.Tensor, ...]]:
    draw = torch.Generator().manual_seed(1)
    made = []
    for _ in range(steps):
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.randint(0, 5, (64,), generator=draw).cumsum(0)])
        ids = (torch.rand(int(offsets[-1]), generator=draw) ** 4 * 5000).long()
        items = (torch.rand(64, 6, generator=draw) ** 4 * 3000).long()
        made.append((ids, offsets, items, (torch.rand(64, generator=draw) < 0.3).float()))
    return made


def trained(wrapped: bool, steps: int = 40) -> tuple[list[float], dict[str, torch.Tensor], Any]:
    model, runtime = Model().cuda(), None
    rows = torch.optim.Adagrad([model.bags.weight, model.items.weight], lr=0.05)
    optimizers = [rows, torch.optim.SGD(model.top.parameters(), lr=0.1)]
    if wrapped:
        knobs = {"reclassify_every": 5, "sample_ratio": 1.0, "hysteresis": 0.0}
        runtime = adaptive_rec.wrap(model, budget=60_000, optimizer=rows, knobs=knobs)
    found = []
    for *inputs, labels in batches(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        logits = model(*(part.cuda() for part in inputs))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels.cuda())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        found.append(loss.item())
    return found, {name: value.detach().cpu() for name, value in model.state_dict().items()}, runtime


def test_a_wrapped_model_trains_as_plain_pytorch() -> None:
    (mine, state, runtime), (theirs, expected, _) = trained(True), trained(False)
    np.testing.assert_allclose(mine, theirs, rtol=1e-4)
    for name in ("bags.weight", "items.weight"):
        torch.testing.assert_close(state[name], expected[name], rtol=1e-3, atol=1e-4)
    assert runtime.stats().hot_rows > 0
