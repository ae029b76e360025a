"""Profiles of machines: written, read, edited; what is predicted from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from adaptive_rec.config.tree import load_config
from adaptive_rec.data.open import open_source
from adaptive_rec.errors import ConfigError
from adaptive_rec.offline.disk_speed import measure_disk
from adaptive_rec.offline.forecast import calibrate
from adaptive_rec.offline.forecast.calibrate import calibrated
from adaptive_rec.offline.forecast.hardware import (
    DenseCosts,
    DiskCosts,
    Hardware,
    LinkCosts,
    RowCosts,
    StepCosts,
    read_hardware,
    to_text,
)
from adaptive_rec.offline.forecast.lane import StepCounts
from adaptive_rec.offline.forecast.predict import Workload, cost, disk_seconds, multiplications, predict_step_seconds
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy.find import load_policy

ROWS = RowCosts(
    dim=16, gather_hot_ns=1, gather_cold_ns=2, sum_ns=3, update_hot_ns=4, update_cold_ns=5, migrate_ns=100, probe_ns=40
)
STEP = StepCosts(
    other_ms=0.5, read_ns=10, classify_ns=20, track_ns=30, trial_ns=70, tick_ms=6, arrange_ns=9, decide_us=50, decide_ns=7,
    request_us=8,
)  # fmt: skip
MACHINE = Hardware(
    name="made up", cores=2, rows=(ROWS,), dense=DenseCosts(multiplications=1000, call_ms=1, sample_us=10), step=STEP
)
TALLY = StepCounts(
    steps=10, samples=1000, popular_samples=400, lookups=26_000, hot_lookups=20_000, rows=9000, hot_rows=5000,
    cold_row_bytes=272_000, counted_rows=4500, reclassifications=2, ranked_rows=3000, ticks=1, read_lookups=26_000,
    migrated_rows=100, promoted_bytes=4000, demoted_bytes=2800,
)  # fmt: skip
LOAD = Workload(
    tally=TALLY, dim=16, tables=26, multiplications=1000, probe_ratio=0.0, prefetches=True, requests_per_table=False,
    adapts_memory=False, arranges=False,
)  # fmt: skip


def test_a_profile_is_written_and_read_as_it_was(tmp_path: Path) -> None:
    made = MACHINE.model_copy(update={"rows": (ROWS, ROWS.model_copy(update={"dim": 64})), "name": 'a "b"\n€'})
    path = tmp_path / "here.toml"
    path.write_text(to_text(made), encoding="utf-8")
    assert read_hardware(path) == made
    text = path.read_text(encoding="utf-8")
    assert all("#" in line for line in text.splitlines() if "=" in line)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("name = 3", "name"),
        ("[[rows]]\ndim = 16\nwrong = 1", "wrong"),
        ("[[rows]]\ndim = 16\ngather_hot_ns = -1", "gather_hot_ns"),
        ("[[rows]", "not valid TOML"),
        ('name = "none"', r"at least one \[\[rows\]\]"),
    ],
)
def test_files_that_hold_no_profile_are_refused(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "here.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=named):
        read_hardware(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_hardware(tmp_path)


def test_costs_of_other_dims_lie_between_and_grow_beyond() -> None:
    wide = ROWS.model_copy(update={"dim": 64, "gather_cold_ns": 8.0})
    machine = MACHINE.model_copy(update={"rows": (wide, ROWS)})
    assert machine.of_dim(16) == ROWS
    assert machine.of_dim(40).gather_cold_ns == pytest.approx(5.0)
    assert machine.of_dim(128).gather_cold_ns == pytest.approx(16.0)
    assert machine.of_dim(4).gather_cold_ns == pytest.approx(2.0)  # a row of a few bytes costs a fetch too


def test_a_step_on_the_host_is_the_sum_of_its_parts() -> None:
    """Added up by hand, for one of ten steps, in microseconds."""
    dense = 1000 + 100 * 10
    classify, gather = 2600 * 0.020, 2000 * 0.001 + 600 * 0.002
    update = 2600 * 0.003 + 500 * 0.004 + 400 * 0.005
    read, track = 2600 * 0.010 / 2, 450 * 0.030 / 2
    decide, migrate = 0.2 * 50 + 300 * 0.007, 10 * 0.100
    expected = 500 + dense + classify + gather + update + read + track + decide + migrate
    # Ticks count in the cost of decisions, whichever policy has any.
    assert predict_step_seconds(LOAD, MACHINE) == pytest.approx(1e-6 * (expected + 0.1 * 6000))


@pytest.mark.parametrize(
    ("change", "more_us"),
    [
        ({"prefetches": False}, 2600 * 0.010 / 2),
        ({"requests_per_table": True}, 2 * 25 * 8),
        ({"probe_ratio": 0.5}, 500 * 0.040 / 2),
        ({"adapts_memory": True}, 450 * 0.070 / 2),
        ({"arranges": True}, 2600 * 0.009 / 2),
        ({"multiplications": 2000}, 1000),
        ({"tally": replace(TALLY, decided_lookups=10_000)}, 1000 * 0.010),
        ({"tally": replace(TALLY, evaluated_samples=300)}, 30 * 10 / 3),
    ],
)
def test_more_work_costs_more(change: dict[str, object], more_us: float) -> None:
    more = predict_step_seconds(replace(LOAD, **change), MACHINE) - predict_step_seconds(LOAD, MACHINE)  # type: ignore[arg-type]
    assert more == pytest.approx(1e-6 * more_us)


def test_on_a_device_the_longest_of_what_overlaps_counts() -> None:
    machine = MACHINE.model_copy(update={"link": LinkCosts(up_gbs=0.01, down_gbs=0.005, copy_us=10)})
    parts = cost(LOAD, machine)
    assert parts.up == pytest.approx(27_600 / 1e7 + 20e-6)
    assert parts.down == pytest.approx(27_480 / 5e6 + 10e-6)
    apart = predict_step_seconds(replace(LOAD, prefetches=False), machine)
    together = predict_step_seconds(LOAD, machine)
    between = parts.other + parts.decide + parts.migrate
    assert together == pytest.approx(between + parts.down)
    stages = parts.dense + parts.update + parts.read + parts.classify + parts.gather + parts.up + parts.down
    assert apart == pytest.approx(between + stages)


def test_a_step_takes_at_least_as_long_as_the_disk() -> None:
    machine = MACHINE.model_copy(update={"disk": DiskCosts(read_us=20, read_cpu_us=8, write_gbs=0.01)})
    on_disk = replace(LOAD, on_disk=True)
    seconds = 400 * 20e-6 + 27_200 / 1e7  # a step has 400 cold rows
    assert disk_seconds(on_disk, machine) == pytest.approx(seconds)
    assert disk_seconds(LOAD, machine) is None
    assert disk_seconds(on_disk, MACHINE) is None
    assert predict_step_seconds(LOAD, machine) == predict_step_seconds(LOAD, MACHINE)
    assert predict_step_seconds(on_disk, machine) == pytest.approx(seconds)
    quick = machine.model_copy(update={"disk": machine.disk.model_copy(update={"read_us": 0.1, "write_gbs": 10.0})})
    plain = predict_step_seconds(LOAD, MACHINE)
    assert predict_step_seconds(on_disk, quick) == pytest.approx(plain + 400 * 8e-6 / 2), "reading takes a core's time"
    waits = predict_step_seconds(replace(on_disk, prefetches=False), machine)
    assert waits == pytest.approx(predict_step_seconds(replace(LOAD, prefetches=False), machine) + seconds + 400 * 8e-6 / 2)


def test_multiplications_are_those_of_the_layers() -> None:
    config = load_config("tiny", {}, ["model.bottom_mlp=[32]", "model.top_mlp=[16]"])
    source = open_source(config)
    found = multiplications(config, source, RowSpace.of(source.tables, source.features))
    dense, dim, vectors = source.dense_features, 8, 5
    width = dim + vectors * (vectors - 1) // 2
    layers = dense * 32 + 32 * dim + width * 16 + 16 * 1
    assert layers <= found <= layers + 2 * vectors * vectors * dim  # and products of the vectors, by whatever way


def test_this_machine_can_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "measure_disk", lambda folder: measure_disk(folder, 4 << 20))
    disk = f"run.disk={tmp_path / 'not' / 'yet'}"
    config = load_config("tiny", {}, ["run.threads=1", "run.device=cpu", "run.host_memory=1MiB", disk])
    reported: list[tuple[str, int, int]] = []
    found = calibrated(config, "tiny", lambda *what: reported.append(what))
    assert [rows.dim for rows in found.rows] == [8, 16, 64, 128]
    assert found.cores >= 1
    assert found.memory_gbs > 0
    assert reported[0] == ("reading batches", 0, 9)
    assert reported[-1][1] == 8
    for rows in found.rows:
        assert rows.gather_cold_ns > 0
        assert rows.sum_ns > 0
        assert rows.migrate_ns > 0
    step = found.step
    assert min(step.read_ns, step.classify_ns, step.track_ns, step.arrange_ns, step.decide_us, step.tick_ms) > 0
    assert found.dense.call_ms + found.dense.sample_us > 0
    assert found.link == LinkCosts()
    assert found.disk.folder == str(tmp_path)
    assert min(found.disk.read_us, found.disk.read_cpu_us, found.disk.write_gbs) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_workload_has_the_properties_of_its_policy() -> None:
    config = load_config("tiny", {}, ["knobs.stale_metric=max_abs"])
    source = open_source(config)
    space = RowSpace.of(source.tables, source.features)
    loads = {
        name: Workload.of(config, source, space, load_policy(name), TALLY, 1.0)
        for name in ("hybrid", "xdl", "adaptive", "cdlrm", "slipstream")
    }
    assert [name for name, load in loads.items() if load.requests_per_table] == ["xdl"]
    assert [name for name, load in loads.items() if not load.prefetches] == ["xdl"]
    assert [name for name, load in loads.items() if load.adapts_memory] == ["adaptive"]
    assert [name for name, load in loads.items() if load.arranges] == ["cdlrm"]
    assert [name for name, load in loads.items() if load.probe_ratio] == ["adaptive", "slipstream"]
