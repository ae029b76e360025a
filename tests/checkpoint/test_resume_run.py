"""Resumed runs with a directory: knobs, journal, occasional checkpoints, and failing disks."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.checkpoint import files as disk
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.history import chain
from adaptive_rec.config.tree import load_config, overridden_knobs
from adaptive_rec.errors import CheckpointError, DataError
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.telemetry import Event, Snapshot
from adaptive_rec.run.resume import evaluate_run
from adaptive_rec.run.training_run import TrainingRun
from tests.checkpoint.contents import newest_contents
from tests.matrix import always, grid, only

SMALL = [
    "run.device=cpu", "run.threads=1", "run.steps=40", "run.batch_size=64", "data.synthetic.samples=6000",
    "data.synthetic.test_samples=200", "knobs.report_every=1", "knobs.reclassify_every=5", "knobs.stale_metric=max_abs",
    "knobs.stale_threshold=0.05", "knobs.alpha=0.3", "knobs.min_probe_touches=1", "knobs.policy=slipstream",
]  # fmt: skip


def begin(out: Path, *changes: str, **options: Any) -> TrainingRun:
    return TrainingRun(load_config("tiny", {}, [*SMALL, *changes]), out, **options)


def go_on(out: Path, *settings: str) -> TrainingRun:
    """As ``train --resume --out OUT`` with some --set."""
    config = load_config(str(out / "config.toml"), {}, settings)
    return TrainingRun(config, out, resume=True, overridden=overridden_knobs({}, settings))


def steered(run: TrainingRun, changes: dict[int, dict[str, Any]], lost_at: int | None = None) -> Iterator[Event]:
    """Train with knobs changed by a client after some steps. A run that is lost leaves its directory as it is."""
    for report in run.events():
        if isinstance(report, Snapshot) and report.step == run.runtime.step_number:
            if report.step == lost_at:
                return
            if report.step in changes:
                run.runtime.mailbox.change_knobs(**changes[report.step])
        if isinstance(report, Event):
            yield report


def assert_same_end(one: Path, other: Path) -> None:
    mine, theirs = newest_contents(one), newest_contents(other)
    assert {name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)} == set()


def test_a_run_resumes_with_the_knobs_that_it_was_set_to(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "run.steps=10")
    list(steered(run, {4: {"alpha": 0.5, "hot_budget_bytes": 9000}}))
    run.finish()

    again = go_on(tmp_path / "run", "run.steps=20")
    assert (again.runtime.knobs.alpha, again.runtime.knobs.hot_budget_bytes) == (0.5, 9000)
    assert again.runtime.state.knobs_step == 5
    assert [event.kind for event in steered(again, {}) if event.kind == "knobs"] == []
    assert load_config(str(tmp_path / "run" / "config.toml"), {}).knobs.alpha == 0.3, "what it began with"


def test_knobs_given_on_resume_win_and_are_journaled(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "run.steps=10")
    list(steered(run, {4: {"alpha": 0.5}}))
    run.finish()

    again = go_on(tmp_path / "run", "run.steps=20", "knobs.alpha=0.3", "knobs.decay=0.25")
    [event] = [event for event in steered(again, {}) if event.kind == "knobs"]
    assert event.step == 10
    assert event.details["changed"] == {"alpha": {"old": 0.5, "new": 0.3}, "decay": {"old": 0.6, "new": 0.25}}
    assert again.runtime.knobs.alpha == again.runtime.mailbox.desired.alpha == 0.3


def test_a_policy_without_live_switch_starts_at_the_reader_s_position(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "run.steps=10")
    list(run.events())
    run.finish()
    again = go_on(tmp_path / "run", "run.steps=20", "knobs.policy=cdlrm")
    [event] = [event for event in steered(again, {}) if event.kind == "knobs"]
    assert event.details["changed"] == {"policy": {"old": "slipstream", "new": "cdlrm"}}
    assert again.runtime.reports.totals()["samples_seen"] == 20 * 64
    assert again.runtime.policy.name == "cdlrm"


def test_a_policy_that_looks_ahead_may_be_left_on_resume(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "run.steps=11", "knobs.policy=cdlrm", "knobs.lookahead_batches=4")
    list(run.events())
    run.finish()
    again = go_on(tmp_path / "run", "run.steps=20", "knobs.policy=hotline")
    assert [event.kind for event in steered(again, {}) if event.kind == "knobs"] == ["knobs"]
    assert again.runtime.reports.totals()["samples_trained"] == 20 * 64
    assert again.runtime.policy.name == "hotline"


@grid(always, only(14), lost_at=[12, 14, 16, 23])
def test_a_killed_and_steered_run_ends_as_the_uninterrupted_one_and_can_be_replayed(
    tmp_path: Path, lost_at: int
) -> None:
    changes = {3: {"alpha": 0.2}, 9: {"hot_budget_bytes": 9000}, 30: {"action": "freeze"}}
    straight = begin(tmp_path / "straight")
    list(steered(straight, changes))
    straight.finish()

    lost = begin(tmp_path / "run", "checkpoint.every_steps=5")
    list(steered(lost, {**changes, lost_at - 1: {"alpha": 0.9}}, lost_at))  # this change is lost with the steps
    again = go_on(tmp_path / "run")
    assert again.started_at_step == 5 * (lost_at // 5)
    list(steered(again, changes))
    again.finish()
    assert_same_end(tmp_path / "straight", tmp_path / "run")

    config = load_config(str(tmp_path / "run" / "config.toml"), {})
    replayed = TrainingRun(config, tmp_path / "replayed", replay=tmp_path / "run")
    list(replayed.events())
    replayed.finish()
    assert_same_end(tmp_path / "straight", tmp_path / "replayed")


@grid(always, only(13), stopped_at=[10, 13])
def test_a_run_resumed_with_other_knobs_can_be_replayed(tmp_path: Path, stopped_at: int) -> None:
    """At the end of a window and within one; the change comes after the window's end, as it did."""
    run = begin(tmp_path / "run", f"run.steps={stopped_at}")
    list(run.events())
    run.finish()
    again = go_on(tmp_path / "run", "run.steps=40", "knobs.hot_budget_bytes=9000", "knobs.alpha=0.2")
    list(again.events())
    again.finish()

    config = load_config(str(tmp_path / "run" / "config.toml"), {})
    replayed = TrainingRun(config, tmp_path / "replayed", replay=tmp_path / "run")
    list(replayed.events())
    replayed.finish()
    assert_same_end(tmp_path / "run", tmp_path / "replayed")


