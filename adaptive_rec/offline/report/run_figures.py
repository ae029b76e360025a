"""The plots of a run's report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adaptive_rec.offline.report.markup import Markup, tag
from adaptive_rec.offline.report.plot import SIDE, EventMark, Figure, PlotLine
from adaptive_rec.offline.report.record import RunRecord
from adaptive_rec.offline.report.scale import Scale, linear, logarithmic
from adaptive_rec.offline.report.series import Column, ReportSeries
from adaptive_rec.units import count, percent, size, whole

STAGES = ("execute", "update", "gather", "wait", "plan", "observe", "reclassify", "classify", "other")
"""Each has its colour, as on the dashboard; the last one is for all others."""
MOST_TABLES = 64
SHADES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Shares of hot lookups at which a table's line gets darker."""
HIGH_POINTS_RATIO = 3.0
"""Points so much above what 95 % stay under do not set a plot's height: the first step compiles, for half a minute maybe."""


class RunFigures:
    """Plots over the samples of a run, all with the same marks."""

    def __init__(self, record: RunRecord, series: ReportSeries, marks: Sequence[EventMark]) -> None:
        self._record, self._series, self._marks = record, series, marks
        ends = [*series.samples, *(series.samples_at(e["step"]) for e in record.evaluations)]
        self._x = linear(0.0, max(ends, default=1.0), tick, ticks=5)
        pairs = zip(series.steps, series.samples, strict=True)
        self._texts = [f"step {whole(step)} · {count(samples)} samples" for step, samples in pairs]

    def loss(self) -> Figure:
        series = self._series
        points: Column = [None] * len(series.samples)
        lines = [PlotLine("training", "line-1", series.loss, text=fixed)]
        if self._record.evaluations:
            lines.append(PlotLine("held out", "evaluation", self._held_out("logloss"), "points", fixed))
        span = series.loss_span if self._record.stride > 1 else ()
        low, high = bounds([line.values for line in lines] or [points])
        figure = self._figure("loss", "Loss", "log loss per sample", linear(low, high, short), lines, span=span)
        if span:
            figure.note = f"The band is what the {self._record.stride} reports behind each point span."
        return figure

    def auc(self) -> Figure:
        """Its points are the evaluations themselves."""
        evaluations = [e for e in self._record.evaluations if e.get("auc") is not None]
        values = [e["auc"] for e in evaluations]
        places = [self._series.samples_at(e["step"]) for e in evaluations]
        texts = [f"step {whole(e['step'])} · {count(at)} samples" for e, at in zip(evaluations, places, strict=True)]
        low, high = bounds([values])
        line = PlotLine("AUC", "evaluation", values, "both", fixed)
        return Figure(
            "auc", "Held-out AUC", "", places, texts, "at", self._x, linear(low, high, short), [line],
            marks=self._marks, group="evaluations",
            note="" if len(values) > 1 else "eval.every_steps or eval.count makes evaluations while a run trains.",
        )  # fmt: skip

    def rows(self, total_rows: int) -> Figure:
        series = self._series
        cold: Column = [None if hot is None else max(0, total_rows - hot) for hot in series.hot_rows]
        lines = [
            PlotLine("hot", "hot", series.hot_rows, text=whole),
            PlotLine("of them stale", "stale-line", series.stale_rows, "dashed", whole),
            PlotLine("cold", "cold", cold, text=whole),
        ]
        known = [value for line in lines for value in line.values if value]
        y = logarithmic(min(known, default=1), max(known, default=10), tick)
        return self._figure("rows", "Rows", "by class, logarithmic; 0 is at the foot", y, lines)

    def hot(self) -> Figure:
        series = self._series
        lines = [
            PlotLine("hot lookups", "hot", series.hot_lookups, text=share),
            PlotLine("popular samples", "line-1", series.popular_samples, text=share),
        ]
        return self._figure("hot", "Hot lookups and popular samples", "", linear(0, 1, percent), lines)

    def skipped(self) -> Figure:
        series = self._series
        lines = [
            PlotLine("row updates", "stale-line", series.skipped_updates, text=share),
            PlotLine("samples", "line-1", series.skipped_samples, "dashed", share),
        ]
        high = max((v for line in lines for v in line.values if v is not None), default=0.0)
        return self._figure("skipped", "Skipped", "share", linear(0, max(0.05, min(1.0, high * 1.1)), percent), lines)

    def speed(self) -> Figure:
        values = self._series.samples_per_second
        lines = [PlotLine("samples/s", "line-1", values, text=count)]
        return self._figure("speed", "Speed", "", linear(0, top(values) * 1.05, tick), lines)

    def moved(self) -> Figure:
        series = self._series
        lines = [
            PlotLine("to the hot tier", "hot", series.up_bytes, text=size),
            PlotLine("back", "memory", series.down_bytes, "dashed", size),
        ]
        high, beyond = height([series.up_bytes, series.down_bytes])
        y = linear(0, max(high, 1024.0), size, binary=True)
        return self._figure(
            "moved", "Moved between the tiers", "bytes a step", y, lines, note=beyond_note(beyond, size)
        )

    def migrated(self) -> Figure:
        values = self._series.migrated_rows
        high, beyond = height([values])
        lines = [PlotLine("rows a step", "hot", values, text=short)]
        return self._figure(
            "migrated", "Rows that change tier", "", linear(0, high, tick), lines, note=beyond_note(beyond, short)
        )

    def stages(self) -> Figure:
        """Stacked: together they are what the clock showed, evaluations left out."""
        columns = self._series.stages
        order = [name for name in STAGES if name in columns]
        order[-1:-1] = sorted(set(columns) - set(STAGES))
        lines = [PlotLine(name, stage_color(name), columns[name], "area", milliseconds) for name in order]
        sums: Column = [sum(values) for values in zip(*(line.values for line in lines), strict=True)]
        high, beyond = height([sums])
        note = beyond_note(beyond, milliseconds)
        return self._figure(
            "stages", "Where a step's time goes", "ms a step of the training thread",
            linear(0, high, milliseconds), lines, stacked=True, wide=True, note=note,
        )  # fmt: skip

    def beside(self) -> Figure | None:
        """Not stacked on the others: it overlaps with them."""
        columns = {name: values for name, values in self._series.beside.items() if any(values)}
        if not columns:
            return None
        lines = [
            PlotLine(name, f"stage-{1 + place % 9}", values, text=milliseconds)
            for place, (name, values) in enumerate(columns.items())
        ]
        high, beyond = height(list(columns.values()))
        return self._figure(
            "beside", "Work on other threads", "ms a step; it overlaps with the above", linear(0, high, milliseconds), lines,
            wide=True,
            note=f"(ahead): before the step, by the clock. (beside): processor time. {beyond_note(beyond, milliseconds)}",
        )  # fmt: skip

    def _held_out(self, name: str) -> Column:
        """An evaluation's figure at the nearest point that is not before it."""
        values: Column = [None] * len(self._series.steps)
        for evaluation in self._record.evaluations:
            later = [place for place, step in enumerate(self._series.steps) if step >= evaluation["step"]]
            if later and evaluation.get(name) is not None:
                values[later[0]] = evaluation[name]
        return values

    def _figure(self, name: str, title: str, unit: str, y: Scale, lines: Sequence[PlotLine], **more: Any) -> Figure:
        series = self._series
        return Figure(
            name, title, unit, series.samples, self._texts, "at", self._x, y, lines, starts=series.starts,
            marks=self._marks, **more,
        )  # fmt: skip

    # Tables ----------------------------------------------------------------------------------------------------------

    def heat(self, tables: Sequence[Any]) -> Markup:
        """Share of hot lookups of each table over time: a line for each, the darker the more."""
        totals = self._record.stretches[-1].snapshots[-1]["tables"]
        order = sorted(range(len(totals["lookups"])), key=lambda t: -totals["lookups"][t])[:MOST_TABLES]
        parts: list[Markup] = []
        for table in sorted(order):
            name = tables[table]["name"] if table < len(tables) else f"table {table}"
            overall = totals["lookups_hot"][table] / totals["lookups"][table] if totals["lookups"][table] else None
            told = "no lookups" if overall is None else share(overall)
            parts += [
                tag("span", name, title=name),
                tag(
                    "div",
                    tag(
                        "svg",
                        *self._shades(table),
                        viewBox=f"0 0 {SIDE} 1",
                        preserveAspectRatio="none",
                        aria_hidden="true",
                    ),
                    role="img",
                    aria_label=f"{name}: {told} of the lookups hot, {self._course(table)}",
                ),
                tag("b", told),
            ]
        ticks = [
            tag("span", tick(value), class_="x last" if self._x.place(value) > 0.96 else "x first" if value == 0 else "x",
                style=f"left:{self._x.place(value):.2%}")
            for value in self._x.ticks
        ]  # fmt: skip
        parts += [tag("span"), tag("div", *ticks, class_="picture", aria_hidden="true"), tag("b")]
        edges = ["0%", *(f"{edge:.0%}" for edge in SHADES), "100%"]
        key = [
            tag("span", tag("i", class_=f"shade s{n + 1}"), f" {edges[n]} – {edges[n + 1]}", class_="legend")
            for n in range(len(SHADES) + 1)
        ]
        left_out = len(totals["lookups"]) - len(order)
        note = f"The {len(order)} tables with the most lookups; {left_out} others are not shown." if left_out else ""
        caption = tag(
            "figcaption",
            tag("h2", "Hot lookups of each table", tag("span", " share; at the right: of all", class_="muted")),
        )
        said = tag("p", note, class_="muted fine") if note else None
        return tag("figure", caption, tag("div", *key, class_="legends"), tag("div", *parts, class_="heat"), said,
                   class_="card chart wide", id="tables")  # fmt: skip

    def _shades(self, table: int) -> list[Markup]:
        """A path for each shade; neighbours of the same shade are one box."""
        series, boxes = self._series, dict[int, list[str]]()
        run: tuple[int | None, float, float] = (None, 0.0, 0.0)
        edge = 0.0
        for place, shares in enumerate([*series.tables, None]):
            value = shares[table] if shares else None
            shade = None if value is None else 1 + sum(value >= limit for limit in SHADES)
            right = SIDE * self._x.place(series.samples[place]) if shares else edge
            if shade != run[0] or shares is None:
                if run[0] is not None and run[2] > run[1]:
                    boxes.setdefault(run[0], []).append(f"M{run[1]:.0f} 0H{run[2]:.0f}V1H{run[1]:.0f}z")
                run = (shade, edge, right)
            else:
                run = (shade, run[1], right)
            edge = right
        return [tag("path", d="".join(parts), class_=f"s{shade}") for shade, parts in sorted(boxes.items())]

    def _course(self, table: int) -> str:
        known = [shares[table] for shares in self._series.tables if shares[table] is not None]
        if not known:
            return "never looked up"
        return f"{percent(known[0] or 0.0)} at first, {percent(known[-1] or 0.0)} at last"


