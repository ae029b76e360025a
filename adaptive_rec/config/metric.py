"""The metrics by which a run's evaluations are compared: a figure of an evaluation, and which of two values is better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from adaptive_rec.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Metric:
    """A figure of an evaluation by which evaluations are compared."""

    name: str
    """Its name among the figures of an evaluation."""
    less_is_better: bool = False
    target: float | None = None
    """The best value, where it lies between worse ones; None where more, or less, is always better."""

    def of(self, figures: Mapping[str, float]) -> float:
        """Return the value that an evaluation with these figures has; NaN where it has none."""
        value = figures.get(self.name, math.nan)
        return math.nan if value is None else float(value)

    def gain(self, value: float) -> float:
        """Return a number that is the greater the better the value is."""
        if self.target is not None:
            return -abs(value - self.target)
        return -value if self.less_is_better else value


METRICS = (
    Metric("logloss", less_is_better=True),
    Metric("auc"),
    Metric("accuracy"),
    Metric("normalized_entropy", less_is_better=True),
    Metric("calibration", target=1.0),
)
"""Every metric by its name among the figures of an evaluation."""
BY_AUC = METRICS[1]
"""The metric of the best evaluation where `eval.metric` has no say."""


def metric_of(name: str) -> Metric:
    """Return the metric of this name. Raises ConfigError where there is none."""
    found = next((metric for metric in METRICS if metric.name == name), None)
    if found is None:
        known = [metric.name for metric in METRICS]
        raise ConfigError(f"eval.metric must be one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}")
    return found
