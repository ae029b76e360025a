"""The checkpoint of the best evaluation stays beside the newest ones, over resumes and rollbacks too."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.generation import generations, names_in
from adaptive_rec.checkpoint.history import names_in_use, prune
from adaptive_rec.dense.quality_trend import QualityTrend
from adaptive_rec.live.telemetry import Evaluation, Quality
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.state.run_state import RunState
from tests.checkpoint.test_resume_run import begin, go_on

from .histories import name_of, write

EACH = ["checkpoint.every_steps=5", "checkpoint.every_seconds=0", "eval.every_steps=5"]


def steps_in(folder: Path) -> list[int]:
    return [int(name[5:14]) for name in generations(names_in(DISK, folder))]


@pytest.mark.parametrize(
    ("best", "kept"),
    [
        ((), [300, 310]),
        ((7,), [7, 300, 310]),
        ((40,), [7, 40, 300, 310]),  # with what it builds on
        ((300,), [300, 310]),
        ((8,), [300, 310]),  # has none
    ],
)
def test_pruning_keeps_the_best_one_and_what_it_builds_on(tmp_path: Path, best: tuple[int, ...], kept: list[int]) -> None:
    folder = tmp_path / "checkpoints"
    write(DISK, 7, folder)
    write(DISK, 40, folder)
    for step in (123, 300, 310):
        write(DISK, step, folder, on=())
    prune(DISK, folder, 2, best)
    assert steps_in(folder) == kept
    used = names_in_use(DISK, folder, 2, best)
    assert used == [name_of(step) for step in kept if step != 7 or best == (7,)], "what it builds on is not in use by itself"
    assert prune(DISK, folder, 2, best) == []


def test_of_two_of_the_best_step_the_newest_stays(tmp_path: Path) -> None:
    for step in (7, 7, 300, 310, 320):
        write(DISK, step, tmp_path, on=())
    prune(DISK, tmp_path, 2, [7])
    assert generations(names_in(DISK, tmp_path)) == ["step-000000007.1", name_of(310), name_of(320)]


def scored(monkeypatch: pytest.MonkeyPatch, best_step: int) -> None:
    """Let an evaluation at one step be the best of all."""
    add = QualityTrend.add

    def rated(self: QualityTrend, evaluation: Evaluation, *reported: float) -> None:
        quality = Quality(**{**vars(evaluation.quality), "auc": 0.9 if evaluation.step == best_step else 0.5})
        add(self, Evaluation(evaluation.step, quality), *reported)

    monkeypatch.setattr(QualityTrend, "add", rated)


def left_of(run: TrainingRun) -> list[int]:
    state: RunState = run.runtime.state
    assert state.trend.best is not None
    assert state.trend.best.step == 10
    list(run.events())
    run.finish()
    return steps_in(run.out / "checkpoints")


def test_a_run_keeps_the_checkpoint_of_its_best_evaluation_over_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(monkeypatch, best_step=10)
    run = begin(tmp_path / "run", *EACH, "run.steps=20")
    list(run.events())
    run.finish()
    assert 10 in steps_in(tmp_path / "run" / "checkpoints")
    left = left_of(go_on(tmp_path / "run", "run.steps=45"))
    assert 10 in left
    assert left[-2:] == [40, 45]
    assert 15 not in left or 5 in left, "others go, but for those that the best and the newest build on"
