"""The settings of evaluations: which samples are scored, how often, how many."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, field_validator

from adaptive_rec.config.knobs import Frozen, Knobs, knob
from adaptive_rec.config.metrics import MOST_METRICS, EvalMetric, eval_metric, ranking_metric
from adaptive_rec.errors import ConfigError, DataError

LEAST_TRAINED = 2
"""Samples that a validation slice leaves to train on, at the least."""


class EvalConfig(Frozen):
    mode: Literal["held_out", "validation", "next_window"] = knob(
        "held_out",
        "name",
        "Samples that are scored: held_out is data.test_range; validation is a slice at the end of data.train_range that is not "
        "trained on, and the best model is scored on data.test_range at the end; next_window are those that are trained on "
        "next, until the following evaluation.",
    )
    validation_ratio: float = knob(
        0.1, "ratio", "Part of data.train_range, at its end, that is the validation slice.", gt=0, le=0.5
    )
    train_slice: bool = knob(
        False,
        "switch",
        "With mode validation: when all passes are made, or patience has ended them, the run goes back to its best model and "
        "trains on the validation slice, once; that model is then the best one.",
    )
    metric: str = knob(
        "logloss",
        "name",
        "Metric by which the best evaluation is chosen, with mode validation or patience: logloss, auc, accuracy, "
        "normalized_entropy, or one of metrics.",
    )
    patience: int = knob(
        0,
        "evaluations",
        "The run stops after so many evaluations in a row that are no better than the best one before; 0 never stops. "
        "Needs mode validation or next_window, or data that is followed.",
        ge=0,
        le=1 << 30,
    )
    min_delta: float = knob(
        0.0, "difference", "For patience: an evaluation counts as better where its metric is by more than this.", ge=0
    )
    every_steps: int = knob(0, "steps", "Steps between evaluations; 0: as many as eval.count.", ge=0)
    count: int = knob(0, "number", "Evaluations spread evenly over a run, the last one at its end; 0: only that.", ge=0)
    per_epoch: int = knob(
        0, "number", "Evaluations of each pass over the data, spread evenly, the last one at its end.", ge=0, le=1 << 20
    )
    batch_size: PositiveInt = knob(8192, "samples", "Samples of an evaluation batch.")
    max_samples: int = knob(0, "samples", "Most samples of an evaluation; 0 is all.", ge=0)
    candidates: int = knob(
        0,
        "items",
        "Where rows are all positives: items that are drawn evenly for each user, among which the held-out ones are ranked; 0 "
        "is all items of the training rows.",
        ge=0,
    )
    max_users: int = knob(
        1000, "users", "Where rows are all positives: most users of an evaluation, drawn from all; 0 is all.", ge=0
    )
    rank_seen: bool = knob(
        False,
        "switch",
        "Where rows are all positives: rank items, too, that the user has among the training rows, where users choose again.",
    )
    metrics: tuple[str, ...] = Field(
        (),
        description="Metrics that rank the samples of each group, besides those of every evaluation: gauc, mrr, recall@K, ndcg@K "
        "(docs/metrics.md).",
        json_schema_extra={"unit": "names"},
        max_length=MOST_METRICS,
        strict=False,
    )

    @field_validator("metrics")
    @classmethod
    def _check_metrics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            try:
                ranking_metric(name)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        if double := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"must name each metric once, got {double!r} {names.count(double)} times")
        return names

    @field_validator("metric")
    @classmethod
    def _check_metric(cls, name: str) -> str:
        try:
            _ = eval_metric(name).is_more_better
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return name

    @property
    def validates(self) -> bool:
        """Whether a slice of the training range is scored instead of trained on."""
        return self.mode == "validation"

    @property
    def trains_slice(self) -> bool:
        """Whether the best model trains on the validation slice at last."""
        return self.validates and self.train_slice

    @property
    def keeps_best(self) -> bool:
        """Whether the run keeps the checkpoint of its best evaluation by `metric`, and is read from it."""
        return self.validates or self.patience > 0

    @property
    def by(self) -> EvalMetric:
        """The metric of the best evaluation."""
        return eval_metric(self.metric if self.keeps_best else "auc")

    def validation_samples(self, samples: int) -> int:
        """Return the size of the validation slice of a training range of so many samples, one at the least; 0 where none is
        scored. Raises DataError where fewer than LEAST_TRAINED would be left to train on."""
        if not self.validates:
            return 0
        size = max(1, round(self.validation_ratio * samples))
        if samples - size < LEAST_TRAINED:
            raise DataError(
                f"eval.validation_ratio must leave at least {LEAST_TRAINED} of the {samples} training samples to train on, "
                f"got {self.validation_ratio}; more rows are needed, or no slice (--patience 0)"
            )
        return size

    def is_due(self, knobs: Knobs, step: int, steps: int, epoch_steps: int) -> bool:
        """Return whether an evaluation is due after a step, in a run of `steps`, each pass of `epoch_steps`."""
        every = self.interval(knobs, steps)
        if every or not self.per_epoch or not isinstance(knobs.eval_every_steps, str):
            return bool(every) and step % every == 0
        return step * self.per_epoch // epoch_steps > (step - 1) * self.per_epoch // epoch_steps

    def interval(self, knobs: Knobs, steps: int) -> int:
        """Return the steps from one evaluation to the next in a run of `steps`, under some knobs; 0 where only the end is
        evaluated."""
        if not isinstance(knobs.eval_every_steps, str):
            return knobs.eval_every_steps
        return self.every_steps or (max(1, round(steps / self.count)) if self.count else 0)

    def check_window(self) -> None:
        """Raise ConfigError where nothing says how long a window is that is scored."""
        if self.mode == "next_window" and not (self.every_steps or self.count):
            raise ConfigError('eval.every_steps or eval.count must be set where eval.mode = "next_window", both are 0')

    def last_window(self, steps: int) -> int:
        """Return the steps' worth of samples at the end of a stream of `steps` that are scored and never trained on, under the
        mode next_window. The knob `eval_every_steps` has no say: where training ends is fixed."""
        window = self.every_steps or (max(1, round(steps / (self.count + 1))) if self.count else 0)
        self.check_window()
        if window >= steps:
            raise ConfigError(
                f'eval.every_steps must leave a step to train on of the {steps} of the stream where eval.mode = "next_window", '
                f"got {window}"
            )
        return window
