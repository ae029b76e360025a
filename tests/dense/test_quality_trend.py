"""The best evaluation of a run, and the rule that training and evaluation loss have parted."""

from __future__ import annotations

import json
import math

import pytest

from adaptive_rec.config.metrics import eval_metric
from adaptive_rec.dense.quality_trend import MARGIN, WORSE_IN_A_ROW, QualityTrend
from adaptive_rec.errors import CheckpointError
from adaptive_rec.live.telemetry import Evaluation, Quality, Ranking
from adaptive_rec.saved import Saved

LEAST = 0.5
WORSE = LEAST * (1 + MARGIN) + 1e-9


def fed(
    evaluations: list[tuple[float, float]],
    trend: QualityTrend | None = None,
    first: int = 1,
    samples_scored: int = 10**6,
) -> QualityTrend:
    """Feed (evaluation logloss, mean training loss since the one before), 100 samples each."""
    trend = trend or QualityTrend()
    loss_sum, samples = trend.state()["figures"]["loss_sum"], trend.state()["figures"]["samples"]
    for number, (logloss, training) in enumerate(evaluations, first):
        loss_sum, samples = loss_sum + 100 * training, samples + 100
        trend.add(Evaluation(number, Quality(samples_scored, 1 - logloss, logloss, 0, 0, 0)), loss_sum, int(samples))
    return trend


def test_warns_once_when_the_last_of_the_worse_evaluations_comes() -> None:
    parting = [(0.6, 0.6), (LEAST, 0.5)] + [(WORSE, 0.4)] * WORSE_IN_A_ROW
    before = fed(parting[:-1])
    assert before.take_warning() is None
    trend = fed(parting[-1:], before, len(parting))
    found = trend.take_warning()
    assert found is not None
    assert (found.step, found.least_step, found.least_logloss) == (len(parting), 2, LEAST)
    assert found.least_training_loss == pytest.approx(0.5)
    assert found.training_loss == pytest.approx(0.4)
    assert f"the last {WORSE_IN_A_ROW} evaluations are all worse than logloss 0.5000 at step 2" in str(found)
    fed([(WORSE, 0.3)] * 5, trend, 10)
    assert trend.take_warning() is None
    assert trend.overfit == found
    fed([(LEAST - 0.01, 0.3)], trend, 20)
    assert trend.overfit is None, "a new least logloss ends it"


@pytest.mark.parametrize(
    "course",
    [
        [(LEAST, 0.5)] + [(WORSE, 0.5)] * 9,
        [(LEAST, 0.5)] + [(WORSE, 0.7)] * 9,
        [(LEAST, 0.5)] + [(WORSE - 2e-9, 0.4)] * 9,
        [(LEAST, 0.5)] + [*[(WORSE, 0.4)] * (WORSE_IN_A_ROW - 1), (LEAST, 0.4)] * 3,
        [(0.6 - number / 100, 0.5) for number in range(20)],
    ],
    ids=["training stands", "training rises", "within the margin", "not in a row", "falls"],
)
def test_does_not_warn(course: list[tuple[float, float]]) -> None:
    trend = fed(course)
    assert trend.take_warning() is None
    assert trend.overfit is None


def test_few_held_out_samples_must_be_predicted_worse_by_more() -> None:
    assert fed([(LEAST, 0.5)] + [(LEAST * 1.03, 0.4)] * 9, samples_scored=1000).overfit is None
    assert fed([(LEAST, 0.5)] + [(LEAST * 1.04, 0.4)] * 9, samples_scored=1000).overfit is not None


def test_frequent_evaluations_must_be_worse_over_a_tenth_of_the_steps() -> None:
    trend = fed([(LEAST, 0.5)] * 60 + [(WORSE, 0.4)] * 6)
    assert trend.overfit is None
    trend = fed([(WORSE, 0.4)] * 2, trend, 67)
    assert trend.overfit is not None
    assert (trend.overfit.step, trend.overfit.worse) == (68, 8)


def test_the_best_is_the_first_of_the_greatest_auc() -> None:
    trend = fed([(0.6, 0.5), (0.4, 0.5), (0.4, 0.5), (0.5, 0.5)])
    assert trend.best is not None
    assert (trend.best.step, trend.best.auc) == (2, 0.6)
    trend = QualityTrend()
    trend.add(Evaluation(1, Quality(10**6, math.nan, 0.5, 0, 0, 0)), 50, 100)
    assert trend.best is None, "samples of one class have no AUC"


