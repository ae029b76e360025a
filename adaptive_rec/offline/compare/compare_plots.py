"""The plots of a comparison: AUC along the way, each figure as a row of dots per policy, and where the wall clock went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from adaptive_rec.offline.compare.measures import Measure, duration
from adaptive_rec.offline.compare.statements import change, verdict
from adaptive_rec.offline.pages.plot import ChartTable, Key, Piece, Plot, PlotLine, TrackRow, Tracks
from adaptive_rec.offline.pages.scale import Scale, bounds, date_text, dates, linear_scale, tick
from adaptive_rec.offline.report.run_figures import STAGES, stage_color
from adaptive_rec.units import count, four

COLORS = 12
"""Colours for policies in `compare.css`; further policies repeat them with dashed lines."""
LATE_RATIO = 0.25
"""Part of a run whose AUC does not set a plot's height: early, low values are drawn at its foot."""
ROOM_RATIO = 0.06
"""Room beside the lowest and the highest dot, as a part of their distance."""
LEAST_RATIO = 0.001
"""Part of the longest bar below which a stage is not drawn."""
OTHER_COLORS = ("policy-7", "policy-9", "policy-11", "policy-12")
"""Colours of rare stages, such as the arranging of the stream."""

Results = Mapping[str, Any]
Curve = list[tuple[float, float]]


def color(results: Results, policy: str) -> str:
    """Return the name of a policy's colour; the baseline has that of the text."""
    place = results["policies"].index(policy)
    return "text" if policy == results["baseline"] else f"policy-{(place - 1) % COLORS + 1}"


def _line(results: Results, policy: str, values: Sequence[float | None], look: str = "") -> PlotLine:
    look = look or ("dashed" if results["policies"].index(policy) > COLORS else "line")
    return PlotLine(policy, color(results, policy), values, look, four)


# AUC along the way -----------------------------------------------------------------------------------------------------


def mean_curve(runs: Sequence[Mapping[str, Any]], policy: str, key: str) -> Curve:
    """Return a policy's AUC over `key` (seconds or samples_seen): for each evaluation the mean of its seeds."""
    mine = [run["evaluations"] for run in runs if run["policy"] == policy and run["counted"] and run["evaluations"]]
    if not mine:
        return []
    points = zip(*(line[: min(map(len, mine))] for line in mine), strict=True)
    return [(fmean(each[key] for each in point), fmean(each["auc"] for each in point)) for point in points]


def between(curve: Curve, at: float) -> float | None:
    """Return the curve's value at a place, interpolated between its points; None outside of it."""
    for (left, low), (right, high) in zip(curve, curve[1:], strict=False):
        if left <= at <= right:
            return low + (high - low) * (at - left) / (right - left) if right > left else high
    return curve[0][1] if curve and curve[0][0] == at else None


def over_time(results: Results) -> Plot:
    title = "AUC over the wall clock"
    return _over(results, "seconds", "auc-time", title, "evaluations left out", duration, duration)


def over_samples(results: Results) -> Plot:
    title = "AUC over the samples"
    return _over(results, "samples_seen", "auc-samples", title, "seen, skipped ones included", tick, count)


def _over(
    results: Results, key: str, name: str, title: str, unit: str, ticks: Any, text: Any, along: Scale | None = None
) -> Plot:
    curves = {policy: mean_curve(results["runs"], policy, key) for policy in results["policies"]}
    curves = {policy: curve for policy, curve in curves.items() if curve}
    xs = sorted({x for curve in curves.values() for x, _ in curve})
    start = 0.0 if along is None else along.low
    lines = [_line(results, policy, [between(curve, x) for x in xs]) for policy, curve in curves.items()]
    late = {policy: start + LATE_RATIO * (curve[-1][0] - start) for policy, curve in curves.items()}
    low, high = bounds([value for policy, curve in curves.items() for x, value in curve if x >= late[policy]])
    cut = any(value < low for curve in curves.values() for _, value in curve)
    most = max((over["runs"] for over in results["over_seeds"].values()), default=0)
    seeds = f"Mean of {most} seeds. " if most > 1 else ""
    along = along or linear_scale(0, max(xs, default=1.0), lambda x: ticks(x) if x else "0", ticks=5)
    note = f"{seeds}{'Lower values are drawn at the foot.' if cut else ''}"
    return Plot(
        name, title, unit, xs, [text(x) for x in xs], "at", along, linear_scale(low, high, tick), lines, group=key, note=note
    )


def plot_in_time(results: Results) -> Plot | None:
    """Return the AUC of the next windows over the time of their first samples, where the data has a clock."""
    windows = [each for run in results["runs"] for each in run["evaluations"]]
    if not windows or any(each.get("first_time") is None for each in windows):
        return None
    scale = dates(min(each["first_time"] for each in windows), max(each["first_time"] for each in windows))
    title, unit = "AUC in time", "of each window before training on it, at its first sample"
    return _over(results, "first_time", "auc-in-time", title, unit, None, date_text, scale)


