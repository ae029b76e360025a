"""Settings that many tests share: a tiny run, the devices a test runs on, the command line."""

from __future__ import annotations

import sys

import pytest

COMMAND = [sys.executable, "-m", "adaptive_rec"]
"""The command line of this package, in the interpreter that runs the tests."""

DEVICES = ["direct", "late", pytest.param("cuda", marks=pytest.mark.gpu)]
"""Stores a test runs on: the CPU's, the device half on a made-up device whose work is done late, and a real device."""

TINY = [
    "run.device=cpu", "run.threads=1", "run.precision=float64", "run.batch_size=32", "run.steps=60",
    "data.table_rows=[60, 40, 9]", "data.dense_features=2", "data.synthetic.samples=4000", "data.synthetic.test_samples=64",
    "data.synthetic.head_ratio=0.1", "model.embedding_dim=4", "model.bottom_mlp=[8]", "model.top_mlp=[8]",
    "optimizer.embedding=sgd", "optimizer.dense=SGD", "knobs.reclassify_every=5", "knobs.report_every=1",
    "knobs.sample_ratio=1.0", "knobs.hysteresis=0.0", "knobs.hot_budget_bytes=2000",
]  # fmt: skip
"""A run of well under a second with small windows; a test appends its own settings, the last one of a key wins."""

AS_IN_MEMORY = ["knobs.hysteresis=0.1", "knobs.decay=0.6"]
"""Knobs of a run with all rows in memory, which start with other values where rows lie on a disk."""
