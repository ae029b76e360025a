"""The metrics of an evaluation, each declared once: those that every evaluation has, and those of `eval.metrics`, which rank the
samples of each group."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from adaptive_rec.errors import ConfigError, did_you_mean

MOST_METRICS = 20
"""Most metrics that rank of one run."""
MOST_RANKS = 1_000_000
"""Greatest k of recall@k and NDCG@k."""


@dataclass(frozen=True)
class EvalMetric:
    """A metric of an evaluation."""

    name: str
    label: str
    """Name in tables and plots."""
    better: Literal["higher", "lower", ""]
    """Which of two values is better; empty where the best value lies between others."""
    kind: Literal["", "gauc", "recall", "ndcg", "mrr"] = ""
    """What it is where it ranks the samples of groups; empty where each sample counts by itself."""
    ranks: int = 0
    """The k of recall@k and NDCG@k."""

    @property
    def is_more_better(self) -> bool:
        """Whether the greater of two values is better. Raises ConfigError for a metric of which neither is."""
        if not self.better:
            known = ", ".join(metric.name for metric in BY_SAMPLE if metric.better)
            raise ConfigError(f"a metric to judge by must be one of {known} or a ranking metric, got {self.name}")
        return self.better == "higher"


BY_SAMPLE = (
    EvalMetric("auc", "AUC", "higher"),
    EvalMetric("logloss", "log loss", "lower"),
    EvalMetric("accuracy", "accuracy", "higher"),
    EvalMetric("normalized_entropy", "normalized entropy", "lower"),
    EvalMetric("calibration", "calibration", ""),
)
"""Metrics of every evaluation."""
LABELS = {"gauc": "grouped AUC", "mrr": "MRR", "recall": "recall@{}", "ndcg": "NDCG@{}"}
RANKING_NAMES = "gauc, mrr, recall@K and ndcg@K"
_AT_K = re.compile(r"(recall|ndcg)@([1-9]\d{0,6})", re.ASCII)


def ranking_metric(name: str) -> EvalMetric:
    """Read the name of a metric that ranks. Raises ConfigError."""
    if name in ("gauc", "mrr"):
        return EvalMetric(name, LABELS[name], "higher", name)  # type: ignore[arg-type]
    found = _AT_K.fullmatch(name)
    if found is None or int(found[2]) > MOST_RANKS:
        hint = did_you_mean(name.partition("@")[0], ("gauc", "mrr", "recall", "ndcg")) if "@" not in name else ""
        raise ConfigError(
            f"a ranking metric must be one of {RANKING_NAMES}, K from 1 to {MOST_RANKS:,} (such as recall@20), got {name!r}{hint}"
        )
    kind, ranks = found[1], int(found[2])
    return EvalMetric(name, LABELS[kind].format(ranks), "higher", kind, ranks)  # type: ignore[arg-type]


def ranking_label(name: str) -> str:
    """Return the label of a metric that ranks; a name that this version does not know is its own."""
    return ranking_metric(name).label if is_ranking_metric(name) else name


def is_ranking_metric(name: str) -> bool:
    """Whether this is the name of a metric that ranks."""
    try:
        ranking_metric(name)
    except ConfigError:
        return False
    return True


def eval_metric(name: str) -> EvalMetric:
    """Return a metric of either kind by its name, as in the field names of `Quality` or in `eval.metrics`. Raises ConfigError."""
    by_sample = {metric.name: metric for metric in BY_SAMPLE}
    if name in by_sample:
        return by_sample[name]
    try:
        return ranking_metric(name)
    except ConfigError:
        raise ConfigError(
            f"a metric must be one of {', '.join(by_sample)}, {RANKING_NAMES}, got {name!r}{did_you_mean(name, by_sample)}"
        ) from None


def ranked_of(quality: Mapping[str, Any] | None) -> dict[str, float | None]:
    """Return the metrics that rank of a quality as `Quality.as_dict` or a file has it; empty where it has none."""
    ranking = (quality or {}).get("ranking") or {}
    return dict(ranking.get("metrics") or {})


def ranked_texts(metrics: Mapping[str, float | None]) -> list[str]:
    """Return each metric that ranks in words; "nan" where no group counts."""
    return [f"{ranking_label(name)} {math.nan if value is None else value:.4f}" for name, value in metrics.items()]
