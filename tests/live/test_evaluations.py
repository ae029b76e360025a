"""Evaluations in a checkpoint and in files: with metrics that rank, and as versions without them wrote them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from adaptive_rec.checkpoint.flatten import flatten, unflatten
from adaptive_rec.config.metrics import ranked_of, ranked_texts
from adaptive_rec.live.evaluations import WindowScores, evaluation_state, saved_evaluation, saved_windows, windows_state
from adaptive_rec.live.telemetry import Evaluation, Quality, Ranking, ScoredWindow, to_json
from adaptive_rec.saved import Saved

PLAIN = Quality(100, 0.7, 0.5, 0.8, 0.9, 1.1)
OLD = {"samples": 100, "auc": 0.7, "logloss": 0.5, "accuracy": 0.8, "normalized_entropy": 0.9, "calibration": 1.1}


def ranked(**metrics: float) -> Quality:
    return Quality(100, 0.7, 0.5, 0.8, 0.9, 1.1, Ranking(9, 7, 5, {name.replace("_at_", "@"): v for name, v in metrics.items()}))


def through_a_file(state: dict[str, Any]) -> Saved:
    return Saved(unflatten(*flatten(state)))


@pytest.mark.parametrize("quality", [PLAIN, ranked(gauc=math.nan, recall_at_20=0.25)])
@pytest.mark.parametrize("window", [None, ScoredWindow(3, 9, 1.5, 2.5)])
def test_a_checkpoint_keeps_an_evaluation(quality: Quality, window: ScoredWindow | None) -> None:
    kept = Evaluation(7, quality, window)
    state = evaluation_state(kept)
    assert state is not None
    saved = through_a_file(state)
    assert repr(saved_evaluation(saved)) == repr(kept)
    saved.finish()


def test_a_quality_without_metrics_that_rank_is_written_as_before() -> None:
    assert evaluation_state(Evaluation(7, PLAIN)) == {"step": 7, "quality": OLD}
    assert Evaluation(7, PLAIN).figures() == {"step": 7, **OLD}
    assert windows_state(WindowScores().with_one(Evaluation(7, PLAIN)))["windows"].keys() == {
        "count", "with_auc", "auc_sum", "logloss_sum", "last_auc",
    }  # fmt: skip


def test_figures_hold_metrics_that_rank_by_name() -> None:
    figures = Evaluation(7, ranked(gauc=math.nan, recall_at_20=0.25)).figures()
    counts = {"groups": 9, "groups_with_positive": 7, "groups_with_both": 5}
    assert figures["ranking"].items() >= counts.items()
    assert '"metrics": {"gauc": null, "recall@20": 0.25}' in to_json(figures)
    assert ranked_texts(ranked_of(figures)) == ["grouped AUC nan", "recall@20 0.2500"]
    assert ranked_of({"auc": 0.7}) == ranked_of({"ranking": None}) == ranked_of(None) == {}


def test_windows_have_the_mean_of_each_metric_over_those_that_have_it() -> None:
    scores = WindowScores()
    for value in (0.5, math.nan, 0.25):
        scores = scores.with_one(Evaluation(1, ranked(gauc=value, mrr=math.nan)))
    found = through_a_file(windows_state(scores))
    again = saved_windows(found)
    found.finish()
    summary = again.summary()
    assert summary is not None
    assert summary["metrics_mean"] == pytest.approx({"gauc": 0.375, "mrr": math.nan}, nan_ok=True)
    assert repr(again) == repr(scores)
    assert "metrics_mean" not in (WindowScores().with_one(Evaluation(1, PLAIN)).summary() or {})
