"""The measured figures of a run: which direction is better, and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive_rec.config.metrics import ranked_of, ranking_label
from adaptive_rec.errors import UsageError
from adaptive_rec.live.telemetry import ratio
from adaptive_rec.offline.compare.processes import ProcessEnd
from adaptive_rec.offline.report.record import RunRecord, read_run
from adaptive_rec.units import clock, count, fine, four, size

Text = Callable[[float], str]
Run = Mapping[str, Any]
"""Figures of one run, as in `compare.json`."""

TARGET_SLACK_AUC = 0.0005
"""Distance below the baseline's final AUC that counts as reached: rounding in float32 alone separates two exact runs so far."""


@dataclass(frozen=True)
class Measure:
    """A figure of a run."""

    key: str
    title: str
    text: Text
    better: str = ""
    """low or high; empty where neither is better, and differences are not judged."""
    as_share: bool = False
    """Whether differences are given as shares of the baseline's figure."""
    noun: tuple[str, str] = ("less", "more")
    clock: str = ""
    """Of a time: key of the total by the same clock; where that differs much between runs, something disturbed them."""
    of_windows: bool = False
    """Whether only runs have it that score the next window of the stream."""

    @property
    def is_time(self) -> bool:
        return bool(self.clock)


def duration(seconds: float) -> str:
    """Return a duration, in seconds up to 6000 so that figures compare: 8.314 -> 8.31 s, 91.26 -> 91.3 s, 12345 -> 3:25:45."""
    if seconds < 99.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    return f"{seconds:,.0f} s" if seconds < 6000 else clock(seconds)


WALL_CLOCK = Measure("seconds", "wall clock", duration, "low", True, clock="seconds")
PROCESSOR = Measure("processor_seconds", "processor time", duration, "low", True, clock="processor_seconds")
AUC = Measure("auc", "AUC", four, "high", noun=("lower", "higher"))
LOGLOSS = Measure("logloss", "log loss", four, "low", noun=("lower", "higher"))
WINDOW_AUC = Measure("window_auc", "mean AUC of windows", four, "high", noun=("lower", "higher"), of_windows=True)
WINDOW_LOGLOSS = Measure(
    "window_logloss", "mean log loss of windows", four, "low", noun=("lower", "higher"), of_windows=True
)
CALIBRATION_ERROR = Measure("calibration_error", "calibration error", four, "low", noun=("smaller", "larger"))
TO_TARGET = Measure("seconds_to_target", "time to the baseline's AUC", duration, "low", True, clock=WALL_CLOCK.key)
PROCESSOR_TO_TARGET = Measure(
    "processor_seconds_to_target", "processor time to the baseline's AUC", duration, "low", True, clock=PROCESSOR.key
)
TARGETS = (TO_TARGET, PROCESSOR_TO_TARGET)
JUDGED = (*TARGETS, WALL_CLOCK, PROCESSOR, AUC, LOGLOSS, WINDOW_AUC, WINDOW_LOGLOSS, CALIBRATION_ERROR)
"""Figures whose differences are tested against noise."""

OTHERS = (
    Measure("windows", "windows scored", count, of_windows=True),
    Measure("calibration", "calibration", four),
    Measure("samples_per_second", "samples a second", count),
    Measure("start_seconds", "start", duration),
    Measure("process_seconds", "whole process", duration),
    Measure("samples_trained", "samples trained", count),
    Measure("trained_ratio", "share trained", fine),
    Measure("updates_skipped_ratio", "row updates skipped", fine),
    Measure("hot_lookup_ratio", "hot lookups", fine),
    Measure("popular_sample_ratio", "popular samples", fine),
    Measure("to_device_bytes", "to the hot tier", size),
    Measure("to_host_bytes", "back to the host", size),
    Measure("migrated_rows", "rows that changed tier", count),
    Measure("device_tier_bytes", "hot tier", size),
    Measure("peak_rss_bytes", "peak memory", size),
)
MEASURES = (*JUDGED, *OTHERS)
"""Figures of every comparison."""


def ranked_in(runs: Sequence[Run]) -> list[Measure]:
    """Return the metrics of `eval.metrics` that runs have, whose differences are judged, too."""
    names = dict.fromkeys(name for run in runs for name in run.get("ranked", ()))
    of_windows = any(run.get("windows") for run in runs)
    labels = ((name, ranking_label(name)) for name in names)
    titles = ((name, f"mean {label} of windows" if of_windows else label) for name, label in labels)
    return [Measure(name, title, four, "high", noun=("lower", "higher")) for name, title in titles]


def judged_in(runs: Sequence[Run]) -> list[Measure]:
    """Return the figures of runs whose differences are tested against noise."""
    return [*JUDGED, *ranked_in(runs)]


def measures_in(runs: Sequence[Run]) -> list[Measure]:
    """Return all figures of runs."""
    return [*judged_in(runs), *OTHERS]