@pytest.mark.slow
def test_occasional_checkpoints_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = begin(tmp_path / "straight")
    list(straight.events())
    straight.finish()
    run = begin(tmp_path / "run", "checkpoint.every_seconds=0.000001", "checkpoint.every_steps=7", "checkpoint.keep=3")
    written = [event.details["checkpoint"] for event in steered(run, {}) if event.kind == "checkpoint"]
    by_steps = [f"step-{step:09d}" for step in range(7, 40, 7)]
    assert [name for name in written if name in by_steps] == by_steps
    assert len(written) > len(by_steps), "and whenever none is under way"
    run.finish()
    assert_same_end(tmp_path / "straight", tmp_path / "run")
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept[-1] == "step-000000040"

    def built_on(name: str) -> list[str]:
        return [link.path.name for link in chain(DISK, tmp_path / "run" / "checkpoints" / name)]

    chains = [built_on(name) for name in kept[-3:]]
    others = sorted(set(kept) - {name for names in chains for name in names})
    bases = {names[0] for names in chains}
    if others:  # the newest of another base, with what it builds on, stays where all share one
        assert len(bases) == 1
        assert built_on(others[-1]) == others
        assert others[0] not in bases


def test_checkpoints_by_steps_only(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "checkpoint.every_seconds=0", "checkpoint.every_steps=15")
    assert written_at(steered(run, {})) == [15, 30]


def written_at(events: Iterable[Event]) -> list[int]:
    """The steps that checkpoints are of; when they were there is another matter."""
    return [int(event.details["checkpoint"][5:14]) for event in events if event.kind == "checkpoint"]


def test_a_full_disk_is_reported_and_training_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(tmp_path / "run", "checkpoint.every_steps=10")
    create, full = disk.Disk.create, [20]

    def create_or_fail(self: Any, path: Path) -> Any:
        if any(f"{step:09d}" in str(path) for step in full):
            raise OSError(errno.ENOSPC, "No space left on device")
        return create(self, path)

    monkeypatch.setattr(disk.Disk, "create", create_or_fail)
    events = list(steered(run, {}))
    [failed] = [event for event in events if event.kind == "checkpoint_failed"]
    assert "no checkpoint was written, training continues" in failed.text
    assert "No space left" in failed.text
    assert run.runtime.state.checkpoints.failed == 1
    assert written_at(events) == [10, 30]
    full.append(40)
    assert run.finish()["steps"] == 40
    assert isinstance(run.failure, CheckpointError)
    assert "No space left" in str(run.failure)


def test_a_damaged_checkpoint_is_skipped_and_reported(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "checkpoint.every_steps=10")
    list(steered(run, {}, lost_at=33))
    newest = tmp_path / "run" / "checkpoints" / "step-000000030"
    shard = bytearray((newest / "rows-00000.safetensors").read_bytes())
    shard[-1] ^= 1
    (newest / "rows-00000.safetensors").write_bytes(shard)

    again = go_on(tmp_path / "run")
    assert again.started_at_step == 20
    events = list(steered(again, {}))
    [warning] = [event for event in events if event.kind == "warning"]
    assert "step-000000030 was passed over" in warning.text
    assert "rows-00000.safetensors is damaged" in warning.text
    again.finish()
    straight = begin(tmp_path / "straight")
    list(straight.events())
    straight.finish()
    assert_same_end(tmp_path / "straight", tmp_path / "run")

    for path in (tmp_path / "run" / "checkpoints").glob("*/state.json"):
        path.write_bytes(b"{}")
    with pytest.raises(CheckpointError, match="must be whole, none is"):
        go_on(tmp_path / "run")