def test_without_reports_between_evaluations_the_losses_of_the_last_ones_count() -> None:
    trend = QualityTrend()
    for step, logloss in enumerate([0.6, LEAST] + [WORSE] * (WORSE_IN_A_ROW - 1), 1):
        trend.add(Evaluation(step, Quality(10**6, 0.5, logloss, 0, 0, 0)), 50.0, 100.0)
    trend.add(Evaluation(9, Quality(10**6, 0.5, WORSE, 0, 0, 0)), 90.0, 200.0)
    assert trend.overfit is not None
    assert trend.overfit.training_loss == pytest.approx(0.4)


def test_whole_numbers_of_samples_are_saved_as_after_a_resume() -> None:
    saved = QualityTrend()
    for step, logloss in enumerate([LEAST, WORSE, WORSE], 1):
        saved.add(Evaluation(step, Quality(10**6, 0.5, logloss, 0, 0, 0)), 50.0 * step, 100 * step)
    again = QualityTrend()
    again.set_state(Saved(json.loads(json.dumps(saved.state()))))
    assert json.dumps(again.state()) == json.dumps(saved.state())
    again.set_state(Saved(json.loads(json.dumps(QualityTrend().state()))))
    assert json.dumps(again.state()) == json.dumps(QualityTrend().state())


def test_a_saved_trend_goes_on_as_if_it_had_not_been_saved() -> None:
    course = [(0.6, 0.6), (LEAST, 0.5)] + [(WORSE, 0.4)] * (WORSE_IN_A_ROW + 1)
    for cut in range(len(course) + 1):
        saved = fed(course[:cut])
        again = QualityTrend()
        found = Saved(json.loads(json.dumps(saved.state())))
        again.set_state(found)
        found.finish()
        assert json.dumps(again.state()) == json.dumps(saved.state()), "numbers keep their types, which a diff shows"
        assert json.dumps(fed(course[cut:], again, cut + 1).state()) == json.dumps(fed(course).state())
    damaged = fed(course).state()
    damaged["least"] = {"step": "two", "auc": 0.5, "logloss": 0.5}
    with pytest.raises(CheckpointError, match="step must be a whole number, got two"):
        QualityTrend().set_state(Saved(damaged))


def compared(metric: str, values: list[float], min_delta: float = 0.0) -> QualityTrend:
    """A trend that was fed with evaluations of these values, at steps 1, 2, ..."""
    trend = QualityTrend(eval_metric(metric), min_delta)
    for step, value in enumerate(values, 1):
        figures = {"samples": 100, **dict.fromkeys(("auc", "logloss", "accuracy", "normalized_entropy", "calibration"), 0.5)}
        ranking = Ranking(9, 9, 9, {metric: value}) if metric not in figures else None
        by_sample = {metric: value} if metric in figures else {}
        trend.add(Evaluation(step, Quality(**{**figures, **by_sample}, ranking=ranking)), 0.0, 0)
    return trend


@pytest.mark.parametrize(
    ("metric", "values", "best", "waited"),
    [
        ("logloss", [0.5, 0.4, 0.4, 0.45], 2, 2),
        ("auc", [0.5, 0.7, 0.6, 0.71], 4, 0),
        ("accuracy", [0.5, math.nan, 0.5], 1, 2),
        ("normalized_entropy", [1.0, 0.9, 0.95], 2, 1),
        ("recall@3", [0.2, 0.4, 0.4], 2, 1),
        ("auc", [math.nan, math.nan], None, 2),
    ],
)
def test_the_best_one_and_how_long_ago(metric: str, values: list[float], best: int | None, waited: int) -> None:
    trend = compared(metric, values)
    assert (trend.best_step, trend.waited) == (best, waited)


def test_less_than_min_delta_is_no_better_for_patience_but_the_best_model_all_the_same() -> None:
    trend = compared("logloss", [0.5, 0.495, 0.492, 0.485], min_delta=0.01)
    assert (trend.best_step, trend.waited, trend.best_steps) == (4, 0, [1, 2, 3, 4])
    trend = compared("logloss", [0.5, 0.495, 0.492], min_delta=0.01)
    assert (trend.best_step, trend.waited) == (3, 2), "each is compared with the one that was better by enough"


def test_another_metric_finds_the_best_one_anew_and_older_checkpoints_have_the_greatest_auc() -> None:
    state = json.loads(json.dumps(compared("logloss", [0.5, 0.4, 0.6]).state()))
    again = QualityTrend(eval_metric("auc"))
    again.set_state(Saved(state))
    assert (again.best, again.waited, again.best_steps) == (None, 0, [])
    older = json.loads(json.dumps(compared("auc", [0.5, 0.7]).state()))
    del older["waiting"], older["best"]["value"], older["best"]["epoch"]
    again.set_state(Saved(older))
    assert (again.best_step, again.best_steps, again.best and again.best.value) == (2, [2], 0.7)
