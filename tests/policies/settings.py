"""Settings that the tests of policies share."""

from __future__ import annotations

from tests import settings

TINY = [
    *settings.TINY, "run.steps=48", "data.table_rows=[60, 40, 9, 30]", "data.synthetic.test_samples=32",
    "data.synthetic.popular_ratio=0.8", "knobs.reclassify_every=6", "knobs.probe_ratio=0.2", "knobs.hot_budget_bytes=6000",
    "knobs.guard_ratio=1.0", "knobs.guard_max_logloss_increase=10.0", "policy.trial_steps=8",
    "policy.small_table_bytes=200", "policy.search_sample_ratio=1.0", "policy.drop_tolerance_ratio=0.2",
]  # fmt: skip
"""A tiny run with several tables and small windows. The guard lets `adaptive` skip after 16 steps."""

EPOCHS = ["run.steps=0", "data.epochs=2", "data.synthetic.samples=900", "knobs.hot_budget_bytes=1500"]
"""Two epochs with a smaller last batch; a part of the rows fits."""