def test_a_run_killed_after_its_last_step_still_gets_its_summary(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "run.steps=10")
    list(run.events())
    run.finish()
    longer = go_on(tmp_path / "run", "run.steps=20", "checkpoint.every_steps=10")
    list(longer.events())  # and never finished: what is there is the summary of step 10
    again = go_on(tmp_path / "run")
    assert [report for report in again.events() if isinstance(report, Snapshot) and report.step > 20] == []
    assert again.finish()["steps"] == 20
    assert go_on(tmp_path / "run").finish()["steps"] == 20


OTHERS = {
    "hybrid": ["knobs.policy=hybrid"],
    "slipstream": ["knobs.policy=slipstream", "knobs.probe_ratio=1.0"],
    "another budget": ["knobs.hot_budget_bytes=5000"],
    "no budget": ["knobs.hot_budget_bytes=0"],
    "nothing ahead": ["knobs.prefetch_depth=0"],
    "xdl": ["knobs.policy=xdl"],
    "cdlrm": ["knobs.policy=cdlrm"],
    "device_only": ["knobs.policy=device_only"],
}


Stopped = tuple[Path, dict[str, float], dict[str, float]]
"""A run's directory, its evaluation, and that of the run that went on to the end."""


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    folder, exact = tmp_path_factory.mktemp("stopped"), ["knobs.policy=hotline", "run.precision=float64"]
    straight = begin(folder / "straight", *exact)
    list(straight.events())
    first = begin(folder / "run", *exact, "run.steps=17")
    list(first.events())
    stopped = first.finish()["eval"]
    assert first.runtime.store.hot.tier.hot_rows
    return folder / "run", stopped, straight.finish()["eval"]


@grid(always, only("slipstream", "another budget"), changed=list(OTHERS))
def test_a_checkpoint_of_hotline_resumes_under_any_policy_with_the_same_evaluation(
    tmp_path: Path, stopped_run: Stopped, changed: str
) -> None:
    """Taken over as it is, and trained on by plain steps: `slipstream` skips nothing on probe steps."""
    left, stopped, wanted = stopped_run
    shutil.copytree(left, tmp_path / "run")
    taken_over = go_on(tmp_path / "run", *OTHERS[changed])
    evaluation = taken_over.runtime.evaluate()
    assert evaluation
    assert evaluation.quality.auc == pytest.approx(stopped["auc"], abs=1e-12)
    assert evaluate_run(tmp_path / "run")[0].quality.auc == pytest.approx(stopped["auc"], abs=1e-12)

    again = go_on(tmp_path / "run", *OTHERS[changed], "run.steps=40")
    list(again.events())
    found = again.finish()
    assert found["steps"] == 40
    assert found["eval"]["auc"] == pytest.approx(wanted["auc"], abs=1e-9)
    assert found["eval"]["logloss"] == pytest.approx(wanted["logloss"], abs=1e-9)


@pytest.mark.slow
def test_a_replay_that_is_killed_goes_on_with_the_journal(tmp_path: Path) -> None:
    changes = {3: {"alpha": 0.2}, 10: {"hot_budget_bytes": 9000}, 12: {"alpha": 0.7}, 30: {"action": "freeze"}}
    first = begin(tmp_path / "run")
    list(steered(first, changes))
    first.finish()
    config = load_config(str(tmp_path / "run" / "config.toml"), {}, ["checkpoint.every_steps=5"])
    for killed_at in (4, 13):  # before the first checkpoint, and behind that of step 10
        out = tmp_path / f"replayed-{killed_at}"
        list(steered(TrainingRun(config, out, replay=tmp_path / "run"), {}, killed_at))
        again = go_on(out)
        assert again.started_at_step == 5 * (killed_at // 5)
        list(again.events())
        again.finish()
        assert_same_end(tmp_path / "run", out)
    (tmp_path / "run" / "events.jsonl").unlink()
    with pytest.raises(DataError, match=r"replayed-13 replays .*run and needs its journal to go on: .* cannot be read"):
        go_on(out)


def test_a_replay_that_was_saved_between_two_commands_makes_the_second_one_first(tmp_path: Path) -> None:
    first = begin(tmp_path / "run")
    list(steered(first, {7: {"alpha": 0.2}, 8: {"alpha": 0.7}}))
    first.finish()
    config, out = load_config(str(tmp_path / "run" / "config.toml"), {}), tmp_path / "replayed"
    run = TrainingRun(config, out, replay=tmp_path / "run")
    for report in run.events():
        if isinstance(report, Snapshot) and report.step == run.runtime.step_number == 8:
            run.runtime.mailbox.send(Command("checkpoint"))  # comes before the change that is repeated at the same boundary
        if isinstance(report, Event) and report.kind == "checkpoint":
            break
    assert run.runtime.knobs.alpha == 0.7
    again = go_on(out)
    assert (again.started_at_step, again.runtime.knobs.alpha) == (9, 0.2)
    list(again.events())
    again.finish()
    assert_same_end(tmp_path / "run", out)
