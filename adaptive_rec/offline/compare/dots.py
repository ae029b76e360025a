"""A plot of one figure: a line for each policy with its mean, where that lies at 95 %, and every seed's value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adaptive_rec.offline.compare.figures import Measure
from adaptive_rec.offline.report.markup import Markup, tag
from adaptive_rec.offline.report.run_figures import tick
from adaptive_rec.offline.report.scale import Scale, linear

FEWEST_TICKS = 4
ROOM_RATIO = 0.06
"""Of the span, beside the lowest and the highest value."""


@dataclass(frozen=True)
class DotRow:
    """A policy's figure. `verdict` as in `words`, of the difference from the baseline."""

    policy: str
    color: str
    mean: float
    low: float | None
    high: float | None
    values: Sequence[float]
    verdict: str
    said: str


def dots(measure: Measure, rows: Sequence[DotRow], baseline: float | None, note: str = "") -> Markup:
    """The plot. `baseline`: its mean, a line through all rows."""
    unit = {"low": "lower is better", "high": "higher is better"}.get(measure.better, "")
    caption = tag(
        "figcaption", tag("h2", measure.title[:1].upper() + measure.title[1:], tag("span", f" {unit}", class_="muted"))
    )
    said = tag("p", note, class_="muted fine") if note else None
    if not rows:
        return tag("figure", caption, tag("p", "No figures.", class_="notice"), said, class_="card chart")
    scale = _scale(measure, rows)
    listed = [part for row in rows for part in _row(measure, row, scale, baseline)]
    axis = tag("div", *_ticks(measure, scale), class_="dots-axis", aria_hidden="true")
    body = tag("div", *listed, tag("span"), axis, tag("span"), class_="dots")
    return tag("figure", caption, body, said, class_="card chart", id=f"dots-{measure.key.replace('_', '-')}")


def _scale(measure: Measure, rows: Sequence[DotRow]) -> Scale:
    """No figure here is below zero, though an interval may be: it ends at the edge then."""
    ends = [max(0.0, each) for row in rows for each in (*row.values, row.mean, row.low, row.high) if each is not None]
    low, high = min(ends), max(ends)
    room = (high - low) * ROOM_RATIO or abs(high) * 0.01 or 0.01
    return linear(max(0.0, low - room), high + room, measure.text, FEWEST_TICKS)


def _row(measure: Measure, row: DotRow, scale: Scale, baseline: float | None) -> list[Markup]:
    drawn = []
    if baseline is not None:
        drawn.append(tag("i", class_="dots-base", style=f"left:{_at(scale, baseline)}"))
    if row.low is not None and row.high is not None:
        left, right = scale.place(row.low), scale.place(row.high)
        drawn.append(tag("i", class_="dots-span", style=f"left:{left:.2%};width:{max(right - left, 0.0):.2%}"))
    drawn += [tag("i", class_="dots-seed", style=f"left:{_at(scale, value)}") for value in row.values]
    drawn.append(tag("i", class_="dots-mean", style=f"left:{_at(scale, row.mean)}"))
    span = (
        "" if row.low is None or row.high is None else f", between {measure.text(row.low)} and {measure.text(row.high)}"
    )
    about = f"{row.policy}: {measure.text(row.mean)}{span}"
    value = tag(
        "span",
        tag("b", measure.text(row.mean)),
        tag("span", row.said, class_=f"verdict {row.verdict}"),
        class_="dots-value",
    )
    return [
        tag("span", row.policy, class_="dots-name", title=row.policy),
        tag("div", *drawn, class_="dots-track", role="img", aria_label=about, style=f"--c:var(--{row.color})"),
        value,
    ]


def _ticks(measure: Measure, scale: Scale) -> list[Markup]:
    spans = []
    for value in scale.ticks:
        place = scale.place(value)
        edge = " first" if place < 0.06 else " last" if place > 0.94 else ""
        text = measure.text(value) if measure.better == "low" and measure.as_share else tick(value)
        spans.append(tag("span", text, class_=f"x{edge}", style=f"left:{place:.2%}"))
    return spans


def _at(scale: Scale, value: float) -> str:
    return f"{scale.place(value):.2%}"


def values_of(runs: Sequence[Mapping[str, Any]], policy: str, key: str) -> list[float]:
    return [run[key] for run in runs if run["policy"] == policy and run["counted"] and run[key] is not None]
