"""AUC along the way: over the wall clock and over the samples, and what was reached in which time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from adaptive_rec.offline.compare.figures import duration, four
from adaptive_rec.offline.report.plot import Figure, PlotLine
from adaptive_rec.offline.report.run_figures import bounds, short, tick
from adaptive_rec.offline.report.scale import linear
from adaptive_rec.units import count

COLORS = 12
"""Those of `compare.css`; more policies have them again, and their lines are dashed."""
LATE_RATIO = 0.25
"""Part of a run whose AUC does not set a plot's height: what is early and low is drawn at its foot."""

Results = Mapping[str, Any]
Curve = list[tuple[float, float]]


def color(results: Results, policy: str) -> str:
    """The baseline is of the text's colour."""
    place = results["policies"].index(policy)
    return "text" if policy == results["baseline"] else f"policy-{(place - 1) % COLORS + 1}"


def look(results: Results, policy: str) -> str:
    return "dashed" if results["policies"].index(policy) > COLORS else "line"


def mean_curve(runs: Sequence[Mapping[str, Any]], policy: str, key: str) -> Curve:
    """A policy's AUC over `key` (seconds or samples_seen), evaluation by evaluation the mean of its seeds."""
    mine = [run["evaluations"] for run in runs if run["policy"] == policy and run["counted"] and run["evaluations"]]
    if not mine:
        return []
    points = zip(*(line[: min(map(len, mine))] for line in mine), strict=True)
    return [(fmean(each[key] for each in point), fmean(each["auc"] for each in point)) for point in points]


def between(curve: Curve, at: float) -> float | None:
    """The curve's value between its points in proportion; None outside of it."""
    for (left, low), (right, high) in zip(curve, curve[1:], strict=False):
        if left <= at <= right:
            return low + (high - low) * (at - left) / (right - left) if right > left else high
    return curve[0][1] if curve and curve[0][0] == at else None


def over_time(results: Results) -> Figure:
    return _figure(
        results, "seconds", "auc-time", "AUC over the wall clock", "evaluations left out", duration, duration
    )


def over_samples(results: Results) -> Figure:
    return _figure(
        results, "samples_seen", "auc-samples", "AUC over the samples", "seen, skipped ones included", tick, count
    )


def _figure(results: Results, key: str, name: str, title: str, unit: str, ticks: Any, text: Any) -> Figure:
    curves = {policy: mean_curve(results["runs"], policy, key) for policy in results["policies"]}
    curves = {policy: curve for policy, curve in curves.items() if curve}
    xs = sorted({x for curve in curves.values() for x, _ in curve})
    lines = [
        PlotLine(policy, color(results, policy), [between(curve, x) for x in xs], look(results, policy), four)
        for policy, curve in curves.items()
    ]
    late = [value for curve in curves.values() for x, value in curve if x >= LATE_RATIO * curve[-1][0]]
    low, high = bounds([late])
    cut = any(value < low for curve in curves.values() for _, value in curve)
    most = max((over["runs"] for over in results["over_seeds"].values()), default=0)
    seeds = f"Mean of {most} seeds. " if most > 1 else ""
    along = linear(0, max(xs, default=1.0), lambda x: ticks(x) if x else "0", ticks=5)
    note = f"{seeds}{'What is lower is drawn at the foot.' if cut else ''}"
    return Figure(
        name, title, unit, xs, [text(x) for x in xs], "at", along,
        linear(low, high, short), lines, group=key, note=note,
    )  # fmt: skip


def trade(results: Results) -> Figure:
    """Each policy as a point: AUC over wall clock, means over the seeds."""
    over = results["over_seeds"]
    known = [p for p in results["policies"] if over[p]["runs"] and over[p]["auc"] is not None]
    known.sort(key=lambda policy: over[policy]["seconds"]["mean"])
    xs = [over[policy]["seconds"]["mean"] for policy in known]
    aucs = [over[policy]["auc"]["mean"] for policy in known]
    lines = [
        PlotLine(policy, color(results, policy), [auc if at == place else None for at in range(len(known))], "points", four)
        for place, (policy, auc) in enumerate(zip(known, aucs, strict=True))
    ]
    low, high = bounds([aucs])
    left, right = bounds([xs])
    return Figure(
        "trade", "Quality and time", "final AUC over wall clock; up and to the left is better", xs,
        [f"{policy}, {duration(x)}" for policy, x in zip(known, xs, strict=True)], "at",
        linear(max(0.0, left), right, duration, ticks=4), linear(low, high, short), lines, group="trade",
    )  # fmt: skip
