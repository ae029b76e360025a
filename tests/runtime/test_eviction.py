"""Ids that lose their rows to others: the same ones in every way of training, and none of it is lost to a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec import checkpoint
from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.data.source import Wrapped
from adaptive_rec.data.synthetic import SyntheticSource
from adaptive_rec.embedding.disk import row_log
from adaptive_rec.embedding.host import first_bound
from adaptive_rec.errors import ConfigError
from adaptive_rec.kernels.fill import fill_rows
from adaptive_rec.runtime import assemble as assembling
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from tests.runtime.conftest import Pace

STEPS = 260
SETTINGS = [
    "run.precision=float64", f"run.steps={STEPS}", "data.ids=raw", "data.shared_rows=3", "data.synthetic.samples=60000",
    "knobs.reclassify_every=20", "knobs.hot_budget_bytes=24KiB", "knobs.sample_ratio=1", "knobs.evict_ratio=0.25",
    "eval.max_samples=300", "knobs.report_every=1", "knobs.hysteresis=0.1", "knobs.decay=0.6",
]  # fmt: skip


class ReplacedIds(Wrapped):
    """Synthetic samples whose ids are others every 80 batches; the tables have rows for a part of them."""

    every = 80

    def __init__(self, config: Config) -> None:
        super().__init__(SyntheticSource(config))
        self.tables = tuple(replace(table, rows=60) for table in self._source.tables)

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        for batch in self._source.train_batches(position, batch_size):
            age = (batch.position.offset - 1) // (batch_size * self.every)
            yield replace(batch, ids_N=batch.ids_N + age * 10**12)


@pytest.fixture(autouse=True)
def replaced_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembling, "open_source", lambda config, **_: RawIds(ReplacedIds(config), config))
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)


@pytest.fixture(autouse=True)
def at_pace(pace: Pace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplacedIds, "every", pace(ReplacedIds.every))


def run_of(folder: Path, *settings: str) -> Runtime:
    return assembling.assemble(load_config("tiny", {}, [*SETTINGS, *settings]), options=RunOptions(rows=folder))


def trained(folder: Path, *settings: str) -> Runtime:
    runtime = run_of(folder, *settings)
    list(runtime.run())
    return runtime


def rows_by_key(runtime: Runtime) -> list[dict[int, bytes]]:
    """Return the row and the optimizer state of each key of each table."""
    assert runtime.state.input.raw_ids is not None
    found = []
    for table in range(len(runtime.source.tables)):
        ids, keys = runtime.state.input.raw_ids.keys.keys_of(table)
        weights, state = runtime.store.contents.export(table)
        assert len(np.unique(keys)) == len(keys)
        found.append(
            {int(key): weights[row].tobytes() + state[row].tobytes() for row, key in zip(ids, keys, strict=True)}
        )
    return found


def outcome(runtime: Runtime) -> Any:
    assert runtime.state.input.raw_ids is not None
    return runtime.reports.totals()["loss_sum"], runtime.state.input.raw_ids.counts(), rows_by_key(runtime)


def test_the_same_ids_leave_however_far_is_read_ahead_and_wherever_rows_are(tmp_path: Path, pace: Pace) -> None:
    expected = outcome(trained(tmp_path, *pace.settings(STEPS), "knobs.prefetch_depth=0"))
    for settings in ([f"knobs.prefetch_depth={pace.ahead}"], ["run.host_memory=1MiB", "knobs.prefetch_depth=6"]):
        assert outcome(trained(tmp_path, *pace.settings(STEPS), *settings)) == expected, settings
    counts = expected[1]
    assert counts["evicted"] > 100
    assert counts["keys"] == sum(map(len, expected[2])), "an id that has left was counted out once"


@pytest.mark.parametrize(
    ("where", "admit_after"),
    [
        ("run.host_memory=1MiB", 2),
        pytest.param("run.host_memory=0", 1, marks=pytest.mark.slow),
        pytest.param("run.host_memory=0", 2, marks=pytest.mark.slow),
        pytest.param("run.host_memory=1MiB", 1, marks=pytest.mark.slow),
    ],
)
def test_a_run_resumes_amid_ids_that_leave(tmp_path: Path, pace: Pace, where: str, admit_after: int) -> None:
    settings = *pace.settings(STEPS), f"knobs.admit_after={admit_after}", where, "knobs.prefetch_depth=7"
    unbroken, folder, step = trained(tmp_path / "unbroken", *settings), None, 0
    # while ids are about to leave, have left, and their rows are cleared, given again
    end = pace(120)
    for stop in (pace(30), pace(101), end - 1, end, end + 1, pace(189), pace(203)):
        runtime = run_of(tmp_path / str(stop), *settings)
        if folder is not None:
            checkpoint.load(runtime.parts, folder)
        assert runtime.step_number == step
        reports = runtime.run()
        while runtime.step_number < stop:
            next(reports)
        folder, step = checkpoint.save(runtime.parts, tmp_path / "checkpoints"), stop
        reports.close()
    last = run_of(tmp_path / "last", *settings)
    assert folder is not None
    checkpoint.load(last.parts, folder)
    list(last.run())
    assert outcome(last) == outcome(unbroken)
    assert outcome(last)[1]["evicted"] > 100


@pytest.mark.parametrize("where", [pytest.param([], marks=pytest.mark.slow), ["run.host_memory=1MiB"]], ids=["memory", "disk"])
def test_a_row_begins_anew_with_each_id(tmp_path: Path, pace: Pace, where: list[str]) -> None:
    runtime = trained(tmp_path, *pace.settings(STEPS), *where, "optimizer.embedding_lr=1e-300")
    assert outcome(runtime)[1]["evicted"] > 100
    for table, rows in enumerate(rows_by_key(runtime)):
        keys = np.array(list(rows))
        width = runtime.source.tables[table].dim
        drawn = np.empty((len(keys), width))
        fill_rows(np.uint64(runtime.config.run.seed), table, first_bound(60), keys, drawn)
        found = np.array([np.frombuffer(row)[:width] for row in rows.values()])
        np.testing.assert_array_equal(found, drawn)


def test_ids_of_now_have_the_rows_and_the_journal_says_who_left(tmp_path: Path, pace: Pace) -> None:
    runtime = run_of(tmp_path, *pace.settings(STEPS))
    events = [report for report in runtime.run() if getattr(report, "kind", "") == "evicted"]
    assert runtime.state.input.raw_ids is not None
    told = sum(event.details["ids"] for event in events)
    assert told >= runtime.state.input.raw_ids.counts()["evicted"] > 0
    assert all(sum(event.details["tables"].values()) == event.details["ids"] for event in events)
    keys = np.concatenate([np.array(list(rows)) for rows in rows_by_key(runtime)])
    assert np.mean(keys // 10**12 >= 2) > 0.6, "ids of the last stretches have most rows"
    kept = outcome(trained(tmp_path, *pace.settings(STEPS), "knobs.evict_ratio=0"))[1]
    assert runtime.state.input.raw_ids.counts()["lookups_shared"] < kept["lookups_shared"]


def test_the_knob_is_refused_where_it_can_do_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"knobs.evict_ratio must be 0 unless data.ids=raw, got 0.25"):
        run_of(tmp_path, "data.ids=auto", "data.shared_rows=1")
