"""A run whose best model trains on the validation slice at last: the rows that it trains on and scores, and the same bits after
losses and in several processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.checkpoint.generation import step_of
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.synthetic import SyntheticSource
from adaptive_rec.errors import DataError
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.telemetry import Event
from adaptive_rec.offline.report.record import read_run
from adaptive_rec.run.branching import make_branch
from adaptive_rec.run.chosen_checkpoint import chosen_checkpoint
from adaptive_rec.run.resume import evaluate_run
from adaptive_rec.run.training_run import TrainingRun
from tests.checkpoint.contents import newest_contents
from tests.run.test_stopping import KINDS, OVERFITS, assert_same, outcome, trained

SLICE = ["eval.train_slice=true", "data.synthetic.samples=1600", "knobs.report_every=3"]
"""A pass has 20 batches, the slice 5."""
BEST, STOP, END = 20, 50, 25


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return straight_run(tmp_path_factory.mktemp("straight") / "run")


def straight_run(out: Path) -> Path:
    summary = trained(out, *SLICE)
    assert (summary["best_eval"]["step"], summary["steps"], summary["steps_total"]) == (BEST, END, END)
    return out


def lost(out: Path, *changes: str, at: int, on_slice: bool, resume: bool = False) -> None:
    """Train until a step, of the passes or of the slice, after which the run is lost."""
    kept = str(out / "config.toml") if resume else "tiny"
    run = TrainingRun(load_config(kept, {}, [] if resume else [*OVERFITS, *SLICE, *changes]), out, resume=resume)
    for _ in run.events():
        if run.runtime.step_number >= at and run.runtime.state.position.on_slice == on_slice:
            run._directory.close()
            return
    raise AssertionError("the run did not come so far")


def test_the_best_model_trains_on_the_slice_once_and_scores_the_held_out_rows_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[range] = []
    draw = SyntheticSource._draw

    def noted(self: SyntheticSource, first: int, samples: int, position: Any) -> Any:
        drawn.append(range(first, first + samples))
        return draw(self, first, samples, position)

    monkeypatch.setattr(SyntheticSource, "_draw", noted)
    out = tmp_path / "run"
    summary = trained(out, *SLICE, "knobs.prefetch_depth=0")
    at_last = [each for each in drawn if each.start >= 1280][-6:]
    assert at_last == [*(range(first, first + 64) for first in range(1280, 1600, 64)), range(1600, 1900)]
    assert sum(each.stop > 1600 for each in drawn) == 1, "held-out rows are read once"
    assert (summary["eval_step"], summary["slice_trained"], summary["samples_seen"]) == (END, True, 1600)
    assert summary["stopped_early"].endswith("at step 20 (pass 1 of at most 12)")
    for wanted, step in ((None, END), ("best", END), ("newest", END), (str(BEST), BEST)):
        found, chosen = evaluate_run(out, wanted=wanted)
        assert (found.step, step_of(chosen.generation.name)) == (step, step)
        assert (json.loads(json.dumps(found.quality.as_dict())) == summary["eval"]) == (step == END)
    with chosen_checkpoint(out) as chosen:
        assert str(chosen).endswith(", trained on the validation slice besides")


def test_the_finished_model_is_that_of_plain_training_on_the_passes_and_the_slice(tmp_path: Path, straight: Path) -> None:
    """The best model is that of the end of the first pass, so a pass over all rows has the same steps."""
    plain = trained(tmp_path / "plain", *SLICE, "eval.mode=held_out", "eval.patience=0", "data.epochs=1", "eval.per_epoch=0")
    mine, theirs = newest_contents(straight), newest_contents(tmp_path / "plain")
    assert mine.keys() == theirs.keys()
    differ = {name for name in mine if mine[name] != theirs[name]}
    assert differ <= {"state"}, "evaluations and position"
    summary = json.loads((straight / "summary.json").read_text())
    assert summary["eval"] == json.loads(json.dumps(plain["eval"]))


@pytest.mark.parametrize(
    ("at", "on_slice"),
    [(STOP, False), (23, True), *(pytest.param(at, True, marks=pytest.mark.slow) for at in (20, 25))],
)
def test_a_run_that_was_lost_ends_as_the_uninterrupted_one(tmp_path: Path, straight: Path, at: int, on_slice: bool) -> None:
    out = tmp_path / "cut"
    lost(out, at=at, on_slice=on_slice)
    trained(out, resume=True)
    assert_same(straight, out)
    before = (out / "summary.json").read_text()
    assert trained(out, resume=True)["steps"] == END
    assert (out / "summary.json").read_text() == before, "nothing is left to do"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_runs_of_every_kind_that_were_lost_end_as_the_uninterrupted_ones(tmp_path: Path, kind: str) -> None:
    changes = [*SLICE, *KINDS[kind]]
    end = trained(tmp_path / "whole", *changes)
    assert end["slice_trained"], "otherwise the test shows nothing"
    best, last = end["best_eval"]["step"], end["steps"]
    for turn, (at, on_slice) in enumerate([(best + 1, False), (best, True), (last - 1, True), (last, True)]):
        lost(tmp_path / f"cut-{turn}", *KINDS[kind], at=at, on_slice=on_slice)
        trained(tmp_path / f"cut-{turn}", resume=True)
        assert_same(tmp_path / "whole", tmp_path / f"cut-{turn}")
    trained(tmp_path / "again", *changes, replay=tmp_path / "whole")
    assert_same(tmp_path / "whole", tmp_path / "again")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "raw", "disk", "cdlrm"])
def test_two_ranks_train_on_the_slice_as_one(tmp_path: Path, kind: str) -> None:
    changes = [*SLICE, "run.precision=float64", *KINDS[kind]]
    one, two = trained(tmp_path / "one", *changes), trained(tmp_path / "two", *changes, ranks=2)
    assert (two["steps"], two["eval_step"], two["slice_trained"]) == (one["steps"], one["eval_step"], True)
    assert two["eval"]["logloss"] == pytest.approx(one["eval"]["logloss"], rel=1e-10)

    def signal(run: TrainingRun, step: int) -> None:
        if run.runtime.state.position.on_slice and step >= two["steps"] - 4:
            run.runtime.hurry()

    trained(tmp_path / "cut", *changes, ranks=2, steered=signal)
    trained(tmp_path / "whole", *changes, ranks=2)
    trained(tmp_path / "cut", resume=True, ranks=2)
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.slow
def test_a_run_that_has_ended_goes_on_with_the_slice_when_that_is_set(tmp_path: Path, straight: Path) -> None:
    out = tmp_path / "run"
    trained(out, *SLICE, "eval.train_slice=false")
    assert trained(out, "eval.train_slice=true", resume=True)["slice_trained"]
    assert_same(straight, out, last=False)


@pytest.mark.slow
def test_steps_bound_the_passes_alone_and_a_stop_leaves_the_slice_to_a_resume(tmp_path: Path) -> None:
    few = trained(tmp_path / "few", *SLICE, "run.steps=10", "eval.patience=0")
    assert (few["steps"], few["best_eval"]["step"], few["eval_step"]) == (15, 10, 15)

    def stop(run: TrainingRun, step: int) -> None:
        if step == 15:
            run.runtime.mailbox.send(Command("stop", {}))

    stopped = trained(tmp_path / "stopped", *SLICE, steered=stop)
    assert (stopped["steps"], stopped["slice_trained"]) == (16, False)  # at the boundary of the next step
    assert trained(tmp_path / "stopped", resume=True)["slice_trained"]


def test_without_its_best_checkpoint_a_run_ends_with_a_warning(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = TrainingRun(load_config("tiny", {}, [*OVERFITS, *SLICE]), out)
    said = []
    for report in run.events():
        if isinstance(report, Event):
            said.append(report.text)
            if report.kind == "evaluation" or report.kind == "stopped_early":
                for found in (out / "checkpoints").glob(f"step-{BEST:09}*"):
                    shutil.rmtree(found)
    assert run.finish()["slice_trained"] is False
    assert any(text.endswith("no whole checkpoint: the validation slice is not trained on") for text in said)
    assert np.isfinite(run.present.state.trend.best.value)


def test_a_branch_on_the_slice_repeats_the_evaluations_of_the_passes_or_is_refused(tmp_path: Path, straight: Path) -> None:
    new = ["eval.per_epoch=0", "eval.every_steps=7"]
    branch, other = (
        make_branch(straight, str(END), tmp_path / name, {}, each, "").out
        for name, each in (("branch", new), ("other", ["data.epochs=13"]))
    )
    trained(branch, resume=True)
    trained(tmp_path / "again", *SLICE, *new, replay=branch)
    mine, theirs = outcome(branch), outcome(tmp_path / "again")
    assert [mine[part] for part in ("summary", "last")] == [theirs[part] for part in ("summary", "last")]
    trained(other, resume=True)
    with pytest.raises(DataError, match=r"with other settings \(data.epochs 12 -> 13\): it cannot be replayed"):
        trained(tmp_path / "refused", *SLICE, "data.epochs=13", replay=other)


def test_pages_of_a_branch_on_the_slice_show_the_reports_that_those_of_its_parent_show(tmp_path: Path, straight: Path) -> None:
    """Reports of passes beyond the best model's are copied only up to the checkpoint's step, but the run went back before the
    slice, so no page shows them, of either run."""
    branch = make_branch(straight, str(END), tmp_path / "branch", {}, [], "").out
    assert max(line["step"] for line in lines_of(straight)) > END >= max(line["step"] for line in lines_of(branch))
    mine, theirs = read_run(branch), read_run(straight)
    assert [each.snapshots for each in mine.stretches] == [each.snapshots for each in theirs.stretches]
    assert mine.evaluations == theirs.evaluations
    scored = [[each["step"] for each in run.events if each["kind"] == "evaluation"] for run in (mine, theirs)]
    assert scored[0] == scored[1][: len(scored[0])]
    assert max(scored[0]) > END, "the journal has the evaluations of all passes"


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
