"""A run that was paused when it was saved: it stays paused where a command can resume it, and trains where none can."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec import checkpoint
from adaptive_rec.config.tree import load_config
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.telemetry import Event, Snapshot
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions

TINY = [
    "knobs.policy=hotline", "run.device=cpu", "run.threads=1", "run.batch_size=8", "run.steps=12", "data.table_rows=[60, 9]",
    "data.dense_features=2", "data.synthetic.samples=400", "model.embedding_dim=4", "model.bottom_mlp=[4]",
    "model.top_mlp=[4]", "knobs.reclassify_every=4", "knobs.hot_budget_bytes=900",
]  # fmt: skip


def build(options: RunOptions | None = None, report_every: int = 20) -> Runtime:
    return assemble(load_config(None, {}, [*TINY, f"knobs.report_every={report_every}"]), options=options)


def tables_of(runtime: Runtime) -> list[Any]:
    return [part for table in range(2) for part in runtime.store.contents.export(table)]


def paused_at(step: int, folder: Path, asked_to_stop: bool = False, report_every: int = 20) -> Path:
    """A run that was paused at a step and ended there, by a signal or by a command."""
    runtime = build(RunOptions(folder, replayed={step: [Command("pause")]}), report_every)
    for event in runtime.run():
        if isinstance(event, Event) and event.kind == "paused":
            if asked_to_stop:
                runtime.mailbox.send(Command("stop"))
            else:
                runtime.hurry()
    return checkpoint.save(runtime.parts, folder)


def events(runtime: Runtime, letting_go: bool) -> list[tuple[int, str]]:
    """Return step and kind of the events about pausing; a command resumes the run as soon as it waits."""
    found = []
    for event in runtime.run():
        if isinstance(event, Event) and event.kind in ("paused", "resumed"):
            found.append((event.step, event.kind))
            if letting_go and event.kind == "paused":
                runtime.mailbox.send(Command("resume"))
    return found


@pytest.mark.parametrize("step", [3, 4])
def test_it_stays_paused_until_a_command_resumes_it(tmp_path: Path, step: int) -> None:
    """At a step like any other, and at one where a window ends once it resumes. Results are those of a run never paused."""
    saved = paused_at(step, tmp_path)
    runtime, straight = build(), build()
    checkpoint.load(runtime.parts, saved)
    assert (runtime.state.saved_paused, runtime.state.paused) == (True, False)
    runtime.state.pause()
    assert events(runtime, letting_go=True) == [(step, "paused"), (step, "resumed")]
    list(straight.run())
    assert runtime.step_number == straight.step_number == 12
    for mine, other in zip(tables_of(runtime), tables_of(straight), strict=True):
        np.testing.assert_array_equal(mine, other)


def shown(runtime: Runtime) -> int:
    newest = runtime.mailbox.newest
    return newest.step if newest else 0


def reports(runtime: Runtime) -> list[tuple[str, int]]:
    """Return kind and step of all reports, and what a paused run showed as its newest step."""
    found = []

    def resume() -> None:
        while runtime.state.phase != "paused":
            time.sleep(0.001)
        found.append(("shown", shown(runtime)))
        runtime.mailbox.send(Command("resume"))

    for report in runtime.run():
        if isinstance(report, Snapshot):
            found.append(("interim" if report.interim else "snapshot", report.step))
        if isinstance(report, Event) and report.kind == "paused":
            threading.Thread(target=resume).start()
    return found


@pytest.mark.parametrize("step", [4, 5])
def test_the_figures_of_a_paused_run_are_those_of_its_step(step: int) -> None:
    """At a step of which a report is due after the pause, when its windows have ended, and at another one."""
    paused = build(RunOptions(replayed={step: [Command("pause")]}), report_every=4)
    straight = build(report_every=4)
    found = reports(paused)
    assert [at for kind, at in found if kind == "snapshot"] == [4, 8, 12]
    assert [(kind, at) for kind, at in found if kind != "snapshot"] == [("interim", step), ("shown", step)]
    assert reports(straight) == [("snapshot", 4), ("snapshot", 8), ("snapshot", 12)]
    for mine, other in zip(tables_of(paused), tables_of(straight), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_run_saved_in_a_pause_does_not_report_its_step_again(tmp_path: Path) -> None:
    saved = paused_at(4, tmp_path, report_every=4)
    runtime = build(report_every=4)
    checkpoint.load(runtime.parts, saved)
    assert [at for kind, at in reports(runtime) if kind == "snapshot"] == [8, 12]


def test_it_trains_where_no_command_can_reach_it(tmp_path: Path) -> None:
    runtime = build()
    checkpoint.load(runtime.parts, paused_at(3, tmp_path))
    assert events(runtime, letting_go=False) == [(3, "resumed")]
    assert runtime.step_number == 12


def test_lost_again_while_it_waits_it_is_still_paused(tmp_path: Path) -> None:
    runtime = build()
    checkpoint.load(runtime.parts, paused_at(3, tmp_path))
    runtime.state.pause()
    for event in runtime.run():
        if isinstance(event, Event) and event.kind == "paused":
            runtime.hurry()
    assert runtime.step_number == 3
    again = build()
    checkpoint.load(again.parts, checkpoint.save(runtime.parts, tmp_path / "again"))
    assert again.state.saved_paused


def test_a_run_stopped_while_paused_is_not_paused_when_resumed(tmp_path: Path) -> None:
    runtime = build()
    checkpoint.load(runtime.parts, paused_at(3, tmp_path, asked_to_stop=True))
    assert not runtime.state.saved_paused
