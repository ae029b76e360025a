"""The settings of evaluations: which samples are scored, how often, how many."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, field_validator

from adaptive_rec.config.knobs import Frozen, Knobs, knob
from adaptive_rec.config.metrics import ranking_metric
from adaptive_rec.errors import ConfigError

MOST_METRICS = 20


class EvalConfig(Frozen):
    mode: Literal["held_out", "next_window"] = knob(
        "held_out",
        "name",
        "Samples that are scored: held_out is data.test_range; next_window are those that are trained on next, until the "
        "following evaluation.",
    )
    every_steps: int = knob(0, "steps", "Steps between evaluations; 0: as many as eval.count.", ge=0)
    count: int = knob(0, "number", "Evaluations spread evenly over a run, the last one at its end; 0: only that.", ge=0)
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