def trade(results: Results) -> Plot:
    """Return each policy as a point: AUC over wall clock, means over the seeds."""
    over = results["over_seeds"]
    known = [p for p in results["policies"] if over[p]["runs"] and over[p]["auc"] is not None]
    known.sort(key=lambda policy: over[policy]["seconds"]["mean"])
    xs = [over[policy]["seconds"]["mean"] for policy in known]
    aucs = [over[policy]["auc"]["mean"] for policy in known]
    lines = [
        _line(results, policy, [auc if at == place else None for at in range(len(known))], "points")
        for place, (policy, auc) in enumerate(zip(known, aucs, strict=True))
    ]
    left, right = bounds(xs)
    return Plot(
        "trade", "Quality and time", "final AUC over wall clock; up and to the left is better", xs,
        [f"{policy}, {duration(x)}" for policy, x in zip(known, xs, strict=True)], "at",
        linear_scale(max(0.0, left), right, duration, ticks=4), linear_scale(*bounds(aucs), tick), lines, group="trade",
    )  # fmt: skip


# Dots ------------------------------------------------------------------------------------------------------------------


def dots(results: Results, measure: Measure, note: str = "") -> Tracks:
    """Return a row of dots per policy: its mean, the interval of the mean, and the value of every seed."""
    unit = {"low": "lower is better", "high": "higher is better"}.get(measure.better, "")
    found = {policy: over[measure.key] for policy, over in results["over_seeds"].items() if over.get(measure.key)}
    values = {policy: _values(results["runs"], policy, measure.key) for policy in found}
    scale = _dot_scale(measure, found, values) if found else None
    base = found.get(results["baseline"])
    rows = []
    for policy, over in found.items():
        difference = results["differences"].get(policy, {}).get(measure.key)
        kind = verdict(measure, difference)
        said = change(measure, difference) if kind != "same" else ""
        mean = measure.text(over["mean"])
        span = "" if over["low"] is None else f", between {measure.text(over['low'])} and {measure.text(over['high'])}"
        pieces = list(_pieces(scale, over, values[policy], base and base["mean"])) if scale else []
        rows.append(TrackRow(policy, pieces, mean, f"{policy}: {mean}{span}", color(results, policy), (kind, said)))
    name, title = f"dots-{measure.key.replace('_', '-')}", measure.title[:1].upper() + measure.title[1:]
    return Tracks("dots", name, title, unit, rows, scale, note)


def _dot_scale(measure: Measure, found: Mapping[str, Any], values: Mapping[str, list[float]]) -> Scale:
    """Return the scale of a measure. No figure is below zero, though an interval may be, which then ends at the edge."""
    ends = [over[key] for over in found.values() for key in ("mean", "low", "high") if over[key] is not None]
    ends = [max(0.0, each) for each in (*ends, *(value for seeds in values.values() for value in seeds))]
    low, high = min(ends), max(ends)
    room = (high - low) * ROOM_RATIO or abs(high) * 0.01 or 0.01
    is_time = measure.better == "low" and measure.as_share
    return linear_scale(max(0.0, low - room), high + room, measure.text if is_time else tick)


def _pieces(scale: Scale, over: Mapping[str, Any], values: Sequence[float], baseline: float | None) -> Iterator[Piece]:
    if baseline is not None:
        yield Piece("baseline", f"left:{scale.place(baseline):.2%}")
    if over["low"] is not None:
        left, right = scale.place(over["low"]), scale.place(over["high"])
        yield Piece("interval", f"left:{left:.2%};width:{right - left:.2%}")
    for value in values:
        yield Piece("seed", f"left:{scale.place(value):.2%}")
    yield Piece("mean", f"left:{scale.place(over['mean']):.2%}")


def _values(runs: Sequence[Mapping[str, Any]], policy: str, key: str) -> list[float]:
    return [run[key] for run in runs if run["policy"] == policy and run["counted"] and run[key] is not None]


# Stages ----------------------------------------------------------------------------------------------------------------


def plot_stages(results: Results) -> Tracks:
    """Return a bar per policy with the seconds of the training thread by stage. Runs may differ in their number of steps."""
    over = {policy: each["stages"] for policy, each in results["over_seeds"].items() if each["runs"]}
    longest = max(sum(spent.values()) for spent in over.values()) or 1.0
    found = {name for spent in over.values() for name, value in spent.items() if value / longest > LEAST_RATIO}
    names = sorted(found, key=_order)
    colors = {name: _color(name, names) for name in names}
    bars = []
    for policy, spent in over.items():
        said = {
            name: f"{name} {duration(spent[name])}" for name in names if spent.get(name, 0.0) / longest > LEAST_RATIO
        }
        pieces = [
            Piece("", f"width:{spent[name] / longest:.3%};background:var(--{colors[name]})", text)
            for name, text in said.items()
        ]
        bars.append(TrackRow(policy, pieces, duration(sum(spent.values())), f"{policy}: {'; '.join(said.values())}"))
    rows = [(policy, *(duration(spent.get(name, 0.0)) for name in names)) for policy, spent in over.items()]
    return Tracks(
        "bars", "stages", "Where the wall clock went", "seconds of the training thread", bars, wide=True,
        legend=[Key(name, colors[name]) for name in names],
        table=ChartTable(("policy", *(f"{name}>" for name in names)), rows),
    )  # fmt: skip


def _order(name: str) -> tuple[int, str]:
    known = name in STAGES[:-1]
    return (STAGES.index(name) if known else len(STAGES) + (name == STAGES[-1]), name)


def _color(name: str, names: Sequence[str]) -> str:
    rare = [other for other in names if other not in STAGES]
    return OTHER_COLORS[rare.index(name) % len(OTHER_COLORS)] if name in rare else stage_color(name)
