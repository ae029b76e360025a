"""The dense part through torch.compile: what it computes, for every size of micro-batch; and what is said where it cannot."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import ConfigError
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from tests.doubles.late_streams import LateStreams

TINY = [
    "knobs.policy=hotline", "run.split=always", "run.device=cpu", "run.threads=1", "run.batch_size=48", "run.steps=200",
    "data.table_rows=[60, 40, 9]", "data.dense_features=2", "data.synthetic.samples=9570", "data.synthetic.test_samples=64",
    "data.synthetic.head_ratio=0.1", "model.embedding_dim=4", "model.bottom_mlp=[8]", "model.top_mlp=[8]",
    "optimizer.dense=SGD", "knobs.reclassify_every=5", "knobs.report_every=1", "knobs.hot_budget_bytes=2000",
]  # fmt: skip


def build(precision: str, compiled: bool) -> Runtime:
    settings = [*TINY, f"run.precision={precision}", f"run.compile={str(compiled).lower()}"]
    return assemble(load_config(None, {}, settings))


@pytest.mark.slow
def test_a_compiled_run_equals_one_that_is_not() -> None:
    """200 steps of split batches, the last one ragged, in float64; to the same bounds as policies are held to."""
    runs = build("float64", True), build("float64", False)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    losses = [[event.loss for event in run.run() if isinstance(event, Snapshot)] for run in runs]
    assert len(losses[0]) == 200
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= before + 2, (
        "sizes of 0 and 1 may have code of their own"
    )
    np.testing.assert_allclose(*losses, rtol=1e-12)
    for table in range(3):
        rows = [run.store.contents.export(table)[0] for run in runs]
        np.testing.assert_allclose(*rows, rtol=0, atol=1e-11)
    logits = [run.evaluate() for run in runs]
    assert logits[0] is not None
    assert logits[1] is not None
    assert logits[0].quality.logloss == pytest.approx(logits[1].quality.logloss, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_compiled_step_is_near_one_that_is_not(precision: str) -> None:
    runs = build(precision, True), build(precision, False)
    losses = [next(event.loss for event in run.run() if isinstance(event, Snapshot)) for run in runs]
    np.testing.assert_allclose(*losses, rtol=1e-5 if precision == "float32" else 2e-2)


def test_compiling_leaves_no_trace_in_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warm-up trains nothing: with code that is not compiled at all, the run is the same bit for bit."""
    monkeypatch.setattr(torch, "compile", lambda model, dynamic: model)
    runs = build("float64", True), build("float64", False)
    losses = [[event.loss for event in run.run() if isinstance(event, Snapshot)] for run in runs]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_without_a_compiler_it_says_what_is_needed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "adaptive_rec", "train", "tiny", "--no-serve", "--set", "run.compile=true"]
    environment = {**os.environ, "CXX": "no-such-compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert re.search(r"run\.compile needs a C\+\+ compiler .*No working C\+\+ compiler", done.stderr), done.stderr
    assert not (tmp_path / "run").exists()


def test_a_device_refuses_it() -> None:
    config = load_config(None, {}, [*TINY, "run.compile=true"])
    with pytest.raises(ConfigError, match=r"run\.compile must be false on a device"):
        assemble(config, streams=LateStreams(seed=1))
