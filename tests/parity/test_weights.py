"""Samples with weights: a run equals one whose batches repeat each sample as often as its weight says."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position, take
from adaptive_rec.config.tree import load_config
from adaptive_rec.data import open as opening
from adaptive_rec.data.source import Wrapped
from adaptive_rec.data.weights import WeightFacts
from adaptive_rec.dense.metrics import quality
from adaptive_rec.dense.quality_trend import QualityTrend
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.errors import TrainingError
from adaptive_rec.live.evaluations import WindowScores
from adaptive_rec.live.recorder import LoopTime
from adaptive_rec.live.telemetry import Evaluation
from adaptive_rec.policy import ArrangingPolicy, Outcome, Phase, StepPlan, StreamView
from adaptive_rec.policy.skipping import weigh
from adaptive_rec.run.summary import summary_of
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.evaluator import why_no_auc
from adaptive_rec.runtime.progressive import Progressive
from adaptive_rec.runtime.steps import scales_of
from adaptive_rec.saved import Saved
from adaptive_rec.system.group import ALONE
from tests.cells import Trained, plain_cell, settings_of, train
from tests.matrix import Case

CASE: Case = {
    "policy": "hybrid", "home": "memory", "device": "direct", "ranks": 1, "loop": "runtime", "ids": "rows",
    "precision": "float64", "optimizer": "rowwise_adagrad", "bags": "one-hot", "all_hot": True,
}  # fmt: skip

Change = Callable[[Batch, NDArray[np.float32]], Batch]


class Changed(Wrapped):
    """A source whose batches are changed by weights: 1 to 3; with `zeros` 0 too; with `none` some batches have 0 alone."""

    change: Change
    zeros = none = False

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        return map(self._changed, self._source.train_batches(position, batch_size))

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        return map(self._changed, self._source.test_batches(batch_size, max_samples, validation))

    def _changed(self, batch: Batch) -> Batch:
        hashed = np.abs(batch.dense_BX[:, 0] * 1000).astype(np.int64)
        weights_B = (hashed % 4 if self.zeros else hashed % 3 + 1).astype(np.float32)
        if self.none and batch.position.offset // batch.size % 3 == 1:
            weights_B[:] = 0
        return type(self).change(batch, weights_B)


def weighted(batch: Batch, weights_B: NDArray[np.float32]) -> Batch:
    return replace(batch, weights_B=weights_B)


def repeated(batch: Batch, weights_B: NDArray[np.float32]) -> Batch:
    return take(batch, np.repeat(np.arange(batch.size), weights_B.astype(np.int64)))


class Weighing:
    """Trains cells on changed batches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch, self._folder, self._runs = monkeypatch, folder, 0

    def train(self, case: Case, change: Change, stops: Sequence[int] = (), **kind: bool) -> Trained:
        source = type("Source", (Changed,), {"change": staticmethod(change), **kind})
        inner, self._runs = opening._open, self._runs + 1
        with self._patch.context() as patched:
            patched.setattr(opening, "_open", lambda config, group: source(inner(config, group)))
            return train({**CASE, **case}, self._folder / str(self._runs), stops)


@pytest.fixture
def weighing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_segments: None) -> Weighing:
    return Weighing(monkeypatch, tmp_path)


def assert_equal(one: Trained, other: Trained) -> None:
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-12, atol=0)
    for mine, theirs in zip([*one.rows, *one.dense], [*other.rows, *other.dense], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-11)


def cases(quick: list[Case], slow: list[Case]) -> pytest.MarkDecorator:
    """Parametrize a test by cases, of which some run in `make check` only."""
    marked = [(each, []) for each in quick] + [(each, [pytest.mark.slow]) for each in slow]
    named = [pytest.param(each, id="-".join(map(str, each.values())), marks=marks) for each, marks in marked]
    return pytest.mark.parametrize("values", named)


