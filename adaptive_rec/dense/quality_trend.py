"""The course of a run's evaluations: the best one, and whether training and evaluation loss have parted."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from adaptive_rec.config.metrics import EvalMetric, eval_metric
from adaptive_rec.live.telemetry import Evaluation
from adaptive_rec.saved import Saved, parts_by_number

WORSE_IN_A_ROW = 5
"""Evaluations in a row that must be worse than that of the least logloss, at least. This and the next two were judged on seeds
and data that they were not chosen on (docs/log.md)."""
LASTING_RATIO = 0.1
"""Part of the steps so far over which they must have been worse: where evaluations are frequent, a few in a row are noise."""
MARGIN = 0.01
"""How much worse, at least, and by how much the training loss must be lower: parts of the loss then."""


AUC = "auc"
FIRST_WORSE = ("step", "loss_sum", "samples")


@dataclass(frozen=True)
class ScoredStep:
    """An evaluation by its step and figures."""

    step: int
    auc: float
    logloss: float
    value: float = math.nan
    """By the metric of the best evaluation."""
    epoch: int = 0
    """The pass over the data under way, from 1; 0 where none is known."""


@dataclass(frozen=True)
class Overfit:
    """Training and evaluation loss have parted: samples trained on are predicted better, held-out ones worse."""

    step: int
    """The step of the evaluation that showed it."""
    logloss: float
    """The evaluation's logloss."""
    least_step: int
    """The step of the least logloss; so are the next two."""
    least_logloss: float
    least_training_loss: float
    training_loss: float
    """Mean over the samples trained between the evaluations that were worse."""
    worse: int
    """Number of evaluations in a row that were worse."""

    def __str__(self) -> str:
        least = f"logloss {self.least_logloss:.4f} at step {self.least_step}"
        worse = f"the last {self.worse} evaluations are all worse than {least}"
        fell = f"training loss fell from {self.least_training_loss:.4f} to {self.training_loss:.4f}"
        why = "the model fits its training samples too closely, or the held-out ones are of another kind"
        return f"{worse}, the newest is {self.logloss:.4f}, while {fell}: {why}"


