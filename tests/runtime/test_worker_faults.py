"""A worker that fails: the run ends with its error a few steps later, and neither hangs nor continues without it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.cold.copier import RowCopier
from adaptive_rec.embedding.staged.stager import Stager
from adaptive_rec.embedding.staged.write_back import RETURNING_LIMIT, WriteBack
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.pipeline import Pipeline
from adaptive_rec.system.background import BEHIND_LIMIT
from adaptive_rec.tracking.popularity import PopularityTracker
from tests.doubles.late_streams import LateStreams

SMALL = [
    "knobs.policy=hotline", "run.device=cpu", "run.threads=1", "run.classify_threads=1", "run.batch_size=16", "run.steps=60",
    "data.table_rows=[300, 200]", "data.synthetic.samples=4000", "model.embedding_dim=4", "model.bottom_mlp=[4]",
    "model.top_mlp=[4]", "knobs.report_every=1000", "knobs.sample_ratio=1.0", "knobs.prefetch_depth=3",
    "knobs.hot_budget_bytes=2000",
]  # fmt: skip
AT = 20
"""The first call that may fail, where there is about one a step. On a busy machine the training thread makes some itself."""


class Broken(Exception):
    pass


@pytest.mark.parametrize(
    ("place", "method"),
    [(WriteBack, "_land"), (Stager, "stage"), (RowCopier, "scatter"), (PopularityTracker, "observe"), (Pipeline, "_classify"),
     (Pipeline, "_load")],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)  # fmt: skip
@pytest.mark.timeout(60)
def test_the_error_of_a_worker_ends_the_run_soon(place: type, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, calls = getattr(place, method), 0
    failed: list[int] = []

    def fails_once(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= AT and not failed and threading.current_thread() is not threading.main_thread():
            failed.append(calls)
            raise Broken("the worker broke")
        return whole(*arguments, **more)

    monkeypatch.setattr(place, method, fails_once)
    runtime = assemble(load_config(None, {}, SMALL), streams=LateStreams(3))
    before = threading.active_count()
    with pytest.raises(Broken, match="the worker broke"):
        list(runtime.run())
    assert runtime.step_number <= failed[0] + RETURNING_LIMIT + BEHIND_LIMIT
    assert runtime.state.phase == "failed"
    assert threading.active_count() <= before, "no worker is left behind"