def fixed(value: float) -> str:
    return f"{value:.4f}"


def tick(value: float) -> str:
    """150000 -> 150 k."""
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= limit:
            return f"{value / limit:.4g}{suffix}"
    return f"{value:.4g}"


def short(value: float) -> str:
    return f"{value:.4g}"


def share(value: float) -> str:
    return f"{value:.1%}"


def milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def stage_color(name: str) -> str:
    return f"stage-{STAGES.index(name) + 1 if name in STAGES else len(STAGES)}"


def bounds(columns: Sequence[Sequence[float | None]]) -> tuple[float, float]:
    """Lowest and highest value with some room; a few high ones at the beginning of a run do not count."""
    known = [value for column in columns for value in column if value is not None]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    room = (high - low) * 0.08 or abs(high) * 0.02 or 0.1
    return low - room, high + room


def top(column: Sequence[float | None]) -> float:
    return max((value for value in column if value is not None), default=0.0) or 1.0


def height(columns: Sequence[Sequence[float | None]]) -> tuple[float, list[float]]:
    """How high a plot goes, and the values above that."""
    highest: list[float] = [max(v or 0.0 for v in values) for values in zip(*columns, strict=True)]
    most = sorted(highest)[int(0.95 * (len(highest) - 1))] if highest else 0.0
    if highest and max(highest) > HIGH_POINTS_RATIO * most > 0:
        return 1.25 * most, [value for value in highest if value > 1.25 * most]
    return max(highest, default=0.0) * 1.05 or 1.0, []


def beyond_note(beyond: Sequence[float], text: Any) -> str:
    if not beyond:
        return ""
    points = "1 point is" if len(beyond) == 1 else f"{len(beyond)} points are"
    return f"{points} higher than the plot, up to {text(max(beyond))}."
