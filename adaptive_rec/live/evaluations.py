"""Evaluations in a checkpoint, and what those of a run's windows came to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from adaptive_rec.errors import CheckpointError
from adaptive_rec.live.telemetry import Evaluation, Quality, ScoredWindow
from adaptive_rec.saved import Saved

NO_TIME = (None, None)


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

    def with_one(self, evaluation: Evaluation) -> WindowScores:
        """Return the sums with one more evaluation; a window without a figure, all of whose weights are 0, is not counted."""
        if math.isnan(evaluation.quality.logloss):
            return replace(self, last_auc=math.nan)
        auc, known = evaluation.quality.auc, not math.isnan(evaluation.quality.auc)
        return WindowScores(
            self.count + 1,
            self.with_auc + known,
            self.auc_sum + (auc if known else 0.0),
            self.logloss_sum + evaluation.quality.logloss,
            auc,
        )

    def summary(self) -> dict[str, float | int] | None:
        """Return the means over the windows, each counting alike, and the last one's AUC; None without any window."""
        if not self.count:
            return None
        mean_auc = self.auc_sum / self.with_auc if self.with_auc else math.nan
        mean_logloss = self.logloss_sum / self.count
        return {"count": self.count, "auc_mean": mean_auc, "logloss_mean": mean_logloss, "auc_last": self.last_auc}


def evaluation_state(evaluation: Evaluation | None) -> dict[str, Any] | None:
    """Return what a checkpoint keeps of the last evaluation."""
    if evaluation is None:
        return None
    state: dict[str, Any] = {"step": evaluation.step, "quality": asdict(evaluation.quality)}
    if (window := evaluation.window) is not None:
        times = {"first": window.first_time, "last": window.last_time} if window.first_time is not None else None
        state["window"] = {"first_sample": window.first_sample, "end_sample": window.end_sample, "times": times}
    return state


def saved_evaluation(found: Saved) -> Evaluation:
    """Read what `evaluation_state` returned. Raises CheckpointError."""
    quality = _quality(found.numbers("quality"))
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


def windows_state(windows: WindowScores) -> dict[str, Any]:
    """Return the part of a checkpoint with the windows' sums; nothing for a run that has scored none."""
    return {"windows": asdict(windows)} if windows.count else {}


def saved_windows(found: Saved) -> WindowScores:
    """Read what `windows_state` added to a state. Raises CheckpointError."""
    if not found.has("windows"):
        return WindowScores()
    part = found.part("windows")
    counts = (part.integer(name) for name in ("count", "with_auc"))
    sums = (part.number(name) for name in ("auc_sum", "logloss_sum", "last_auc"))
    return WindowScores(*counts, *sums)