class QualityTrend:
    """What a run keeps of its evaluations, all on the same held-out samples: the best one by a metric, how many in a row were no
    better, and whether they show that the model fits its training samples too closely.

    The rule of the last: since the evaluation of the least logloss, the last ones (WORSE_IN_A_ROW or more, over LASTING_RATIO of
    the steps so far) were each worse by `margin`, and the mean training loss over them is lower by MARGIN than it was before the
    least one.
    """

    def __init__(self, metric: EvalMetric | None = None, min_delta: float = 0.0) -> None:
        """`metric`: by which evaluations are compared, by default AUC; `min_delta`: by how much one must be better to count as
        better for `waited`."""
        self.metric, self._min_delta = metric or eval_metric(AUC), min_delta
        self.best: ScoredStep | None = None
        """The best evaluation by the metric, the first of equal ones."""
        self.best_steps: list[int] = []
        """The steps of all evaluations that were the best when they were made."""
        self.waited = 0
        """Evaluations in a row, up to the last one, none of which was better than those before by more than `min_delta`."""
        self._mark: float | None = None
        """The value that an evaluation has to exceed by `min_delta`."""
        self.overfit: Overfit | None = None
        """Set while the rule has held since the least logloss."""
        self._new = False
        self._least: ScoredStep | None = None
        self._least_training = math.inf
        self._training = math.inf
        """Mean training loss between the last two evaluations with reports between them."""
        self._reported = (0.0, 0.0)
        self._first_worse: tuple[int, float, float] | None = None
        """The step of the first evaluation of those that are worse, and what was reported before it."""
        self._worse = 0

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluation, if there was one."""
        return None if self.best is None else self.best.step

    def add(self, evaluation: Evaluation, loss_sum: float, samples: float, epoch: int = 0) -> None:
        """Take an evaluation. `loss_sum` and `samples`: losses and trained samples of the run so far, as last reported; `epoch`:
        the pass over the data under way, from 1."""
        quality = evaluation.quality
        found = ScoredStep(evaluation.step, quality.auc, quality.logloss, quality.value(self.metric.name), epoch)
        self._compare(found)
        before, now = self._reported, (float(loss_sum), float(samples))  # as a checkpoint has them back
        if samples > before[1]:
            self._training = (loss_sum - before[0]) / (samples - before[1])
            self._reported = now
        if math.isnan(found.logloss):  # all samples scored have weight 0
            return
        if self._least is None or found.logloss < self._least.logloss:
            self._least, self._least_training = found, self._training
            self._worse, self.overfit, self._new = 0, None, False
            return
        if found.logloss < self._least.logloss * (1 + margin(evaluation.quality.samples)):
            self._worse = 0
            return
        if self._worse == 0:
            self._first_worse = (found.step, *before)
        self._worse += 1
        self._judge(found)

    def _compare(self, found: ScoredStep) -> None:
        """Compare an evaluation with the best one. One without a value is no better."""
        if math.isnan(found.value):
            self.waited += 1
            return
        if self.best is None or self._gain(found.value) > self._gain(self.best.value):
            self.best = found
            self.best_steps.append(found.step)
        if self._mark is None or self._gain(found.value) > self._gain(self._mark) + self._min_delta:
            self._mark, self.waited = found.value, 0
        else:
            self.waited += 1

    def _gain(self, value: float) -> float:
        """Return a number that is the greater the better a value is."""
        return value if self.metric.is_more_better else -value

    def _judge(self, found: ScoredStep) -> None:
        assert self._least is not None
        assert self._first_worse is not None
        least, (first_step, loss_sum, trained) = self._least, self._first_worse
        lasts = self._worse >= WORSE_IN_A_ROW and found.step - first_step >= LASTING_RATIO * found.step
        samples = self._reported[1] - trained
        if self.overfit is not None or not lasts or samples <= 0:
            return
        training = (self._reported[0] - loss_sum) / samples
        if training < self._least_training * (1 - MARGIN):
            losses = (least.logloss, self._least_training, training)
            self.overfit = Overfit(found.step, found.logloss, least.step, *losses, self._worse)
            self._new = True

    def take_warning(self) -> Overfit | None:
        """Return `overfit` once after it was set."""
        new, self._new = self._new, False
        return self.overfit if new else None

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "best": self.best and asdict(self.best),
            "least": self._least and asdict(self._least),
            "overfit": self.overfit and asdict(self.overfit),
            "figures": {
                "least_training": self._least_training, "training": self._training, "worse": self._worse,
                "loss_sum": self._reported[0], "samples": self._reported[1],
            },
            "first_worse": self._first_worse and dict(zip(FIRST_WORSE, self._first_worse, strict=True)),
            "waiting": {
                "metric": self.metric.name, "waited": self.waited, "best_steps": parts_by_number(self.best_steps),
                "mark": None if self._mark is None else {"value": self._mark},
            },
        }  # fmt: skip

    def set_state(self, found: Saved) -> None:
        """Restore what was saved. Under another metric the best evaluation is to be found anew."""
        self._least = _scored(found.maybe("least"))
        best, waiting = _scored(found.maybe("best")), found.maybe("waiting") if found.has("waiting") else None
        if waiting is None and self.metric.name == AUC and best is not None:  # older versions
            self.best, self.best_steps, self._mark = replace(best, value=best.auc), [best.step], best.auc
        elif waiting is not None:
            self._set_waiting(waiting, best)
        overfit = found.maybe("overfit")
        self.overfit = None if overfit is None else _overfit(overfit)
        figures = found.part("figures")
        self._least_training, self._training = figures.number("least_training"), figures.number("training")
        self._worse = figures.integer("worse")
        self._reported = figures.number("loss_sum"), figures.number("samples")
        worse = found.maybe("first_worse")
        self._first_worse = None
        if worse is not None:
            self._first_worse = worse.integer("step"), worse.number("loss_sum"), worse.number("samples")

    def _set_waiting(self, found: Saved, best: ScoredStep | None) -> None:
        metric, waited = found.text("metric"), found.integer("waited")
        steps, mark = sorted(int(step) for step in found.numbers("best_steps").values()), found.maybe("mark")
        value = None if mark is None else mark.number("value")
        if metric == self.metric.name:
            self.best, self.best_steps, self.waited, self._mark = best, steps, waited, value


def margin(samples: int) -> float:
    """Return how much worse an evaluation on so many samples must be: MARGIN, or more where they are few."""
    return max(MARGIN, max(1, samples) ** -0.5)


def _scored(found: Saved | None) -> ScoredStep | None:
    if found is None:
        return None
    step, auc, logloss = found.integer("step"), found.number("auc"), found.number("logloss")
    if not found.has("value"):  # older versions
        return ScoredStep(step, auc, logloss)
    return ScoredStep(step, auc, logloss, found.number("value"), found.integer("epoch"))


def _overfit(found: Saved) -> Overfit:
    step, least_step = found.integer("step"), found.integer("least_step")
    logloss, least_logloss = found.number("logloss"), found.number("least_logloss")
    losses = (least_logloss, found.number("least_training_loss"), found.number("training_loss"))
    return Overfit(step, logloss, least_step, *losses, found.integer("worse"))