@cases(
    [
        {"policy": "hotline", "bags": "sum", "optimizer": "rowwise_adagrad"},
        {"policy": "device_only", "device": "late", "optimizer": "adagrad"},
        {"policy": "hotline", "ranks": 2, "optimizer": "lazy_adam", "bags": "mean"},
        {"policy": "cdlrm", "optimizer": "lazy_adam"},
        {"policy": "xdl", "optimizer": "sgd"},
    ],
    [
        {"policy": "hotline", "device": "late", "ranks": 3, "bags": "sum"},
        {"policy": "hotline", "home": "disk", "ids": "raw", "bags": "mean"},
        {"policy": "oracle", "ranks": 2},
    ],
)
def test_whole_weights_equal_repeated_samples(values: Case, weighing: Weighing) -> None:
    zeros = values.get("ids") != "raw"  # a sample that is not there gives its ids no rows
    ours = weighing.train(values, weighted, zeros=zeros)
    kept = {axis: values[axis] for axis in ("ids", "bags", "optimizer") if axis in values}
    plain = weighing.train(kept, repeated, zeros=zeros)
    assert_equal(ours, plain)
    assert ours.totals["weight_trained"] == plain.totals["samples_trained"]
    assert "weight_trained" not in plain.totals
    if values.get("ranks", 1) == 1:
        found, wanted = (each.runtime.evaluator.evaluate().quality.as_dict() for each in (ours, plain))
        assert found.pop("samples") == 64 != wanted.pop("samples")
        assert found == pytest.approx(wanted, rel=1e-11)


@cases(
    [{"policy": "slipstream", "device": "late", "home": "disk"}, {"policy": "fae", "device": "late"}],
    [
        {"policy": "slipstream", "ranks": 2},
        {"policy": "random_skip", "ranks": 3, "bags": "sum"},
        {"policy": "adaptive", "device": "late", "ranks": 2},
        {"policy": "adaptive", "home": "disk"},
    ],
)
def test_policies_that_skip_or_reorder_weigh_alike_everywhere(values: Case, weighing: Weighing) -> None:
    elsewhere = {**plain_cell({**CASE, **values}), "all_hot": True}
    ours, plain = (weighing.train(case, weighted, zeros=True) for case in (values, elsewhere))
    assert_equal(ours, plain)
    assert ours.totals["weight_trained"] == pytest.approx(plain.totals["weight_trained"], rel=1e-12)


@cases([{"policy": "device_only", "device": "late"}], [{"policy": "hotline", "ranks": 3}, {"device": "late", "ranks": 2}])
def test_a_batch_whose_weights_are_0_changes_nothing(values: Case, weighing: Weighing) -> None:
    settings: Case = {"optimizer": "lazy_adam", "bags": "sum"}
    ours, plain = (weighing.train({**settings, **each}, weighted, zeros=True, none=True) for each in (values, {}))
    assert_equal(ours, plain)
    assert ours.totals["steps"] == 14
    assert np.count_nonzero(ours.losses == 0) == 5  # no sample was trained
    for each in (ours, plain):  # none was skipped
        assert each.totals["samples_trained"] == each.totals["samples_seen"] > each.totals["weight_trained"]


