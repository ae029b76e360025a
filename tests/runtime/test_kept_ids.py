"""Ids that leave, are kept on the disk, and come back with their vectors and optimizer state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec import checkpoint
from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.data.source import Wrapped
from adaptive_rec.data.synthetic import SyntheticSource
from adaptive_rec.embedding.disk import row_log
from adaptive_rec.errors import ConfigError
from adaptive_rec.runtime import assemble as assembling
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from tests.doubles.late_streams import LateStreams
from tests.runtime.conftest import Pace
from tests.runtime.test_eviction import SETTINGS, outcome, run_of, trained
from tests.settings import AS_IN_MEMORY

STEPS = 360
KEPT = ["knobs.evict_ratio=0", "data.keep_evicted=500"]
SOME_KEPT = ["data.keep_evicted=12", "knobs.evict_ratio=0.25"]

def settings_of(kept: list[str], pace: Pace) -> list[str]:
    return [*kept, *pace.settings(STEPS), f"knobs.evict_after={pace(25 if kept is KEPT else 40)}"]


class ReturningIds(Wrapped):
    """Synthetic samples with other ids for 120 batches, every other time those of before."""

    every = 120

    def __init__(self, config: Config) -> None:
        super().__init__(SyntheticSource(config))
        self.tables = tuple(replace(table, rows=110) for table in self._source.tables)

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        for batch in self._source.train_batches(position, batch_size):
            age = (batch.position.offset - 1) // (batch_size * self.every)
            yield replace(batch, ids_N=batch.ids_N + age % 2 * 10**12)


@pytest.fixture(autouse=True)
def returning_ids(pace: Pace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReturningIds, "every", pace(ReturningIds.every))
    monkeypatch.setattr(assembling, "open_source", lambda config, **_: RawIds(ReturningIds(config), config))
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)


@pytest.fixture(scope="module")
def _plain() -> dict[float, Any]:
    return {}


@pytest.fixture
def plain(_plain: dict[float, Any], pace: Pace, returning_ids: None, tmp_path: Path) -> Any:
    """What comes of a run that keeps some ids, has all rows in memory and reads no batch ahead; trained once for each pace."""
    if pace.factor not in _plain:
        settings = [*settings_of(SOME_KEPT, pace), "knobs.prefetch_depth=0"]
        _plain[pace.factor] = outcome(trained(tmp_path / "plain", *settings))
    return _plain[pace.factor]


def counts_of(runtime: Runtime) -> dict[str, int]:
    assert runtime.state.input.raw_ids is not None
    return runtime.state.input.raw_ids.counts()


@pytest.mark.parametrize(
    "settings",
    [
        ["knobs.policy=xdl"],
        pytest.param([], marks=pytest.mark.slow),
        pytest.param(["run.row_precision=bf16", "run.precision=float32"], marks=pytest.mark.slow),
    ],
    ids=["a pool for each table", "float64", "bf16"],
)
def test_an_id_comes_back_with_the_values_that_it_left_with(tmp_path: Path, pace: Pace, settings: list[str]) -> None:
    runtime = run_of(tmp_path, *settings_of(KEPT, pace), *settings, "knobs.prefetch_depth=3")
    raw_ids, store, kept_rows = runtime.state.input.raw_ids, runtime.store, runtime.state.input.kept_rows
    assert raw_ids is not None
    assert kept_rows is not None
    left: dict[tuple[int, int], bytes] = {}
    keep, restore, back = kept_rows.keep, raw_ids._restore, 0

    def values_of(table: int, ids: Any) -> list[bytes]:
        weights, state = store.contents.export(table)
        return [weights[row].tobytes() + state[row].tobytes() for row in ids]

    def keeping(table: int, ids: Any, places: Any) -> None:
        assert store.index.slot_of_row[store.space.table_first_row[table] + ids].max(initial=-1) >= -1
        left.update(zip([(table, place) for place in places.tolist()], values_of(table, ids), strict=True))
        keep(table, ids, places)

    def restoring(table: int, ids: Any, places: Any) -> None:
        nonlocal back
        restore(table, ids, places)
        back += len(ids)
        assert values_of(table, ids) == [left[table, place] for place in places.tolist()]

    kept_rows.keep, raw_ids._restore = keeping, restoring  # type: ignore[method-assign]
    list(runtime.run())
    found = counts_of(runtime)
    assert found["came_back"] == back > 50
    assert found["evicted"] >= found["kept"] > back
    assert found["dropped"] == 0


@pytest.mark.parametrize("kept", [pytest.param(KEPT, marks=pytest.mark.slow), SOME_KEPT], ids=["all", "some"])
def test_the_same_ids_come_back_however_far_is_read_ahead_and_wherever_rows_are(
    tmp_path: Path, pace: Pace, plain: Any, kept: list[str]
) -> None:
    settings = settings_of(kept, pace)
    expected = plain if kept is SOME_KEPT else outcome(trained(tmp_path, *settings, "knobs.prefetch_depth=0"))
    for others in ([f"knobs.prefetch_depth={pace.ahead}"], ["run.host_memory=1MiB", *AS_IN_MEMORY, "knobs.prefetch_depth=6"]):
        assert outcome(trained(tmp_path, *settings, *others)) == expected, others
    counts = expected[1]
    assert counts["came_back"] > 10
    assert (counts["dropped"] > 50) == (kept is SOME_KEPT)
    lost = outcome(trained(tmp_path, *settings, "data.keep_evicted=0"))
    assert lost[0] != expected[0], "values that come back change the losses"
    assert lost[1]["kept"] == lost[1]["came_back"] == lost[1]["dropped"] == 0


def test_rows_whose_ids_are_kept_stay_on_the_device(tmp_path: Path, pace: Pace) -> None:
    runtime = trained(tmp_path, *settings_of(KEPT, pace), "knobs.policy=device_only")
    assert counts_of(runtime)["came_back"] > 10
    assert runtime.store.hot.tier.hot_rows == runtime.store.space.rows


@pytest.mark.slow
def test_they_come_back_on_a_device_too(tmp_path: Path, pace: Pace, plain: Any) -> None:
    kept = settings_of(SOME_KEPT, pace)

    def on_device(depth: int) -> Any:
        settings = [*SETTINGS, *kept, f"knobs.prefetch_depth={depth}", "run.cuda_graphs=false"]
        config, streams = load_config("tiny", {}, settings), LateStreams(seed=depth)
        runtime = assembling.assemble(config, streams=streams, options=RunOptions(rows=tmp_path))
        list(runtime.run())
        return outcome(runtime)

    expected = on_device(0)
    assert expected[1]["came_back"] > 10
    assert on_device(9) == expected
    assert plain[1] == expected[1]


@pytest.mark.parametrize(
    ("kept", "where"),
    [
        pytest.param(SOME_KEPT, "run.host_memory=1MiB", id="some-disk"),
        pytest.param(KEPT, "run.host_memory=0", id="all-memory", marks=pytest.mark.slow),
        pytest.param(SOME_KEPT, "run.host_memory=0", id="some-memory", marks=pytest.mark.slow),
        pytest.param(KEPT, "run.host_memory=1MiB", id="all-disk", marks=pytest.mark.slow),
    ],
)
def test_a_run_resumes_amid_ids_that_are_kept(tmp_path: Path, pace: Pace, kept: list[str], where: str) -> None:
    settings = [*settings_of(kept, pace), where, "knobs.prefetch_depth=7", "knobs.admit_after=2"]
    expected, folder, step = outcome(trained(tmp_path / "unbroken", *settings)), None, 0
    end = pace(200)
    for stop in (pace(40), pace(141), pace(160), end - 1, end, pace(251), pace(303), None):
        runtime = run_of(tmp_path / str(stop), *settings)
        if folder is not None:
            checkpoint.load(runtime.parts, folder)
        assert runtime.step_number == step
        reports = runtime.run()
        while stop is None or runtime.step_number < stop:
            if next(reports, None) is None:
                break
        if stop is not None:
            folder, step = checkpoint.save(runtime.parts, tmp_path / "checkpoints"), stop
            reports.close()  # type: ignore[attr-defined]
    assert outcome(runtime) == expected
    assert expected[1]["came_back"] > 10


def test_it_is_refused_where_it_can_do_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='keep_evicted must be 0 unless ids = "raw", got 12'):
        run_of(tmp_path, "data.ids=auto", "data.shared_rows=1", "knobs.evict_ratio=0", "data.keep_evicted=12")
    with pytest.raises(ConfigError, match="run.disk must name a folder where data.keep_evicted is set"):
        run_of(None, "data.keep_evicted=12")  # type: ignore[arg-type]
