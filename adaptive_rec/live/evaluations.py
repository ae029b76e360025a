"""Evaluations in a checkpoint, and what those of a run's windows came to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from adaptive_rec.errors import CheckpointError
from adaptive_rec.live.telemetry import Evaluation, Quality, Ranking, ScoredWindow
from adaptive_rec.saved import Saved

NO_TIME = (None, None)


@dataclass(frozen=True)
class PastEvaluations:
    """The evaluations of a run that is replayed, up to its last start: its settings may have been others before."""

    samples: Mapping[int, int | None]
    """By the step after which each was made: samples of its window, None where it was of others."""
    until: int
    """The last step up to which no others were made."""


@dataclass(frozen=True)
class WindowScores:
    """Sums over the evaluations of a run that scored the next window of the stream."""

    count: int = 0
    """All of them."""
    with_auc: int = 0
    """Those of windows with samples of both classes."""
    auc_sum: float = 0.0
    logloss_sum: float = 0.0
    last_auc: float = math.nan
    ranked: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """By the name of a metric that ranks: windows that have it, and the sum over them."""

    def with_one(self, evaluation: Evaluation) -> WindowScores:
        """Return the sums with one more evaluation; a window all of whose weights are 0 is not counted."""
        logloss, has_weight = evaluation.quality.logloss, not math.isnan(evaluation.quality.logloss)
        auc, known = evaluation.quality.auc, not math.isnan(evaluation.quality.auc)
        return WindowScores(
            self.count + has_weight,
            self.with_auc + known,
            self.auc_sum + (auc if known else 0.0),
            self.logloss_sum + (logloss if has_weight else 0.0),
            auc,
            dict(self._with_ranked(evaluation.quality)),
        )

    def _with_ranked(self, quality: Quality) -> Iterator[tuple[str, tuple[int, float]]]:
        new = {} if quality.ranking is None else quality.ranking.metrics
        for name in dict.fromkeys([*self.ranked, *new]):
            count, total = self.ranked.get(name, (0, 0.0))
            value = new.get(name, math.nan)
            yield name, (count, total) if math.isnan(value) else (count + 1, total + value)

    def summary(self) -> dict[str, Any] | None:
        """Return the means over the windows, each counting alike, and the last one's AUC; None without any window. Metrics that
        rank are there where windows have them."""
        if not self.count:
            return None
        mean_auc = self.auc_sum / self.with_auc if self.with_auc else math.nan
        mean_logloss = self.logloss_sum / self.count
        found = {"count": self.count, "auc_mean": mean_auc, "logloss_mean": mean_logloss, "auc_last": self.last_auc}
        means = {name: total / count if count else math.nan for name, (count, total) in self.ranked.items()}
        return {**found, "metrics_mean": means} if means else found


def evaluation_state(evaluation: Evaluation | None) -> dict[str, Any] | None:
    """Return what a checkpoint keeps of the last evaluation."""
    if evaluation is None:
        return None
    quality = evaluation.quality.as_dict()
    ranking = quality.pop("ranking", None)
    state: dict[str, Any] = {"step": evaluation.step, "quality": quality}
    if ranking is not None:
        state["ranking"] = ranking
    if (window := evaluation.window) is not None:
        times = {"first": window.first_time, "last": window.last_time} if window.first_time is not None else None
        state["window"] = {"first_sample": window.first_sample, "end_sample": window.end_sample, "times": times}
    return state


def saved_evaluation(found: Saved) -> Evaluation:
    """Read what `evaluation_state` returned. Raises CheckpointError."""
    quality = _quality(found.numbers("quality"))
    if found.has("ranking"):
        quality = replace(quality, ranking=_ranking(found.part("ranking")))
    if not found.has("window"):
        return Evaluation(found.integer("step"), quality)
    window = found.part("window")
    times = window.maybe("times")
    first, last = NO_TIME if times is None else (times.number("first"), times.number("last"))
    scored = ScoredWindow(window.integer("first_sample"), window.integer("end_sample"), first, last)
    return Evaluation(found.integer("step"), quality, scored)


def _quality(values: Mapping[str, float]) -> Quality:
    try:
        return Quality(**values)  # type: ignore[arg-type]
    except TypeError as error:
        raise CheckpointError(f"quality of an evaluation must have its figures: {error}") from None


def _ranking(found: Saved) -> Ranking:
    groups, positive, both = (found.integer(name) for name in ("groups", "groups_with_positive", "groups_with_both"))
    return Ranking(groups, positive, both, found.numbers("metrics"))


def windows_state(windows: WindowScores) -> dict[str, Any]:
    """Return the part of a checkpoint with the windows' sums; nothing for a run that has scored none."""
    if not windows.count:
        return {}
    state = asdict(windows)
    ranked = state.pop("ranked")
    if ranked:
        state["ranked"] = {name: {"count": count, "sum": total} for name, (count, total) in ranked.items()}
    return {"windows": state}


def saved_windows(found: Saved) -> WindowScores:
    """Read what `windows_state` added to a state. Raises CheckpointError."""
    if not found.has("windows"):
        return WindowScores()
    part = found.part("windows")
    count, with_auc = (part.integer(name) for name in ("count", "with_auc"))
    auc_sum, logloss_sum, last_auc = (part.number(name) for name in ("auc_sum", "logloss_sum", "last_auc"))
    ranked = {} if not part.has("ranked") else {name: _sums(each) for name, each in part.part("ranked").all_parts().items()}
    return WindowScores(count, with_auc, auc_sum, logloss_sum, last_auc, ranked)


def _sums(found: Saved) -> tuple[int, float]:
    return found.integer("count"), found.number("sum")