@cases([{"policy": "adaptive"}], [{"policy": "hotline", "ranks": 2}])
def test_a_resumed_run_weighs_on(values: Case, weighing: Weighing) -> None:
    whole, resumed = (weighing.train(values, weighted, stops, zeros=True) for stops in ((), (4, 9)))
    np.testing.assert_array_equal(whole.losses[9:], resumed.losses)
    for mine, theirs in zip([*whole.rows, *whole.dense], [*resumed.rows, *resumed.dense], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert whole.totals["weight_trained"] == resumed.totals["weight_trained"]


def test_weights_of_1_change_no_loss(weighing: Weighing) -> None:
    ones, none = (
        weighing.train({"policy": "hotline"}, change)
        for change in (lambda batch, _: replace(batch, weights_B=np.ones(batch.size, np.float32)), lambda batch, _: batch)
    )
    assert_equal(ones, none)


def test_skipped_samples_weigh_in_the_mean_and_policies_multiply_weights() -> None:
    weights_B = np.array([2, 0, 1, 3], np.float32)
    dropped = weigh(StepPlan((np.array([0, 1]), np.array([1]))), weights_B)
    assert [part.tolist() for part in dropped.micro_batches] == [[0]]
    assert dropped.weight_B is not None
    assert scales_of(np.array([0]), dropped.weight_B, 6.0).tolist() == [2 / 6]
    kept = weigh(StepPlan((np.arange(4),), weight_B=np.array([1.0, 1, 4, 1])), weights_B)
    assert kept.weight_B is not None
    assert kept.weight_B.tolist() == [2, 0, 4, 3]
    assert weigh(dropped, None) is dropped


def test_samples_scored_in_their_own_step_are_weighted() -> None:
    labels, weights = np.array([0, 1, 1, 0], np.float32), np.array([3, 1, 2, 0], np.float32)
    logits = np.array([-1.0, 0.5, -0.25, 2.0])
    losses = np.logaddexp(0, logits) - labels * logits
    work: Any = SimpleNamespace(batch=SimpleNamespace(labels_B=labels, weights_B=weights, groups_B=None))
    scores = Progressive()
    for samples in (np.array([2, 0]), np.array([1, 3])):
        scores.observe(work, StepPlan(()), samples)(Fetched(losses[samples]))
    again = Progressive()
    again.set_state(Saved(scores.state(), "scores"))
    wanted = quality(labels, logits, weights).as_dict()
    for each in (scores, again):
        assert (each.quality(1) or quality(labels, logits)).as_dict() == pytest.approx(wanted, rel=1e-9)
    work.batch.weights_B = None
    plain = Progressive()
    plain.observe(work, StepPlan(()), np.arange(4))(Fetched(losses))
    assert "weights" not in plain.state()["window"]


def test_windows_of_equal_steps_stay_apart_whatever_was_trained_on() -> None:
    labels, losses = np.float32([1, 0, 1, 0]), np.array([0.3, 0.9, 0.5, 0.2])
    work: Any = SimpleNamespace(batch=SimpleNamespace(labels_B=labels, weights_B=None, groups_B=None))
    scores = Progressive()

    def scored(samples: int) -> None:
        scores.observe(work, StepPlan(()), np.arange(samples))(Fetched(losses[:samples]))

    def samples_until(step: int) -> int:
        found = scores.quality(step)
        return 0 if found is None else found.samples

    scored(4)
    scores.begin_window(10)
    scored(3)  # the others have weight 0, or a policy left them out
    assert samples_until(20) == 3
    assert samples_until(14) == 7  # a short window has the one before it, too
    again = Progressive()
    again.set_state(Saved(scores.state(), "scores"))
    scores = again
    assert (samples_until(20), samples_until(14)) == (3, 7)
    scores.begin_window(20)
    assert (samples_until(30), samples_until(20)) == (0, 3)


def test_a_run_without_weights_saves_what_it_saved_before(weighing: Weighing) -> None:
    state = weighing.train({"policy": "adaptive"}, lambda batch, _: batch).runtime
    assert set(state.tally.state(ALONE)) == {"counters", "lookups_T", "hot_lookups_T"}
    assert "weight_trained" not in state.state.counts()
    assert dict(summary_of(state, 0, LoopTime(1.0, 1.0), None)).keys().isdisjoint({"weights", "weight_trained"})


def test_the_training_loss_is_weighted(weighing: Weighing) -> None:
    runtime = weighing.train({}, weighted).runtime
    loss = runtime.reports.totals()["loss_sum"] / runtime.reports.totals()["weight_trained"]
    assert 0.1 < loss < 2
    assert summary_of(runtime, 0, LoopTime(1.0, 1.0), None)["train_logloss"] == loss


class Forgetful(ArrangingPolicy):
    """Makes batches of its own, without weights."""

    name = "forgetful"

    def arrange(self, stream: StreamView) -> Generator[Phase, Outcome, None]:
        yield Phase("all", (replace(batch, weights_B=None) for batch in stream.rest()))


def test_a_policy_that_forgets_weights_is_refused(weighing: Weighing, tmp_path: Path) -> None:
    config = load_config(None, {}, settings_of(CASE, tmp_path))
    source = type("Source", (Changed,), {"change": staticmethod(weighted), "weights": WeightFacts("w", {})})
    runtime = assemble(config, source(opening.open_source(config)), policy=Forgetful())
    with pytest.raises(TrainingError, match=r"batches of policy forgetful must keep the weights of samples, weights_B"):
        list(runtime.run())


def test_evaluations_without_weight_are_told_and_not_compared(weighing: Weighing) -> None:
    nothing, something = (quality(np.array([0.0, 1.0]), np.zeros(2), np.full(2, w)) for w in (0.0, 1.0))
    assert why_no_auc(asdict(nothing), False).startswith("all 2 samples scored have weight 0")
    trend, windows = QualityTrend(), WindowScores()
    for step, found in enumerate((nothing, something, nothing)):
        trend.add(Evaluation(step, found), 1.0 * step, 1.0 * step)
        windows = windows.with_one(Evaluation(step, found))
    assert trend.best_step == 1
    assert windows.count == 1
    assert windows.logloss_sum == something.logloss
