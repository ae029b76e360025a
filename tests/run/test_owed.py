"""What a step boundary owes when a signal comes is done after the resume: journal, metrics, summary and state of a run that is
stopped at any point and goes on equal those of a run that is never stopped."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.run.follower import Follower
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.runtime import evaluator
from adaptive_rec.runtime.steps import TrainingSteps
from adaptive_rec.system.group import Group
from tests.checkpoint.contents import newest_contents
from tests.doubles.late_threads import LateThreads

EVERY = 8
FOLLOWED = "followed.toml"
RULES = [
    "loss > 0.1 for 2 reports: checkpoint",
    "logloss > 0.1 for 2 evaluations: warn",
    "loss > 0.2 for 3 reports: warn",
]
WORLD = [
    "run.device=cpu", "run.threads=1", "run.batch_size=64", "run.steps=20", "data.synthetic.samples=6000",
    "data.synthetic.test_samples=200", "eval.batch_size=100", f"eval.every_steps={EVERY}", "knobs.report_every=3",
    "knobs.reclassify_every=6", "checkpoint.every_steps=5", "checkpoint.keep=9", "knobs.policy=slipstream",
    "knobs.stale_metric=max_abs", "knobs.stale_threshold=0.05", "knobs.alpha=0.3", "knobs.min_probe_touches=1",
    "knobs.prefetch_depth=0",
]  # fmt: skip
WORLDS = {
    "memory": [],
    "next window": ['eval.mode="next_window"', "data.shuffle=false"],
    "watched": [f"watch.rules={json.dumps(RULES)}"],
    "disk": ["run.host_memory=1MiB", "knobs.hot_budget_bytes=9000"],
    "followed": ["data.follow_idle_seconds=0.3", "data.max_table_rows=300", "knobs.policy=hotline", "run.steps=0"],
    "arranged": ["knobs.policy=cdlrm", "knobs.reclassify_every=12", "knobs.hot_budget_bytes=2048"],
    "float64 NAdam": ["run.precision=float64", "optimizer.dense=NAdam"],
    "float64 ASGD": ["run.precision=float64", "optimizer.dense=ASGD"],
    "two ranks": ["run.device=cpu"],
    "two ranks, disk": ["run.host_memory=1MiB", "knobs.hot_budget_bytes=9000"],
}
OF_A_STOP = {"started", "stopping", "finished", "saving", "checkpoint", "resumed", "paused"}
"""Kinds of events that a stop and a resume add, or that name its checkpoints."""
NOT_COMPARED = ("seconds", "processor_seconds", "samples_per_second", "stage_seconds", "ranks", "straggler", "disk")
"""Clocks, and counts of rows that were in memory: a resumed run begins without them."""


class Signal:
    """A signal at the n-th point of a run: a step, a report, or a batch of an evaluation that begins."""

    def __init__(self, at: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self.points: list[str] = []
        self._at = at
        self._run: TrainingRun | None = None
        self._thread = 0
        make, evaluate = TrainingSteps.make, evaluator.score_batches

        def step(*args: Any) -> None:
            self.pass_by("step")
            make(*args)

        def scored(batches: Iterator[Any], *args: Any) -> Any:
            return evaluate(self._noted(batches), *args)

        monkeypatch.setattr(TrainingSteps, "make", step)
        monkeypatch.setattr(evaluator, "score_batches", scored)

    def _noted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self.pass_by("batch of an evaluation")
            yield batch

    def pass_by(self, what: str) -> None:
        if threading.get_ident() != self._thread:  # of another rank
            return
        if len(self.points) == self._at:
            assert self._run is not None
            self._run.present.hurry()
        self.points.append(what)

    def train(self, run: TrainingRun) -> None:
        self._run, self._thread = run, threading.get_ident()
        for report in run.events():
            self.pass_by(f"{type(report).__name__} {getattr(report, 'kind', '')}")
        run.finish()
        self._run = None


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def journal(run: Path) -> list[dict[str, Any]]:
    """The events, without those of stops, clocks, and what names checkpoints."""
    found = [event for event in lines(run / "events.jsonl") if event["kind"] not in OF_A_STOP]
    return [{name: each[name] for name in ("step", "kind", "text", "details")} for each in found if is_due(run, each)]


def is_due(run: Path, line: Mapping[str, Any]) -> bool:
    """Whether a run that follows its data evaluates at this step; where it is stopped, it says how far the window has come."""
    is_evaluation = "evaluation" in (line.get("kind"), line.get("event"))
    return not is_evaluation or not (run.parent / FOLLOWED).exists() or line["step"] % EVERY == 0


def metrics(run: Path) -> list[dict[str, Any]]:
    """The figures of reports that were due and of evaluations, without clocks."""
    found = [line for line in lines(run / "metrics.jsonl") if not line.get("interim")]
    for line in found:
        totals = line.get("totals", {})
        line["totals"] = {name: value for name, value in totals.items() if name != "seconds" and not name.startswith("disk_")}
    found = [{name: value for name, value in line.items() if name not in NOT_COMPARED} for line in found]
    return [line for line in found if is_due(run, line)]


def summary(run: Path) -> dict[str, Any]:
    names = ("steps", "samples_seen", "samples_trained", "row_updates", "row_updates_skipped", "train_logloss", "eval", "windows",
             "best_eval", "hot_lookup_ratio", "hot_rows", "stale_rows", "migrated_rows")  # fmt: skip
    found = json.loads((run / "summary.json").read_text())
    return {name: found[name] for name in names}


def followed(folder: Path) -> str:
    """The configuration of a run that follows a file."""
    if not (path := folder / FOLLOWED).exists():
        rows = "".join(f"{n % 3 % 2},item {n * n % 97},{n % 50}\n" for n in range(1300))
        (folder / "clicks.csv").write_text(f"label,item,price\n{rows}")
        with redirect_stdout(io.StringIO()) as printed:
            words = [f"--data={folder / 'clicks.csv'}", "--label=label", "--follow", f"--out={folder / 'run'}"]
            assert main(["train", "--print-config", *words]) == 0
        path.write_text(printed.getvalue())
    return str(path)


def trained(out: Path, world: str, at: int | None, monkeypatch: pytest.MonkeyPatch, resume: bool = False) -> list[str]:
    """Train until the signal, and return the points passed by."""
    with monkeypatch.context() as patched:
        signal = Signal(at, patched)
        start = followed(out.parent) if world == "followed" else "tiny"
        config = load_config(str(out / "config.toml") if resume else start, {}, [] if resume else [*WORLD, *WORLDS[world]])


        def of_rank(group: Group) -> None:
            if group.rank:
                Follower(config, out, resume, (), group).train()
                return
            run = TrainingRun(config, out, resume=resume, group=group)
            run.runtime.state.pause_as_saved(reachable=group.tell(False))
            signal.train(run)

        if "two ranks" in world:
            LateThreads.train(2, of_rank)
        else:
            signal.train(TrainingRun(config, out, resume=resume))
    return signal.points


def same(one: Path, other: Path) -> None:
    assert journal(one) == journal(other)
    assert metrics(one) == metrics(other)
    assert summary(one) == summary(other)
    mine, theirs = newest_contents(one), newest_contents(other)
    assert mine.pop("state") == theirs.pop("state")
    assert {name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)} == set()


def stopped_everywhere(
    folder: Path, world: str, monkeypatch: pytest.MonkeyPatch, some: Callable[[list[str]], Iterable[int]]
) -> None:
    """Compare runs that were stopped at points of a run, those that `some` returns, with an unbroken one."""
    points = trained(folder / "whole", world, None, monkeypatch)
    for at in some(points):
        out = folder / f"run-{at}"
        trained(out, world, at, monkeypatch)
        trained(out, world, None, monkeypatch, resume=True)
        try:
            same(out, folder / "whole")
        except AssertionError as error:
            raise AssertionError(f"{world}: a signal at point {at}, {points[at]}, of {points}") from error


def of_each_kind(points: list[str]) -> list[int]:
    return sorted({points.index(kind) for kind in points} | {points.index("batch of an evaluation") + 1})


def test_a_report_that_a_checkpoint_owes_counts_the_rows_on_the_disk_of_its_whole_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of step 6 is saved before its report. (Where rows come from differs: host memory begins empty.)"""

    def of_disk(run: Path) -> list[dict[str, float]]:
        found = [line["disk"] for line in lines(run / "metrics.jsonl") if line.get("step") == 6 and "disk" in line]
        return [{name: each[f"{name}_per_step"] for name in ("rows_ahead", "rows_drawn", "rows_written")} for each in found]

    settings = [*WORLD, *WORLDS["disk"], "checkpoint.every_steps=6", "run.steps=8"]
    run = TrainingRun(load_config("tiny", {}, settings), tmp_path / "run")
    for report in run.events():
        if getattr(report, "kind", "") == "checkpoint" and report.step == 6:
            break
    [before] = of_disk(tmp_path / "run")
    resumed = TrainingRun(load_config(str(tmp_path / "run" / "config.toml"), {}), tmp_path / "run", resume=True)
    list(resumed.events())
    resumed.finish()
    assert of_disk(tmp_path / "run")[-1] == before
    assert before["rows_ahead"] > 0


@pytest.mark.parametrize("world", ["watched", pytest.param("next window", marks=pytest.mark.slow)])
def test_a_signal_at_some_point_of_each_kind_loses_nothing(
    world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_everywhere(tmp_path, world, monkeypatch, of_each_kind)


@pytest.mark.parametrize("world", ["arranged", "float64 NAdam", "float64 ASGD"])
def test_a_signal_at_a_step_loses_nothing(world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that moved since the last report of them; 32-bit state of an optimizer of 64-bit weights."""
    steps = lambda points: [at for at, kind in enumerate(points) if kind == "step"][7:8]  # noqa: E731
    stopped_everywhere(tmp_path, world, monkeypatch, steps)


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_a_signal_at_any_point_loses_nothing(world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_everywhere(tmp_path, world, monkeypatch, lambda points: range(len(points)))
