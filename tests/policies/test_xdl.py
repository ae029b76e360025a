"""XDL: one request for each table, nothing prepared ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptive_rec import checkpoint


def test_xdl_has_a_request_for_each_table_and_reads_nothing_ahead(watch: Any) -> None:
    seen = watch("xdl", "knobs.prefetch_depth=4")
    assert [pool.rows for pool in seen.runtime.store.space.pools] == [60, 40, 9, 30]
    assert "load (ahead)" not in seen.runtime.times.seconds
    assert seen.runtime.times.seconds["load"] > 0


def test_a_checkpoint_of_xdl_fits_any_policy(build: Any, tmp_path: Path) -> None:
    """Tables that share a dim, are shared by features, or have a dim of their own."""
    mixed = (
        "data.table_rows=[60,40,9]",
        "data.feature_tables=[0,1,2,0]",
        "model.table_dims=[4,2,4]",
        "run.steps=9",
        "optimizer.embedding=lazy_adam",
        "optimizer.dense=Adam",
    )
    first = build("xdl", *mixed)
    list(first.run())
    other = build("hybrid", *mixed)
    checkpoint.load(other.parts, checkpoint.save(first.parts, tmp_path))
    mine, theirs = first.evaluate(), other.evaluate()
    assert mine is not None
    assert theirs is not None
    assert mine.quality.logloss == pytest.approx(theirs.quality.logloss, rel=1e-12)