def in_windows(results: Mapping[str, Any]) -> bool:
    """Whether the runs of a comparison score the next window of the stream."""
    return any(run.get("windows") for run in results["runs"])


def measures_of(measures: Sequence[Measure], results: Mapping[str, Any]) -> list[Measure]:
    """Return those of some measures that the runs of a comparison have."""
    return [measure for measure in measures if not measure.of_windows or in_windows(results)]


NEEDED = frozenset({
    "row_updates", "row_updates_skipped", "seconds", "samples_per_second", "samples_seen", "samples_trained", "hot_lookup_ratio",
    "popular_sample_ratio", "host_to_device_bytes", "device_to_host_bytes", "migrated_rows", "device_tier_bytes",
    "peak_rss_bytes", "steps", "device", "seconds_by_stage",
})  # fmt: skip
"""What figures are made of in a run's summary."""


def read_figures(run: Path, end: ProcessEnd) -> dict[str, Any]:
    """Return the figures, evaluations and stages of a finished run. Raises UsageError where the directory is no run, or its
    summary is damaged."""
    record = read_run(run)
    s: Mapping[str, Any] = record.summary or {}
    if lost := NEEDED - s.keys():
        raise UsageError(
            f"{run}/summary.json must be of a finished run, it lacks {', '.join(sorted(lost))}; remove the run"
        )
    quality, windows = s.get("eval") or {}, s.get("windows") or {}
    calibration = quality.get("calibration")
    updates = s["row_updates"] + s["row_updates_skipped"]
    return {
        "seconds": s["seconds"],
        "processor_seconds": s.get("processor_seconds"),
        "auc": quality.get("auc"),
        "logloss": quality.get("logloss"),
        "window_auc": windows.get("auc_mean"),
        "window_logloss": windows.get("logloss_mean"),
        "windows": windows.get("count"),
        "calibration": calibration,
        "calibration_error": None if calibration is None else abs(calibration - 1),
        "samples_per_second": s["samples_per_second"],
        "start_seconds": max(0.0, _began(record, end)),
        "process_seconds": end.process_seconds,
        "samples_seen": s["samples_seen"],
        "samples_trained": s["samples_trained"],
        "trained_ratio": ratio(s["samples_trained"], s["samples_seen"]),
        "updates_skipped_ratio": ratio(s["row_updates_skipped"], updates),
        "hot_lookup_ratio": s["hot_lookup_ratio"],
        "popular_sample_ratio": s["popular_sample_ratio"],
        "to_device_bytes": s["host_to_device_bytes"],
        "to_host_bytes": s["device_to_host_bytes"],
        "migrated_rows": s["migrated_rows"],
        "device_tier_bytes": s["device_tier_bytes"],
        "peak_rss_bytes": s["peak_rss_bytes"],
        "steps": s["steps"],
        "device": s["device"],
        "ranked": list(ranked := windows.get("metrics_mean") or ranked_of(quality)),
        **ranked,
        "held_out_samples": quality.get("samples"),
        "stages": _stages(s),
        "evaluations": _evaluations(record.evaluations),
    }


def _began(record: RunRecord, end: ProcessEnd) -> float:
    """Return after how many seconds the process began to train, by the monotonic clock where it was kept."""
    first = next((event for event in record.events if event["kind"] == "started"), {})
    if end.clock is not None and isinstance(began := first.get("seconds"), int | float):
        return float(began) - end.clock
    return float(record.about.get("started", end.started)) - end.started


def _stages(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of the training thread by stage, with the rest as `other`. They add up to the wall clock."""
    own = {name: float(value) for name, value in summary["seconds_by_stage"].items() if not name.endswith(")")}
    return {**own, "other": max(0.0, summary["seconds"] - sum(own.values()))}


def _evaluations(lines: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    kept = ("step", "seconds", "samples_seen", "auc", "logloss")
    known = [line for line in lines if line.get("auc") is not None and "seconds" in line]
    sometimes = ("processor_seconds", "first_time")
    return [{**{key: line[key] for key in kept}, **{key: line.get(key) for key in sometimes}} for line in known]


def seconds_to(target_auc: float, evaluations: list[Mapping[str, Any]], clock: str = WALL_CLOCK.key) -> float | None:
    """Return when, by a clock, the AUC first reached `target_auc`, interpolated between evaluations; None where it never did, or
    the clock was not kept."""
    if any(each.get(clock) is None for each in evaluations):
        return None
    before: Mapping[str, Any] | None = None
    for now in evaluations:
        if now["auc"] >= target_auc:
            if before is None:
                return float(now[clock])
            part = (target_auc - before["auc"]) / (now["auc"] - before["auc"])
            return float(before[clock] + part * (now[clock] - before[clock]))
        before = now
    return None
