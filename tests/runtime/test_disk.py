"""Runs with rows on a disk: what is refused, and a run that ends, resumes and moves between disk and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config, overridden_knobs
from adaptive_rec.embedding.disk import row_log
from adaptive_rec.embedding.path.read_ahead import ReadAheadPath
from adaptive_rec.errors import AdaptiveRecError, ConflictError
from adaptive_rec.live.shared_state import StateReader
from adaptive_rec.live.telemetry import Event, Snapshot
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.run_options import RunOptions
from tests.settings import AS_IN_MEMORY

ON_DISK = ["run.host_memory=1MiB", "knobs.hot_budget_bytes=24KiB"]


def test_host_memory_sets_the_budget_of_hot_rows_unless_that_is_given_too() -> None:
    assert load_config("tiny", {}, ["run.host_memory=8MiB"]).knobs.hot_budget_bytes == 7 << 20
    assert load_config("tiny", {}, ["run.host_memory=8MiB", "knobs.hot_budget_bytes=1MiB"]).knobs.hot_budget_bytes == 1 << 20
    assert load_config("tiny", {}, []).knobs.hot_budget_bytes == 24 << 10


def test_knobs_suit_a_disk_unless_they_are_given() -> None:
    def chosen(*settings: str) -> tuple[float, float | str]:
        knobs = load_config("tiny", {}, settings).knobs
        return knobs.hysteresis, knobs.decay

    assert chosen() == chosen("run.host_memory=0B") == (0.1, 0.6)
    assert chosen("run.host_memory=8MiB") == (1, "auto")
    assert chosen("run.host_memory=8MiB", "knobs.hysteresis=0.2", "knobs.decay=0.5") == (0.2, 0.5)


def test_a_size_of_memory_that_is_given_again_changes_no_knob(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[run]\nhost_memory = "8MiB"\n[knobs]\nhot_budget_bytes = "1MiB"\nhysteresis = 0.2\n')
    again = load_config(str(path), {}, ["run.host_memory=8MiB"]).knobs
    assert (again.hot_budget_bytes, again.hysteresis, again.decay) == (1 << 20, 0.2, "auto")
    assert load_config(str(path), {}, ["run.host_memory=16MiB"]).knobs.hot_budget_bytes == 14 << 20
    assert overridden_knobs({}, ["run.host_memory=8MiB", "knobs.alpha=0.5"]) == {"alpha"}


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        (["run.host_memory=8KiB", "knobs.hot_budget_bytes=24KiB"], "hot rows must fit in run.host_memory=8KiB"),
        (["run.host_memory=8KiB", "knobs.policy=device_only"], "hot rows must fit in run.host_memory=8KiB, policy device_only"),
    ],
)
def test_what_cannot_lie_on_a_disk_is_refused_by_name(tmp_path: Path, settings: list[str], rule: str) -> None:
    with pytest.raises(AdaptiveRecError, match=rule):
        assemble(load_config("tiny", {}, settings), options=RunOptions(rows=tmp_path / "rows"))


def test_a_folder_with_rows_of_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pool-0").mkdir()
    (tmp_path / "pool-0/000000000.rows").write_text("x")
    with pytest.raises(AdaptiveRecError, match=r"run\.disk must be a folder without rows of another run"):
        assemble(load_config("tiny", {}, [*ON_DISK, f"run.disk={tmp_path}"]))


@pytest.mark.parametrize("changes", [{"hot_budget_bytes": 1 << 20}, {"policy": "device_only"}], ids=str)
def test_knobs_that_want_more_than_the_memory_are_refused_while_the_run_trains(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    settings = ["run.host_memory=30KiB", "knobs.hot_budget_bytes=24KiB", "run.steps=12"]
    runtime = assemble(load_config("tiny", {}, settings), options=RunOptions(rows=tmp_path / "rows"))
    with pytest.raises(ConflictError, match=r"hot rows must fit in run.host_memory=30KiB, these knobs give them [\d,]+ bytes"):
        runtime.mailbox.change_knobs(**changes)
    runtime.mailbox.change_knobs(hot_budget_bytes=8 << 10)
    assert [report.kind for report in runtime.run() if isinstance(report, Event) and report.kind == "knobs"] == ["knobs"]


def test_reports_say_what_a_step_does_with_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)
    settings = [*ON_DISK, "knobs.hot_budget_bytes=8KiB", "run.steps=60", "knobs.report_every=20"]
    runtime = assemble(load_config("tiny", {}, settings), options=RunOptions(rows=tmp_path))
    snapshots = [report for report in runtime.run() if isinstance(report, Snapshot)]

    assert [snapshot.step for snapshot in snapshots] == [20, 40, 60]
    last = snapshots[-1]
    assert last.disk is not None
    assert last.disk["size_bytes"] == 8192 * last.disk["segments"]
    runtime.store.close()  # nothing is compacted any more
    files = list(tmp_path.glob("pool-*/*.rows"))
    sizes = {"segments": len(files), "size_bytes": sum(file.stat().st_size for file in files)}
    assert runtime.store.cold.total_sizes() == sizes
    for name in ("rows_ahead", "rows_again", "rows_read", "rows_found", "rows_drawn", "rows_written", "rows_moved"):
        by_report = [20 * snapshot.disk[f"{name}_per_step"] for snapshot in snapshots]
        assert sum(by_report) == pytest.approx(last.totals[f"disk_{name}"])
        assert last.totals[f"disk_{name}"] > 0
    waited = sum(20 * snapshot.disk["wait_seconds_per_step"] for snapshot in snapshots if snapshot.disk)
    assert waited == pytest.approx(last.stage_seconds["disk"], abs=1e-3)
    reads = sum(last.totals[f"disk_rows_{name}"] for name in ("read", "found", "drawn"))
    assert reads >= last.totals["disk_rows_ahead"] + last.totals["disk_rows_again"]

    in_memory = assemble(load_config("tiny", {}, ["run.steps=20"]))
    assert not [report for report in in_memory.run() if isinstance(report, Snapshot) and "disk" in str(report.as_dict())]


def test_a_served_run_shows_where_its_cold_rows_are(tmp_path: Path) -> None:
    settings = [*ON_DISK, "knobs.hot_budget_bytes=8KiB", "run.steps=30"]
    runtime = assemble(load_config("tiny", {}, settings), options=RunOptions(rows=tmp_path))
    writer = runtime.publisher.open()
    reader = StateReader(writer.fd, writer.layout)
    assert not reader.placement(lambda arrays: arrays.address.copy()).any(), "no row was ever written"
    for _ in runtime.run():
        pass
    address_R = reader.placement(lambda arrays: arrays.address.copy())
    spec, log = runtime.store.space.pools[0], runtime.store.cold.types.logs[0]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(address_R[spec.first_row : spec.end_row], log.address_R)
    assert 0 < np.count_nonzero(address_R) < len(address_R)


def test_counts_of_the_disk_go_on_with_a_resumed_run(tmp_path: Path) -> None:
    def train(steps: int, *words: str) -> dict[str, int]:
        settings = [f"--set=run.steps={steps}", "--set=run.host_memory=1MiB", "--set=knobs.hot_budget_bytes=8KiB"]
        assert main(["train", "tiny", "--no-serve", *settings, *words, "--out", str(tmp_path / "run")]) == 0
        return dict(json.loads((tmp_path / "run/summary.json").read_text())["disk"])

    first = train(20)
    both = train(40, "--resume")
    for name in ("rows_ahead", "rows_written"):  # a cold start reads most, so the later steps alone have fewer
        assert both[name] > first[name] > 0


@pytest.mark.parametrize(
    ("stops", "every"), [((10, 17, 23, 30), 3), pytest.param((20, 35, 45, 60), 7, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_a_run_resumes_on_the_disk_in_memory_and_on_the_disk_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stops: tuple[int, ...], every: int
) -> None:
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)
    budget = [f"--set={each}" for each in ("knobs.hot_budget_bytes=8KiB", f"checkpoint.every_steps={every}", *AS_IN_MEMORY)]

    def train(name: str, steps: int, *words: str) -> None:
        words = ("train", "tiny", "--no-serve", "--set", f"run.steps={steps}", *budget, *words)
        assert main([*words, "--out", str(tmp_path / name)]) == 0

    disk, memory = ("--set", "run.host_memory=1MiB"), ("--set", "run.host_memory=0")
    train("plain", stops[-1])
    train("run", stops[0], *disk)
    train("run", stops[1], *disk, "--resume")
    train("run", stops[2], *memory, "--resume")
    train("run", stops[3], *disk, "--resume")

    capsys.readouterr()
    assert main(["checkpoint", "diff", str(tmp_path / "plain"), str(tmp_path / "run")]) == 0
    for words in (["eval"], ["checkpoint", "verify"], ["checkpoint", "list"]):
        assert main([*words, str(tmp_path / "run")]) == 0
    assert main(["checkpoint", "export", str(tmp_path / "run"), "--out", str(tmp_path / "tables"), "--as", "npy"]) == 0


def test_counts_of_the_disk_are_no_difference_under_a_policy_that_skips(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("run.steps=40", "knobs.hot_budget_bytes=8KiB", *AS_IN_MEMORY)
    words = ["tiny", "--policy=slipstream", "--no-serve", *(f"--set={each}" for each in settings)]
    for name, memory in (("plain", "0"), ("disk", "1MiB")):
        assert main(["train", *words, "--set", f"run.host_memory={memory}", "--out", str(tmp_path / name)]) == 0
    capsys.readouterr()
    assert main(["checkpoint", "diff", str(tmp_path / "plain"), str(tmp_path / "disk")]) == 0


def test_an_evaluation_reads_the_next_batch_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)
    settings = ["run.steps=30", "eval.batch_size=100", "eval.max_samples=450"]
    on_disk = assemble(load_config("tiny", {}, [*ON_DISK, *settings]), options=RunOptions(rows=tmp_path))
    in_memory = assemble(load_config("tiny", {}, settings))
    for runtime in (on_disk, in_memory):
        list(runtime.run())
    order: list[str] = []
    for name in ("look_ahead", "look_up"):
        done = getattr(ReadAheadPath, name)
        monkeypatch.setattr(ReadAheadPath, name, lambda *given, name=name, done=done: (order.append(name), done(*given))[1])

    found, expected = on_disk.evaluate(), in_memory.evaluate()

    assert order == ["look_ahead", *["look_ahead", "look_up"] * 4, "look_up"]
    assert found is not None
    assert expected is not None
    assert found.quality == expected.quality
    assert on_disk.evaluate() == found, "an evaluation changes nothing"
